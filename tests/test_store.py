"""A detector's file: it gives the same answers again, and damage is noticed."""

import pytest
import torch
from conftest import SmallNet
from safetensors import safe_open
from safetensors.torch import save_file
from test_detector import LAYERS

from nac_openood import FileError, LayerConfig, NACDetector, tensor_files


@pytest.fixture(params=["nac", "nac_plus"])
def detector(small_net, images, request):
    layers = LAYERS if request.param == "nac" else list(LAYERS)
    detector = NACDetector(small_net, layers, rule=request.param)
    return detector.fit([(images, torch.arange(24) % 4)]).calibrate([images] * 5)


@pytest.fixture
def saved(detector, tmp_path):
    detector.save(tmp_path / "nac.safetensors")
    return tmp_path / "nac.safetensors"


def test_round_trip(detector, saved, small_net, images):
    again = NACDetector.load(saved, small_net)
    assert torch.equal(again.score(images), detector.score(images))
    assert torch.equal(again.predict(images), detector.predict(images))
    assert again.layers == detector.layers
    assert again.fit_summary_ == detector.fit_summary_
    assert again.threshold_ == detector.threshold_
    for wrapped in (torch.nn.DataParallel(small_net), torch.compile(small_net, backend="eager")):
        again = NACDetector.load(saved, wrapped)
        assert torch.equal(again.score(images), detector.score(images))


def test_other_weights_are_refused(saved, small_net):
    with torch.no_grad():
        small_net.fc.bias[0] += 1e-3
    with pytest.raises(FileError, match=r"another network: .*same architecture but other weights"):
        NACDetector.load(saved, small_net)
    with pytest.raises(FileError, match="other names, shapes or precision"):
        NACDetector.load(saved, SmallNet(n_classes=5))


@pytest.mark.parametrize("detector", ["nac"], indirect=True)
def test_other_layers_are_refused(saved, small_net):
    with pytest.raises(FileError, match=r"fitted with {'avgpool': .*'layer2': .*, not {'avg"):
        NACDetector.load(saved, small_net, layers=["avgpool"])
    other = {**LAYERS, "layer2": LayerConfig()}
    with pytest.raises(FileError, match=r"fitted with .*full_count=2.* not .*full_count=50"):
        NACDetector.load(saved, small_net, layers=other)
    NACDetector.load(saved, small_net, layers=LAYERS)


def test_files_that_are_not_ours(tmp_path, small_net):
    with pytest.raises(FileError, match="cannot read .*: No such file or directory"):
        NACDetector.load(tmp_path / "nowhere", small_net)
    path = tmp_path / "x"
    path.write_bytes(b"not safetensors")
    with pytest.raises(FileError, match="damaged or not a safetensors file"):
        NACDetector.load(path, small_net)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(FileError, match="holds something unknown, expected nac_openood detector"):
        NACDetector.load(path, small_net)


def test_a_newer_format_is_refused(tmp_path, small_net):
    tensor_files.write_tensors(tmp_path / "x", "nac_openood detector", 4, {}, {})
    with pytest.raises(FileError, match="format 4; this nac_openood reads up to 3. Upgrade"):
        NACDetector.load(tmp_path / "x", small_net)


@pytest.mark.parametrize("detector", ["nac"], indirect=True)
def test_files_of_version_1_still_load(detector, saved, small_net, images):
    tensors, about = tensor_files.read_tensors(saved, "nac_openood detector", 3)
    old = {**about, **about["settings"]}
    del old["rule"], old["settings"], old["calibration"]
    plain = {n.partition("/")[2]: t for n, t in tensors.items() if n.startswith("rule/")}
    tensor_files.write_tensors(saved, "nac_openood detector", 1, plain, old)
    again = NACDetector.load(saved, small_net)
    assert torch.equal(again.score(images), detector.score(images))
    assert again.threshold_ == detector.threshold_


def test_files_without_a_checksum_still_load(detector, saved, small_net, images):
    with safe_open(saved, "pt") as opened:
        metadata = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    checksum = metadata.pop("sha256")
    save_file(tensors, saved, metadata=metadata)
    again = NACDetector.load(saved, small_net)
    assert torch.equal(again.score(images), detector.score(images))
    save_file(tensors, saved, metadata={**metadata, "sha257": checksum})
    with pytest.raises(FileError, match="does not match its checksum"):
        NACDetector.load(saved, small_net)
