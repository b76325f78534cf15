"""Exported programs of all kinds of networks: ONNX Runtime and torch.export give what Python gives."""

import json
import os

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from conftest import noise
from interruptions import small_files
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from nac_openood import LayerConfig, NACDetector, NACError, NotFittedError
from nac_openood.detector.export import DetectorProgram
from nac_openood.errors import FileError
from nac_openood.sources.networks import SmallResNet

FORMATS = (".pt2", ".onnx")


def fitted(net, size=(3, 32, 32), **options):
    options = {"layers": "auto", "rule": "nac_plus", **options}
    detector = NACDetector(net.eval(), **options).fit(noise(128, 0, size))
    return detector.calibrate(noise(112, 1, size))


def opened(path):
    """An exported program: from a batch to its outputs by name."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(x):
        found = session.run(None, {"image": x.numpy()})
        return {name: torch.from_numpy(array) for name, array in zip(names, found)}

    return run


def check_equal(found, detector, x, most_apart):
    """Equal to 1e-5, except for `most_apart` samples at most.

    Another runtime rounds a float32 network differently, which moves a few samples across an edge
    of a bin, or from one step of a p-value to the next.
    """
    expected = detector.judge(x)
    broken = expected.score.isnan()
    assert torch.equal(found["score"].isnan(), broken)
    assert torch.equal(found["p_value"].isnan(), broken) and found["decision"][broken].all()
    with torch.no_grad():
        assert torch.allclose(found["logits"], detector.net(x), atol=1e-5, equal_nan=True)
    apart = torch.zeros(len(x), dtype=torch.bool)
    for name in ("score", "p_value"):
        wanted = getattr(expected, name)
        apart |= (found[name] - wanted).abs() > 1e-5 * wanted.abs().clamp(min=1)
    assert apart.sum() <= most_apart
    same = found["decision"] == expected.out()
    assert same[~apart].all()


# -- networks -----------------------------------------------------------------------------


def small_resnet():
    return SmallResNet(4)


def torchvision_resnet():
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4)


def timm_vit():
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=4,
    )  # fmt: skip


def check_same_function(detector, images):
    """Before another runtime rounds anything, what is exported is the detector to the last bits."""
    expected = detector.judge(images)
    program = DetectorProgram(detector, alpha=0.05, portable=True)
    with torch.no_grad():
        found = program(images)
    for name in ("score", "p_value"):
        wanted = getattr(expected, name)
        assert torch.allclose(found[name], wanted, rtol=0, atol=1e-12, equal_nan=True), name
    assert torch.equal(found["decision"], expected.out())


@pytest.mark.parametrize(
    ("build", "layers"),
    [
        (small_resnet, ["layer3"]),
        (torchvision_resnet, ["avgpool", "layer2"]),
        (timm_vit, ["blocks.2.norm2"]),
    ],
)
def test_programs_equal_the_detector(build, layers, tmp_path):
    torch.manual_seed(0)
    net = build()
    with torch.no_grad():
        for module in net.modules():  # random weights that tell samples apart
            if isinstance(module, nn.Linear):
                module.weight.mul_(5)
    detector = fitted(net, layers=layers)
    images = torch.cat([x for x, _ in noise(60, 2, (3, 32, 32))])
    images[30:] *= 3  # some of them unusual
    images[7, 0, 0, 0] = float("nan")
    check_same_function(detector, images)
    for suffix in FORMATS:
        path = tmp_path / f"detector{suffix}"
        detector.export(path, images[:4])
        program = opened(path)
        check_equal(program(images), detector, images, 0 if suffix == ".pt2" else 1)
        assert len(program(images[:1])["score"]) == 1  # any batch size


# -- a table, in double precision ----------------------------------------------------------


class Table(nn.Module):
    """A classifier of tables in double precision, in which rounding moves no sample."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 40), nn.Linear(40, 24)
        self.head = nn.Linear(24, 4)
        self.double()

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


@pytest.fixture(scope="module")
def table():
    torch.manual_seed(0)
    return fitted(Table(), (12,))


@pytest.fixture(scope="module")
def samples():
    return torch.cat([x for x, _ in noise(400, 2, (12,))]) * torch.linspace(0.2, 4, 400)[:, None]


@pytest.fixture(scope="module")
def level(table, samples):
    """A p-value that some sample has, and that float32 rounds down."""
    p = table.p_value(samples)
    return float(p[(p > 0.2) & (p < 0.5) & (p.float().double() < p)][0])


