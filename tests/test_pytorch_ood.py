"""The baselines from pytorch-ood on a toy network; `test_baselines` has them beside OpenOOD's."""

import sys

import numpy as np
import pytest
import torch
from conftest import SmallNet
from test_probe import equal, snapshot
from torch import nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer

from nac_openood.benchmark.methods import table
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.scorer import MethodInputs
from nac_openood.benchmark.methods.table import Absent
from nac_openood.core.metrics import auroc
from nac_openood.errors import NACError
from nac_openood.network.head import Head, head_of, with_features
from nac_openood.search.run import grid_points
from nac_openood.sources.checkpoints import Checkpoint

pytest.importorskip("pytorch_ood", reason="the baselines need pytorch-ood, an optional library")

METHODS = {name: row for name, row in table.METHODS.items() if "pytorch-ood" in row.backends}
NETWORK = ("odin", "mds_ensemble", "gram", "rankfeat")
WIDE, CLASSES = 300, 4


class ToyNet(SmallNet):
    """Wide enough for ViM's 256 dimensions, and with an opinion on the toy images."""

    def __init__(self):
        super().__init__(CLASSES)
        self.layer4 = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(8, WIDE, 3, padding=1))
        self.fc = nn.Linear(WIDE, CLASSES)


def make(method):
    (row,) = table.chosen_methods([method])
    return scorers([row], "pytorch-ood")(row, Checkpoint("net", ""))


