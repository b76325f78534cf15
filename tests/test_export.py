"""Exported programs: ONNX Runtime and torch.export give what Python gives."""

import json
import os

import numpy as np
import onnxruntime
import pytest
import torch
from exported import data, fitted, opened
from interruptions import small_files
from torch import nn

from nac_openood import LayerConfig, NACDetector, NACError, NotFittedError
from nac_openood.errors import FileError


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
    return torch.cat([x for x, _ in data(400, 2, (12,))]) * torch.linspace(0.2, 4, 400)[:, None]


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


def test_the_file_tells_about_the_detector(table, table_onnx, level, tmp_path):
    session = onnxruntime.InferenceSession(table_onnx, providers=["CPUExecutionProvider"])
    assert [i.shape for i in session.get_inputs()] == [["batch", 12]]
    about = json.loads(session.get_modelmeta().custom_metadata_map["nac_openood"])
    assert about["classes"] == ["a", "b", "c", "é"] and about["alpha"] == level
    assert about["rule"] == "nac_plus" and about["layers"] == list(table.layers)
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
    x = torch.cat([x for x, _ in data(50, 2, (12,))])
    assert torch.allclose(opened(tmp_path / "x.onnx")(x.double())["score"], detector.score(x))


# -- refusals ------------------------------------------------------------------------------


def test_what_cannot_be_exported_says_why(small_net, images, tmp_path):
    calibrated = fitted(small_net, (3, 9, 9), layers=["avgpool", "layer3"], rule="nac")
    with pytest.raises(NACError, match=r"'nac'.*gradients of the layers \['avgpool', 'layer3'\]"):
        calibrated.export(tmp_path / "x.onnx", images)
    fresh = NACDetector(small_net, "auto", rule="nac_plus")
    with pytest.raises(NotFittedError, match="not fitted: call fit"):
        fresh.export(tmp_path / "x.onnx", images)
    fresh.fit(data(60, 0, (3, 9, 9)))
    with pytest.raises(NotFittedError, match=r"call calibrate\(loader\) with at least 16"):
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


@pytest.mark.parametrize(
    ("make", "size", "name", "told"),
    [
        (Fickle, (12,), "x.pt2", "PyTorch cannot export Fickle .*forward must do the same"),
        (Drawing, (12,), "x.pt2", "does not compute what the detector computes: logits"),
        (Convolutions, (3, 8, 8), "x.onnx", r"NOT_IMPLEMENTED.*net\.float\(\) or a \.pt2"),
    ],
)
def test_networks_that_cannot_be_exported(tmp_path, make, size, name, told):
    torch.manual_seed(0)
    detector = fitted(make(), size)
    (tmp_path / name).write_text("an older file")
    with pytest.raises(NACError, match=told):
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
    told = f"cannot write .*x{suffix}: File too large"
    with pytest.raises(FileError, match=told), small_files(1000):
        table.export(tmp_path / f"x{suffix}")
    assert not list(tmp_path.iterdir())