@pytest.fixture(scope="module")
def table_onnx(table, level, tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "detector.onnx"
    table.classes_ = ("a", "b", "c", "é")
    table.export(path, alpha=level)  # without an example: the detector has seen one
    return path


def test_the_arithmetic_is_that_of_python(table, table_onnx, samples, level):
    found, expected = opened(table_onnx)(samples.double()), table.judge(samples)
    assert torch.allclose(found["score"], expected.score, rtol=1e-8, atol=1e-8)
    assert torch.allclose(found["p_value"], expected.p_value, rtol=1e-8, atol=0)
    assert torch.equal(found["decision"], expected.out(level))
    # the exporter must not round `alpha` to float32, or this one would be in
    assert found["decision"][expected.p_value == level].all()
    assert 0 < found["decision"].double().mean() < 1


@pytest.mark.parametrize(
    ("how", "suffix"), [({"confidence": 0.9}, ".pt2"), ({"per_class": True}, ".onnx")]
)
def test_programs_keep_how_a_detector_was_calibrated(samples, tmp_path, how, suffix):
    torch.manual_seed(0)
    detector = fitted(Table(), (12,)).calibrate(noise(400, 5, (12,)), **how)
    detector.export(tmp_path / f"x{suffix}")
    found = opened(tmp_path / f"x{suffix}")(samples.double())
    check_equal(found, detector, samples.double(), 0 if suffix == ".pt2" else 1)


def test_the_file_tells_about_the_detector(table, table_onnx, level, tmp_path):
    session = onnxruntime.InferenceSession(table_onnx, providers=["CPUExecutionProvider"])
    assert [i.shape for i in session.get_inputs()] == [["batch", 12]]
    about = json.loads(session.get_modelmeta().custom_metadata_map["nac_openood"])
    assert about["classes"] == ["a", "b", "c", "é"] and about["alpha"] == level
    assert about["rule"] == "nac_plus" and about["layers"] == list(table.layers)
    assert about["inputs"]["shape"] == [[12, 12]]
    extra = {"nac_openood": ""}
    table.export(tmp_path / "x.pt2")
    loaded = torch.export.load(tmp_path / "x.pt2", extra_files=extra)
    assert json.loads(extra["nac_openood"]) == {**about, "alpha": 0.05}
    # no graph is recorded for those who only want answers
    assert not loaded.module()(torch.zeros(2, 12).double())["score"].requires_grad


def test_reference_nac_without_gradients(tmp_path):
    torch.manual_seed(0)
    settings = {"second": LayerConfig(state="output", steepness=0.5)}
    detector = fitted(Table(), (12,), layers=settings, rule="nac")
    detector.export(tmp_path / "x.onnx")
    x = torch.cat([x for x, _ in noise(50, 2, (12,))])
    assert torch.allclose(opened(tmp_path / "x.onnx")(x.double())["score"], detector.score(x))


# -- refusals ------------------------------------------------------------------------------


def test_what_cannot_be_exported_says_why(small_net, images, tmp_path):
    calibrated = fitted(small_net, (3, 9, 9), layers=["avgpool", "layer3"], rule="nac")
    with pytest.raises(NACError, match=r"'nac'.*gradients of the layers \['avgpool', 'layer3'\]"):
        calibrated.export(tmp_path / "x.onnx", images)
    fresh = NACDetector(small_net, "auto", rule="nac_plus")
    with pytest.raises(NotFittedError, match="not fitted: call fit"):
        fresh.export(tmp_path / "x.onnx", images)
    fresh.fit(noise(60, 0, (3, 9, 9)))
    with pytest.raises(NotFittedError, match=r"call calibrate\(loader\) with held-out"):
        fresh.export(tmp_path / "x.onnx", images)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments(table, tmp_path):
    with pytest.raises(NACError, match=r"ends in \.onnx .* or \.pt2"):
        table.export(tmp_path / "x.pt")
    with pytest.raises(NACError, match="`alpha` must lie between 0 and 1, got 5"):
        table.export(tmp_path / "x.onnx", alpha=5)
    with pytest.raises(NACError, match="`example` to be a batch.* got ndarray"):
        table.export(tmp_path / "x.onnx", np.zeros((2, 12)))
    table.save(tmp_path / "x")
    loaded = NACDetector.load(tmp_path / "x", table.net)
    with pytest.raises(NACError, match="`example` to be a batch.* got NoneType"):
        loaded.export(tmp_path / "x.onnx")


class Fickle(Table):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Drawing(Table):
    """Draws even in evaluation mode, so that no two runs agree."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class Convolutions(nn.Sequential):
    def __init__(self):
        early = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        super().__init__(early, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
        self.double()


@pytest.mark.filterwarnings("ignore:the readings of a sample differ")
@pytest.mark.parametrize(
    ("make", "size", "name", "message"),
    [
        (Fickle, (12,), "x.pt2", "PyTorch cannot export Fickle .*forward must do the same"),
        (Drawing, (12,), "x.pt2", "does not compute what the detector computes: logits"),
        (Convolutions, (3, 8, 8), "x.onnx", r"NOT_IMPLEMENTED.*net\.float\(\) or a \.pt2"),
    ],
)
def test_networks_that_cannot_be_exported(tmp_path, make, size, name, message):
    torch.manual_seed(0)
    detector = fitted(make(), size)
    (tmp_path / name).write_text("an older file")
    with pytest.raises(NACError, match=message):
        detector.export(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "an older file"


def test_onnx_must_be_installed(table, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(NACError, match=r"needs onnxscript.*nac-openood\[export\]"):
        table.export(tmp_path / "x.onnx")


@pytest.mark.skipif(os.name != "posix", reason="needs limits of files")
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_disk_that_is_nearly_full(table, tmp_path, suffix):
    message = f"cannot write .*x{suffix}: File too large"
    with pytest.raises(FileError, match=message), small_files(1000):
        table.export(tmp_path / f"x{suffix}")
    assert not list(tmp_path.iterdir())
