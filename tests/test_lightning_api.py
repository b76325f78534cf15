"""A detector at the end of a training with PyTorch Lightning."""

import lightning.pytorch as lightning
import pytest
import torch
from test_monitor import Module, lightnings_own, trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import DetectorCallback, NACDetector, NACError

pytestmark = lightnings_own


def loader(n, seed, **options):
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 4, generator=draw)
    x[:, :3] += 2 * nn.functional.one_hot(y, 3)
    return DataLoader(TensorDataset(x, y), batch_size=16, **options)


class Validated(Module):
    def validation_step(self, batch, index, dataloader_idx=0):
        self(batch[0])


@pytest.fixture
def module():
    torch.manual_seed(0)
    hidden = [nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 6), nn.ReLU()]
    return Validated(nn.Sequential(*hidden, nn.Linear(6, 3)))


def test_the_trainers_own_data(module, tmp_path):
    path = tmp_path / "detector.nac"
    callback = DetectorCallback(path, network=lambda module: module.net)
    train, val = loader(120, 0, shuffle=True), [loader(60, 1), loader(40, 4)]
    trainer(tmp_path, callback, max_epochs=2).fit(module, train, val)
    detector = callback.detector_
    assert detector.fit_summary_.n_samples == 120 and len(detector.pvalues_.scores) == 100
    # of the trained weights, in evaluation mode
    again = NACDetector.load(path, module.net)
    x = torch.randn(10, 4)
    assert torch.equal(again.p_value(x), detector.p_value(x))
    fitted = NACDetector(module.net, "auto", rule="nac_plus").fit(train)
    calibrated = fitted.calibrate([*val[0], *val[1]])
    assert torch.allclose(calibrated.p_value(x), detector.p_value(x))


def test_data_and_settings_of_ones_own(module, tmp_path):
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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "calibrated on validation data, but this training has none"),
        ({"rule": "x"}, "unknown rule 'x'"),
    ],
)
def test_what_cannot_work_is_refused_before_the_training(module, tmp_path, options, told):
    run, counting = trainer(tmp_path, DetectorCallback(**options), max_steps=3), Counting()
    run.callbacks.append(counting)
    with pytest.raises(NACError, match=told):
        run.fit(module, loader(48, 0))
    assert counting.steps == 0
