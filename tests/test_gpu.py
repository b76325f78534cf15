"""What people do to networks for speed: autocast, channels-last, torch.compile; and CUDA itself.

All of it runs on a CPU, too, except what is marked: that needs a CUDA device.
"""

import copy

import numpy as np
import pytest
import torch
from conftest import SmallNet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import NACDetector
from nac_openood.core import RULES
from nac_openood.core.reading import BatchReadings, Reading
from nac_openood.core.rule import rule_named
from nac_openood.errors import FileError, NACError

LAYERS = {"nac": ["avgpool", "layer3"], "nac_plus": ["layer1", "layer2"]}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_cuda(test):
    return pytest.mark.gpu(cuda(test))


@pytest.fixture(params=sorted(RULES))
def rule(request):
    return request.param


@pytest.fixture
def there(net):
    """The network on a GPU."""
    return copy.deepcopy(net).cuda()


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return SmallNet().eval()


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(1)
    return TensorDataset(torch.randn(120, 3, 8, 8), torch.arange(120) % 4)


def loader(data, **options):
    return DataLoader(data, batch_size=40, **options)


def fitted(net, rule, data, **options):
    detector = NACDetector(net, LAYERS[rule], rule=rule, **options)
    return detector.fit(loader(data)).calibrate(loader(data))


def assert_same(mine, theirs):
    """Two detectors learned the same, to the bit."""
    found, expected = mine.rule_.tensors(), theirs.rule_.tensors()
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name].cpu(), expected[name].cpu()), name
    assert mine.threshold_ == theirs.threshold_


# -- autocast ------------------------------------------------------------------------------


def test_the_callers_autocast_changes_nothing(net, data, rule):
    plain = fitted(net, rule, data)
    expected = plain.score_loader(loader(data)).score
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(data[:2][0]).dtype == torch.bfloat16  # it is on
        inside = fitted(net, rule, data)
        scores = inside.score_loader(loader(data)).score
        readings = inside.read_loader(loader(data))
    assert_same(inside, plain)
    np.testing.assert_array_equal(scores, expected)
    assert readings.logits.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_can_be_asked_for(net, data, rule, dtype):
    half = fitted(net, rule, data, autocast=dtype)
    readings = half.read_loader(loader(data))
    assert readings.logits.dtype == dtype
    for activation, gradient in readings.values():
        assert activation.dtype == torch.float32  # pooled and counted in single precision
        assert gradient is None or gradient.dtype == torch.float32
    exact = fitted(net, rule, data).score_loader(loader(data)).score
    scores = half.score_loader(loader(data)).score
    assert not np.array_equal(scores, exact)
    assert np.corrcoef(scores, exact)[0, 1] > 0.8
    with torch.autocast("cpu", enabled=False):  # and stays, whatever the caller does
        np.testing.assert_array_equal(half.score_loader(loader(data)).score, scores)


def test_a_file_keeps_the_precision(net, data, tmp_path):
    path = tmp_path / "half.safetensors"
    half = fitted(net, "nac", data, autocast=torch.bfloat16)
    half.save(path)
    loaded = NACDetector.load(path, net)
    assert loaded.autocast == torch.bfloat16
    x = data[:8][0]
    assert torch.equal(loaded.score(x), half.score(x))
    with pytest.raises(NACError, match="`autocast` must be"):
        NACDetector.from_rule(net, half.rule_, autocast="half")
    with pytest.raises(NACError, match="autocast=None and autocast=torch.bfloat16"):
        fitted(net, "nac", data).merge(half)


def test_a_damaged_precision_is_refused(net, data, tmp_path, monkeypatch):
    from nac_openood.detector import store

    monkeypatch.setitem(store.PRECISIONS, torch.bfloat16, "bfloat8")
    monkeypatch.setitem(store._DTYPES, "bfloat8", torch.bfloat16)
    fitted(net, "nac", data, autocast=torch.bfloat16).save(tmp_path / "bad.safetensors")
    monkeypatch.undo()
    with pytest.raises(FileError, match="damaged: 'autocast' must be one of .* got 'bfloat8'"):
        NACDetector.load(tmp_path / "bad.safetensors", net)


@pytest.mark.parametrize("wrong", [torch.float32, torch.int8, "bfloat16", True, []])
def test_other_precisions_are_refused(net, wrong):
    with pytest.raises(NACError, match="`autocast` must be torch.bfloat16, torch.float16 or None"):
        NACDetector(net, ["avgpool"], autocast=wrong)


# -- memory layout and compiled networks ---------------------------------------------------