def images_of(n, seed, shift=0.0):
    """A color a class, noise; OOD images are stripes of nothing else."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % CLASSES
    colors = torch.tensor([[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0], [1.5, 1.5, -1.5]])
    noise = torch.randn(n, 3, 9, 9, generator=generator)
    data = colors[label][:, :, None, None] + 0.6 * noise
    if shift:
        data, label = data * (1 - shift) + 1.2 * shift * noise, torch.full((n,), -1)
    return data, label


def in_batches(data, label, size=32):
    pairs = zip(data.split(size), label.split(size))
    return [{"data": x, "label": y} for x, y in pairs]


@pytest.fixture(scope="module")
def toy():
    """A net that is right about its training images, with the sets it is given."""
    torch.manual_seed(0)
    net = ToyNet().eval()
    data, label = images_of(320, 1)
    with torch.no_grad():
        features = with_features(net, data).features
        design = torch.cat([features, torch.ones(len(features), 1)], 1)
        targets = 6.0 * F.one_hot(label, CLASSES).float()
        solution = torch.linalg.pinv(design, rtol=1e-3) @ targets
        net.fc.weight.copy_(solution[:-1].T)
        net.fc.bias.copy_(solution[-1])
        assert (net(data).argmax(1) == label).float().mean() > 0.95
    sets = {
        "train": (data, label),
        "id_val": images_of(60, 2),
        "ood_val": images_of(60, 3, 0.4),
        "test": images_of(50, 4),
        "ood": images_of(50, 5, 0.5),
    }
    return net, {name: in_batches(*pair) for name, pair in sets.items()}


def featured(net, batches):
    return [{**b, "data": with_features(net, b["data"]).features} for b in batches]


def inputs_for(method, toy, **changes):
    """What the comparison gives the method, and the test sets it scores."""
    net, sets = toy
    if METHODS[method].needs == "features":
        sets = {name: featured(net, batches) for name, batches in sets.items()}
        net = Head(head_of(net, toy[1]["test"][0]["data"])[1])
    parts = {k: sets[k] for k in ("train", "id_val", "ood_val")}
    return MethodInputs(net, "toy", CLASSES, **{**parts, "progress": False, **changes}), sets


def run(method, toy, chosen=None, **changes):
    inputs, sets = inputs_for(method, toy, **changes)
    scorer = make(method)
    fit = scorer.setup(inputs, chosen)
    return fit, {name: scorer.score(sets[name]) for name in ("test", "ood")}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_leaves_no_trace(method, toy, one_thread):
    net = toy[0]
    net.fc.weight.grad = torch.ones_like(net.fc.weight)
    net.layer1.train()  # half of it in training mode, as fine-tuned nets may be
    before = snapshot(net)
    try:
        fit, scores = run(method, toy, seed=3)
        assert equal(before, snapshot(net))
    finally:
        net.eval()
        net.fc.weight.grad = None
    test = scores["test"]
    assert test.score.dtype == np.float64 and test.prediction.dtype == np.int64
    assert np.isfinite(test.score).all() and len(np.unique(test.score)) > 5
    logits = torch.cat([with_features(net, b["data"]).logits for b in toy[1]["test"]])
    assert np.array_equal(test.prediction, logits.argmax(1).numpy())
    assert np.array_equal(test.label, np.arange(50) % CLASSES)
    assert (scores["ood"].label == -1).all()
    assert set(fit.hyperparameters) == set(METHODS[method].defaults)
    assert (fit.search is None) == (not METHODS[method].sweep)
    # a second time, with what was chosen and other draws of somebody else, nothing changes
    torch.manual_seed(123)
    inputs, sets = inputs_for(method, toy, seed=3)
    scorer = make(method)
    again = scorer.setup(inputs, dict(fit.hyperparameters))
    assert again.hyperparameters == fit.hyperparameters and again.search is None
    assert np.array_equal(test.score, scorer.score(sets["test"]).score)
    # nor does it depend on the batch, but for rounding; RMDS is a difference of large distances
    whole = in_batches(*(torch.cat([b[k] for b in sets["test"]]) for k in ("data", "label")), 7)
    other = scorer.score(whole).score
    np.testing.assert_allclose(test.score, other, rtol=2e-3, atol=0.05 * test.score.std())


def test_simple_methods_are_their_formulas(toy):
    inputs, sets = inputs_for("msp", toy)
    logits = torch.cat([inputs.net(b["data"]) for b in sets["test"]])
    features = torch.cat([b["data"] for b in sets["test"]])
    train = F.normalize(torch.cat([b["data"] for b in sets["train"]]).double())
    distances = torch.cdist(F.normalize(features.double()), train).sort(dim=1).values
    expected = {
        "msp": logits.softmax(1).amax(1),
        "mls": logits.amax(1),
        "ebo": logits.logsumexp(1),
        "knn": -distances[:, 49],
    }
    for method, value in expected.items():
        found = run(method, toy, METHODS[method].defaults)[1]["test"].score
        np.testing.assert_allclose(found, value.double().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [m for m, row in METHODS.items() if row.sweep])
def test_the_search_finds_the_first_best_point(method, toy):
    inputs, sets = inputs_for(method, toy)
    scorer = make(method)
    fit = scorer.setup(inputs)
    found = []
    for point in grid_points(METHODS[method].sweep):
        if point.get("K", 0) > 320 or point.get("dim", 0) >= WIDE:
            continue
        scorer.setup(inputs, point)
        scores = [scorer.score(sets[name]).score for name in ("id_val", "ood_val")]
        found.append((float(auroc(*scores)), point))
    best = max(found, key=lambda pair: pair[0])
    assert fit.hyperparameters == best[1]
    left_out = len(grid_points(METHODS[method].sweep)) - len(found)
    more = {"left_out": left_out} if left_out else {}
    assert fit.search == {"points": len(found), "auroc": best[0], "objective": "auroc", **more}


def test_errors_say_what_to_do(toy, monkeypatch):
    with pytest.raises(NACError, match="K=50 exceeds the 32 training samples. Add some"):
        run("knn", toy, train=inputs_for("knn", toy)[0].train[:1])
    assert run("react", toy, ood_val=None)[0].hyperparameters == {"percentile": 90}
    monkeypatch.setitem(sys.modules, "pytorch_ood", None)
    monkeypatch.delitem(sys.modules, "pytorch_ood.detector", raising=False)
    with pytest.raises(Absent, match=r"pip install 'nac-openood\[baselines\]'"):
        make("msp")


@pytest.mark.parametrize("method", ["mds", "rmds", "she", "openmax", "mds_ensemble"])
def test_a_class_that_is_missing_is_named(method, toy):
    net, sets = toy
    data, label = (torch.cat([b[k] for b in sets["train"]]) for k in ("data", "label"))
    kept = in_batches(data[label != 2], label[label != 2])
    before = snapshot(net)
    with pytest.raises(NACError, match="of every class; there is none of 2"):
        run(method, (net, {**sets, "train": kept}))
    assert equal(before, snapshot(net))


def test_maps_are_asked_of_networks_that_have_them(toy):
    vit = VisionTransformer(32, 16, 2, 2, 12, 24, num_classes=5).eval()
    batches = in_batches(torch.randn(20, 3, 32, 32), torch.arange(20) % 5, 10)
    inputs = MethodInputs(vit, "toy", 5, batches, batches, None, progress=False)
    for method in ("rankfeat", "mds_ensemble"):
        with pytest.raises(Absent, match="reads feature maps .* VisionTransformer has no"):
            make(method).setup(inputs)
    scorer = make("gram")  # of its one convolution, as in OpenOOD
    scorer.setup(inputs)
    assert np.isfinite(scorer.score(batches).score).all()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5))
    inputs = MethodInputs(plain, "toy", 5, batches, batches, None, progress=False)
    with pytest.raises(Absent, match="Sequential has none"):
        make("gram").setup(inputs)


@pytest.mark.parametrize("method", ["odin", "iodin", "adascale_a"])
def test_methods_that_move_inputs(method):
    """Gray images and tables can be moved, token numbers and several tensors cannot."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 5))
    for x in (torch.randn(40, 1, 6, 6), torch.randn(40, 36)):
        batches = in_batches(x, torch.arange(40) % 5, 10)
        scorer = make(method)
        scorer.setup(MethodInputs(net, "toy", 5, batches, batches, None, progress=False))
        assert np.isfinite(scorer.score(batches).score).all()
    for other in (x.long(), (x, x)):
        batches = [(other, torch.arange(40) % 5)]
        inputs = MethodInputs(net, "toy", 5, batches, batches, None, progress=False)
        with pytest.raises(Absent, match="must be one tensor of floating"):
            make(method).setup(inputs)


def test_gram_refuses_what_does_not_fit_into_memory(toy, monkeypatch):
    inputs, _ = inputs_for("gram", toy)
    parts = "nac_openood.benchmark.methods.pytorch_ood._TrainingParts"
    monkeypatch.setattr(f"{parts}.__len__", lambda self: 10**9)
    with pytest.raises(NACError, match="GB for .* this machine has"):
        make("gram").setup(inputs)
