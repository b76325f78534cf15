"""NAC-ME while a network trains: a plain loop, and PyTorch Lightning."""

from itertools import cycle, islice

import lightning.pytorch as lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import DetectorCallback, IntegralConfig, NACDetector, NACError, coverage_integral
from nac_openood.evaluation.lightning import CoverageCallback
from nac_openood.evaluation.monitor import CoverageMonitor, Measured

#: What Lightning itself does with newer versions of torch, and its advice on workers.
lightnings_own = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",
    "ignore::DeprecationWarning:lightning.*",
    "ignore::UserWarning:lightning.*",
)
CONFIG = IntegralConfig(n_bins=20, full_count=2, steepness=20.0)


def loader(n, seed, batch_size=16, **options):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 4, generator=draw)
    x[:, :3] += 2 * nn.functional.one_hot(y, 3)
    return DataLoader(TensorDataset(x, y), batch_size, **options)


@pytest.fixture
def data():
    return loader(48, 0, batch_size=8)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 3))


def train(net, data, monitor, steps=24):
    optimizer = torch.optim.SGD(net.parameters(), 0.3)
    batches = islice(cycle(data), steps)
    for step, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        monitor(step, net)
        if monitor.should_stop:
            break
    return step


def test_a_plain_loop(net, data, tmp_path):
    monitor = CoverageMonitor(data, every=4, layer="1", config=CONFIG, path=tmp_path / "best.pt")
    assert monitor.best is None and not monitor.should_stop
    assert train(net.train(), data, monitor) == 24
    assert net.training
    assert [each.step for each in monitor.history] == [4, 8, 12, 16, 20, 24]
    assert monitor.history[-1].coverage == coverage_integral(net, data, "1", CONFIG)
    assert monitor.best.coverage == max(each.coverage for each in monitor.history)
    net.load_state_dict(torch.load(tmp_path / "best.pt", weights_only=True))
    assert coverage_integral(net, data, "1", CONFIG) == monitor.best.coverage
    assert monitor(24, net) is None and monitor(25, net) is None  # done, and not yet


def measure(monkeypatch, *values):
    """Let monitors measure these values, one after the other."""
    left = iter(values)
    name = "nac_openood.evaluation.monitor.coverage_integral"
    monkeypatch.setattr(name, lambda *a, **k: next(left))


def test_patience(net, data, monkeypatch):
    measure(monkeypatch, 0.1, 0.3, 0.3, 0.2, 0.5)
    monitor = CoverageMonitor(data, every=1, patience=2)
    assert train(net, data, monitor) == 4  # neither an equal nor a lower value is a new best one
    assert monitor.best == Measured(2, 0.3)


def test_what_cannot_work_is_refused(data):
    with pytest.raises(NACError, match="every must be at least 1"):
        CoverageMonitor(data, every=0)


class Module(lightning.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.3)


def trainer(folder, callback, **options):
    return lightning.Trainer(
        callbacks=[callback], accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
        **options,
    )  # fmt: skip


@lightnings_own
def test_lightning(net, data, tmp_path):
    path = tmp_path / "best.ckpt"
    callback = CoverageCallback(data, every=3, layer="net.1", config=CONFIG, path=path)
    module = Module(net)
    run = trainer(tmp_path, callback, max_steps=12)
    run.fit(module, data)
    assert [each.step for each in callback.monitor.history] == [3, 6, 9, 12]
    assert run.callback_metrics["nac_me"] == pytest.approx(callback.monitor.history[-1].coverage)
    best = torch.load(path, weights_only=True)
    assert best["global_step"] == callback.monitor.best.step
    module.load_state_dict(best["state_dict"])
    found = coverage_integral(module, data, "net.1", CONFIG)
    assert found == callback.monitor.best.coverage
    again = CoverageCallback(data, every=3)
    again.load_state_dict(callback.state_dict())
    assert again.monitor.history == callback.monitor.history


@lightnings_own
def test_lightning_stops_early(net, data, tmp_path, monkeypatch):
    measure(monkeypatch, 0.5, 0.4, 0.3, 0.2)
    callback = CoverageCallback(data, every=2, patience=2, network=lambda module: module.net)
    run = trainer(tmp_path, callback, max_epochs=5)
    run.fit(Module(net), data)
    assert run.global_step == 6 and callback.monitor.best == Measured(2, 0.5)


# -- a detector at the end of a training -------------------------------------------------


class Validated(Module):
    def validation_step(self, batch, index, dataloader_idx=0):
        self(batch[0])


@pytest.fixture
def module():
    torch.manual_seed(0)
    hidden = [nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 6), nn.ReLU()]
    return Validated(nn.Sequential(*hidden, nn.Linear(6, 3)))


@lightnings_own
def test_the_trainers_own_data(module, tmp_path):
    path = tmp_path / "detector.nac"
    callback = DetectorCallback(path, network=lambda module: module.net)
    train, val = loader(120, 0, shuffle=True), [loader(60, 1), loader(40, 4)]
    trainer(tmp_path, callback, max_epochs=2).fit(module, train, val)
    detector = callback.detector_
    assert detector.fit_summary_.n_samples == 120 and len(detector.pvalues_.scores) == 50
    # of the trained weights, in evaluation mode
    again = NACDetector.load(path, module.net)
    x = torch.randn(10, 4)
    assert torch.equal(again.p_value(x), detector.p_value(x))
    fitted = NACDetector(module.net, "auto", rule="nac_plus").fit(train)
    calibrated = fitted.calibrate([*val[0], *val[1]])
    assert torch.allclose(calibrated.p_value(x), detector.p_value(x))


@lightnings_own
def test_data_and_settings_of_the_users_own(module, tmp_path):
    callback = DetectorCallback(
        layers=["net.0"], rule="nac", n_samples=60, train=loader(90, 2), val=loader(40, 3)
    )
    run = trainer(tmp_path, callback, max_steps=3)
    run.fit(module, loader(48, 0), [loader(20, 1), loader(20, 4)])
    assert callback.detector_.fit_summary_.n_samples == 60
    assert len(callback.detector_.pvalues_.scores) == 40
    assert not list(tmp_path.iterdir())


class Counting(lightning.Callback):
    steps = 0

    def on_train_batch_end(self, *args):
        self.steps += 1


@lightnings_own
@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "calibrated on validation data, but"), ({"rule": "x"}, "unknown rule 'x'")],
)
def test_what_cannot_work_is_refused_before_the_training(module, tmp_path, options, message):
    run, counting = trainer(tmp_path, DetectorCallback(**options), max_steps=3), Counting()
    run.callbacks.append(counting)
    with pytest.raises(NACError, match=message):
        run.fit(module, loader(48, 0))
    assert counting.steps == 0
