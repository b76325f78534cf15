"""Detector files with metadata and tensors that nobody of ours wrote: each error says what is wrong."""

import json

import pytest
import torch
from conftest import SmallNet
from safetensors import safe_open

from nac_openood import FileError, NACDetector, tensor_files
from nac_openood.detector.readings import Readings

LAYERS = ["layer1", "layer2"]


def pictures(n, seed):
    return torch.randn(n, 3, 9, 9, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", params=["nac", "nac_plus"])
def saved(request, tmp_path_factory):
    """(network, file, its tensors, its metadata) of a detector."""
    torch.manual_seed(0)
    net = SmallNet().eval()
    path = tmp_path_factory.mktemp("saved") / "x"
    detector = NACDetector(net, LAYERS, rule=request.param)
    detector.fit([(pictures(60, 1), torch.arange(60) % 4)]).calibrate([pictures(100, 2)]).save(path)
    tensors, about = tensor_files.read_tensors(path, "nac_openood detector", 2)
    return net, path, {n: t.clone() for n, t in tensors.items()}, json.dumps(about)


def changed(about, path, value):
    """The metadata with another value at a path such as `summary.n_samples`; None deletes it."""
    found = json.loads(about)
    *parents, last = path.split(".")
    place = found
    for name in parents:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value[0]
    return found


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("threshold", ["abc"], "'threshold' must be a number, got 'abc'"),
        ("threshold", [float("nan")], "'threshold' must be a finite number, got nan"),
        ("threshold", [float("inf")], "'threshold' must be a finite number, got inf"),
        ("threshold", [-float("inf")], "'threshold' must be a finite number, got -inf"),
        ("threshold", [True], "'threshold' must be a number, got True"),
        ("threshold", None, "'threshold' is missing"),
        ("settings.layers", [None], "'layers' must be settings by layer name, got None"),
        ("settings.layers", [{}], "'layers' must be settings by layer name, got {}"),
        ("settings", [[]], "'settings' must be an object with named entries"),
        ("rule", [3], "'rule' must be text, got 3"),
        ("rule", ["magic"], "unknown rule 'magic'"),
        ("network", ["x"], "'network' must be an object with named entries"),
        ("network.structure", None, "no 'structure' and 'weights'"),
        ("network.weights", [5], "'network.weights' must be text, got 5"),
        ("summary.n_samples", ["60"], "'summary.n_samples' must be a whole number, got '60'"),
        ("summary.n_samples", [-1], "n_samples must be at least 0, got -1"),
        ("summary.class_counts", [{"a": 1}], "class_counts' must be an object with whole numbers"),
        ("summary.class_counts", [{"0": 99}], "'class_counts' must be numbers of samples by class"),
        ("classes", ["abc"], "'classes' must be a list, got 'abc'"),
        ("classes", [[1]], r"'classes\[0\]' must be text, got 1"),
        ("notes", [{"a": 5}], "'notes.a' must be text, got 5"),
        ("strange", [1], "'strange' is unknown"),
    ],
)  # fmt: skip
def test_metadata(saved, tmp_path, path, value, told):
    net, _, tensors, about = saved
    changed_about = changed(about, path, value)
    tensor_files.write_tensors(tmp_path / "x", "nac_openood detector", 2, tensors, changed_about)
    with pytest.raises(FileError, match=rf"x is damaged: .*{told}.*Fit again"):
        NACDetector.load(tmp_path / "x", net)


def test_tensors(saved, tmp_path):
    net, _, tensors, about = saved
    scores = "calibration"
    strange = {**tensors, "strange": torch.zeros(3)}
    inside = {**tensors, "rule/strange": torch.zeros(3)}
    cases = [(strange, r"unknown tensor \['strange'\]"), (inside, r"unknown tensor \['strange'\]")]
    cases += [
        ({**tensors, scores: value}, told)
        for value, told in (
            (torch.arange(50), "must be torch.float32 with 1 dimensions, got torch.int64"),
            (torch.full((50,), torch.nan), "has NaN or Inf values"),
            (torch.zeros(3), "at least 16 held-out samples, got 3"),
            (torch.zeros(5, 10), "with 1 dimensions"),
        )
    ]
    for name in (n for n in tensors if n.endswith(("counts", "counts/layer1"))):
        counts = tensors[name]
        negative = counts.clone()
        negative[0, 0] -= 1000
        negative[0, 1] += 1000
        cases += [
            ({k: t for k, t in tensors.items() if k != name}, "is missing"),
            ({**tensors, name: counts.float()}, "must be torch.int32 with 2 dimensions"),
            ({**tensors, name: counts.flatten()}, "must be torch.int32 with 2 dimensions"),
            ({**tensors, name: counts * 2}, "do not add up"),
            ({**tensors, name: negative}, "do not add up"),
            ({**tensors, name: counts[:0].clone()}, "do not add up"),
        ]
    assert len(cases) >= 12
    for damaged, told in cases:
        tensor_files.write_tensors(
            tmp_path / "x", "nac_openood detector", 2, damaged, json.loads(about)
        )
        with pytest.raises(FileError, match=f"x is damaged: .*{told}"):
            NACDetector.load(tmp_path / "x", net)


def test_every_flipped_bit_is_noticed(saved, tmp_path):
    net, path, *_ = saved
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(FileError):
            NACDetector.load(tmp_path / "x", net)


def test_files_without_a_checksum_still_load(saved, tmp_path):
    from safetensors.torch import save_file

    net, path, tensors, _ = saved
    with safe_open(path, "pt") as opened:
        metadata = opened.metadata()
    early = {name: text for name, text in metadata.items() if name != "sha256"}
    save_file(tensors, tmp_path / "x", metadata=early)
    x = pictures(5, 3)
    found, expected = (NACDetector.load(p, net).score(x) for p in (tmp_path / "x", path))
    assert torch.equal(found, expected)
    save_file(tensors, tmp_path / "x", metadata={**early, "sha257": metadata["sha256"]})
    with pytest.raises(FileError, match="its metadata has the entries"):
        NACDetector.load(tmp_path / "x", net)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop("label"), "the tensor 'label' is missing"),
        (lambda t: t.pop("activation/layer1"), "'activation/layer1' must be floating-point"),
        (lambda t: t.update(label=t["label"][:3].clone()), "not of the same number of samples"),
        (lambda t: t.update(label=t["label"].float()), "'label' must be torch.int64"),
        (lambda t: t.update(logits=t["logits"].long()), "'logits' must be floating-point"),
        (lambda t: t.update({"gradient/layer1": t["logits"].clone()}), "has another shape than"),
        (lambda t: t.update(prediction=t["prediction"] + 9), "predictions or labels are not classes"),
        (lambda t: t.update(extra=torch.zeros(3)), r"unknown tensor \['extra'\]"),
    ],
)  # fmt: skip
def test_readings(tmp_path, small_net, change, told):
    NACDetector(small_net, LAYERS).read_loader([pictures(8, 1)], save_to=tmp_path / "x")
    tensors, about = tensor_files.read_tensors(tmp_path / "x", "nac_openood readings", 2)
    changed_tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(changed_tensors)
    tensor_files.write_tensors(tmp_path / "y", "nac_openood readings", 2, changed_tensors, about)
    with pytest.raises(FileError, match=f"y is damaged: .*{told}.*Make it again"):
        Readings.load(tmp_path / "y")