def test_channels_last_networks_and_images(net, data, rule):
    last = copy.deepcopy(net).to(memory_format=torch.channels_last)
    images = data.tensors[0].contiguous(memory_format=torch.channels_last)
    expected = fitted(net, rule, data).score_loader(loader(data)).score
    batches = [(x, y) for x, y in zip(images.split(40), data.tensors[1].split(40))]
    detector = NACDetector(last, LAYERS[rule], rule=rule).fit(batches).calibrate(batches)
    # rounded differently, so that single neurons may be counted in the next bin
    np.testing.assert_allclose(detector.score_loader(batches).score, expected, atol=0.05, rtol=0.01)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_network_gives_the_same(net, data, rule, backend):
    plain = fitted(net, rule, data)
    compiled = torch.compile(copy.deepcopy(net), backend=backend)
    with torch.no_grad():
        compiled(data[:2][0])  # compiled for good, before anybody looks at its modules
    assert_same(fitted(compiled, rule, data), plain)


# -- CUDA ----------------------------------------------------------------------------------


def readings_of(rule, n=2000):
    """Readings as a network might give them, with dead neurons."""
    draw = torch.Generator().manual_seed(0)
    layers = {}
    for name in LAYERS[rule]:
        z, g = (torch.randn(n, 64, generator=draw) for _ in range(2))
        layers[name] = Reading(z.relu(), g * 1e-3)
    return BatchReadings(torch.randn(n, 4, generator=draw), layers)


def on(device, readings):
    moved = {
        name: Reading(activation.to(device), None if gradient is None else gradient.to(device))
        for name, (activation, gradient) in readings.items()
    }
    return BatchReadings(readings.logits.to(device), moved)


@on_cuda
def test_cuda_learns_what_the_cpu_learns_from_the_same_readings(rule):
    here, there = (rule_named(rule)(_settings(rule)) for _ in range(2))
    readings = readings_of(rule)
    here.update(readings)
    there.update(on("cuda", readings))
    mine, theirs = there.tensors(), here.tensors()
    for name in theirs:
        assert torch.equal(mine[name].cpu(), theirs[name]), name
    parts = there.parts(on("cuda", readings))
    for name, expected in here.parts(readings).items():
        torch.testing.assert_close(parts[name].cpu(), expected, rtol=1e-9, atol=1e-9)


def _settings(rule):
    kind = rule_named(rule).layer_settings
    return {name: kind() for name in LAYERS[rule]}


@on_cuda
@pytest.mark.parametrize("pinned", [False, True])
def test_cuda_fits_and_scores(net, there, data, rule, pinned):
    detector = NACDetector(there, LAYERS[rule], rule=rule)
    batches = loader(data, pin_memory=pinned)
    scores = detector.fit(batches).calibrate(batches).score_loader(batches)
    expected = fitted(net, rule, data).score_loader(loader(data))
    assert np.corrcoef(scores.score, expected.score)[0, 1] > 0.99
    np.testing.assert_array_equal(scores.label, expected.label)


@on_cuda
def test_fitting_goes_on_on_cuda_after_a_file_was_loaded(there, data, rule, tmp_path):
    first, second, third = loader(data)
    NACDetector(there, LAYERS[rule], rule=rule).fit([first]).save(tmp_path / "x")
    again = NACDetector.load(tmp_path / "x", there).partial_fit(second).partial_fit(third)
    assert_same(again, NACDetector(there, LAYERS[rule], rule=rule).fit(loader(data)))


@on_cuda
def test_cuda_under_autocast(there, data, rule):
    plain = fitted(there, rule, data)
    with torch.autocast("cuda", dtype=torch.float16):
        assert_same(fitted(there, rule, data), plain)
    half = fitted(there, rule, data, autocast=torch.float16)
    assert half.read_loader(loader(data)).logits.dtype == torch.float16


@on_cuda
def test_cuda_does_not_wait_between_batches(there, data, rule):
    detector = fitted(there, rule, data)
    detector.score_loader(loader(data))
    batches = [(x.cuda(), y) for x, y in loader(data)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        detector.rule_.parts(detector._reader.read(batches[0][0]))
        detector.rule_.update(detector._reader.read(batches[1][0]), batches[1][1])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_cuda
def test_data_parallel_and_compiled_networks_on_cuda(there, data):
    plain = fitted(there, "nac", data)
    assert_same(fitted(nn.DataParallel(there), "nac", data), plain)
    assert_same(fitted(torch.compile(there, backend="eager"), "nac", data), plain)
