"""What people do to networks for speed: autocast, channels-last, and devices.

That no batch makes the CPU wait for the device is counted on a pretended one. Only what is marked
needs a CUDA device.
"""

import copy

import numpy as np
import pytest
import torch
from conftest import noise, same_fit, same_rule
from pretend import DEVICE, Device
from torch import nn

from nac_openood import NACDetector
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.detector import readings as reader
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError

LAYERS = {
    "nac": ["avgpool", "layer3"],
    "nac_plus": {
        "layer1": LayoutConfig(),
        "layer2": LayoutConfig(),
        "avgpool": LayoutConfig(head_input=True),
    },
    "nac_plus_1": ["layer1", "layer2"],
}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_cuda(test):
    return pytest.mark.gpu(cuda(test))


@pytest.fixture(params=sorted(LAYERS))
def rule(request):
    return request.param


@pytest.fixture
def there(small_net):
    """The network on a GPU."""
    return copy.deepcopy(small_net).cuda()


def loader(n_batches=3, size=40):
    return list(noise(n_batches * size, 1, (3, 8, 8), batch_size=size))


def detector_of(net, rule, **options):
    return NACDetector(net, LAYERS[rule], rule=rule, **options)


def fitted(net, rule, batches=None, **options):
    batches = batches or loader()
    return detector_of(net, rule, **options).fit(batches).calibrate(batches)


def assert_same_readings(mine, reference):
    mine, reference = mine._tensors(), reference._tensors()
    assert mine.keys() == reference.keys()
    for name, tensor in reference.items():
        assert type(mine[name]) is torch.Tensor
        assert torch.equal(mine[name], tensor)


# -- autocast ------------------------------------------------------------------------------


def test_the_callers_autocast_changes_nothing(small_net, rule):
    plain = fitted(small_net, rule)
    expected = plain.score_loader(loader()).score
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert small_net(loader()[0][0]).dtype == torch.bfloat16  # it is on
        inside = fitted(small_net, rule)
        scores = inside.score_loader(loader()).score
        readings = inside.read_loader(loader())
    assert same_fit(inside, plain)
    np.testing.assert_array_equal(scores, expected)
    assert readings.logits.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_can_be_asked_for(small_net, rule, dtype):
    half = fitted(small_net, rule, autocast=dtype)
    readings = half.read_loader(loader())
    assert readings.logits.dtype == dtype
    for activation, gradient in readings.values():
        assert activation.dtype == torch.float32  # pooled and counted in single precision
        assert gradient is None or gradient.dtype == torch.float32
    exact = fitted(small_net, rule).score_loader(loader()).score
    scores = half.score_loader(loader()).score
    assert not np.array_equal(scores, exact)
    assert np.corrcoef(scores, exact)[0, 1] > 0.8
    with torch.autocast("cpu", enabled=False):  # and stays, whatever the caller does
        np.testing.assert_array_equal(half.score_loader(loader()).score, scores)


def test_a_file_keeps_the_precision(small_net, tmp_path):
    half = fitted(small_net, "nac", autocast=torch.bfloat16)
    half.save(tmp_path / "half.safetensors")
    loaded = NACDetector.load(tmp_path / "half.safetensors", small_net)
    assert loaded.autocast == torch.bfloat16
    x = loader()[0][0]
    assert torch.equal(loaded.score(x), half.score(x))
    with pytest.raises(NACError, match="autocast=None with one of .* autocast=torch.bfloat16"):
        fitted(small_net, "nac").merge(half)


@pytest.mark.parametrize("wrong", [torch.float32, "bfloat16", True])
def test_other_precisions_are_refused(small_net, wrong):
    with pytest.raises(NACError, match="`autocast` must be torch.bfloat16, torch.float16 or None"):
        NACDetector(small_net, ["avgpool"], rule="nac", autocast=wrong)


def test_channels_last_networks_and_images(small_net, rule):
    expected = fitted(small_net, rule).score_loader(loader()).score
    last = copy.deepcopy(small_net).to(memory_format=torch.channels_last)
    batches = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in loader()]
    found = fitted(last, rule, batches).score_loader(batches).score
    # rounded differently, so that single neurons may be counted in the next bin
    np.testing.assert_allclose(found, expected, atol=0.05, rtol=0.01)


# -- waiting for a pretended device --------------------------------------------------------


class Event:
    """Notes when it was waited for."""

    def __init__(self, log, number):
        self.log, self.number = log, number

    def record(self):
        pass

    def synchronize(self):
        self.log.append(f"waited {self.number}")


@pytest.fixture
def streams(monkeypatch):
    """Events that do nothing: what runs on a GPU runs here, too."""
    monkeypatch.setattr(reader, "_copied_event", lambda device: Event([], 0))


def waits(net, rule, step, n_batches, **options):
    """How often a step waits for the device, by operation."""
    with Device() as device:
        detector = detector_of(copy.deepcopy(net).to(DEVICE), rule, **options)
        if step != "fit":
            detector.fit(loader()).calibrate(loader())
            detector.score(loader(1)[0][0])  # what is made once, for the first batch, is not meant
        device.waited.clear()
        getattr(detector, step)(loader(n_batches))
        return dict(device.waited)


@pytest.mark.parametrize("step", ["fit", "calibrate", "score_loader", "read_loader"])
def test_no_batch_waits_for_the_device(small_net, streams, rule, step):
    for fast in (False, True) if step == "fit" else (False,):
        waits(small_net, rule, step, 3, fast=fast)  # fills caches
        few, many = (waits(small_net, rule, step, n, fast=fast) for n in (3, 7))
        assert few and many == few  # something is counted, but not by batch


def test_a_detector_from_a_file_moves_to_the_device_once(small_net, tmp_path, rule):
    fitted(small_net, rule).save(tmp_path / "detector.safetensors")
    counted = []
    with Device() as device:
        there = copy.deepcopy(small_net).to(DEVICE)
        for n_batches in (3, 3, 7):  # the first one fills caches
            detector = NACDetector.load(tmp_path / "detector.safetensors", there)
            device.waited.clear()
            found = detector.score_loader(loader(n_batches))
            counted.append(dict(device.waited))
    assert counted[1] == counted[2]
    expected = fitted(small_net, rule).score_loader(loader(7)).score
    np.testing.assert_array_equal(found.score, expected)


def test_fitting_goes_on_after_a_file_was_loaded(small_net, tmp_path, rule):
    first, second, third, fourth = loader(4)
    detector_of(small_net, rule).fit([first]).save(tmp_path / "x")
    with Device() as device:
        there = NACDetector.load(tmp_path / "x", copy.deepcopy(small_net).to(DEVICE))
        there.partial_fit(second)
        device.waited.clear()
        there.rule_.update(there._reader.read(third[0]))  # all that was loaded has been moved
        assert not device.waited["copy to the device"] and not device.waited["copy to the CPU"]
        there.partial_fit(fourth)
        assert same_rule(there.rule_, detector_of(small_net, rule).fit(loader(4)).rule_)


def test_the_code_for_devices_gives_the_numbers_of_the_cpu(small_net, rule):
    plain = fitted(small_net, rule)
    with Device():
        pretended = fitted(copy.deepcopy(small_net).to(DEVICE), rule)
        scores = pretended.score_loader(loader(2))
        readings = pretended.read_loader(loader(2))
        assert same_fit(pretended, plain)
    np.testing.assert_array_equal(scores.score, plain.score_loader(loader(2)).score)
    assert_same_readings(readings, plain.read_loader(loader(2)))


class Split(nn.Module):
    """A network whose last stage and head are on another device."""

    def __init__(self, net):
        super().__init__()
        self.first, self.last = (
            nn.Sequential(net.layer1, net.layer2),
            nn.Sequential(net.layer3, net.layer4, net.avgpool, nn.Flatten(), net.fc),
        )

    def forward(self, x):
        return self.last(self.first(x).to(next(self.last.parameters()).device))


def test_layers_may_be_on_several_devices(small_net):
    net = Split(small_net)
    plain = NACDetector(net, "auto").fit(loader()).calibrate(loader())
    assert len(plain.layers) > 1
    with Device():
        both = copy.deepcopy(net)
        both.last.to(DEVICE)
        there = NACDetector(both, plain.layers).fit(loader()).calibrate(loader())
        scores = there.score_loader(loader(2)).score
    np.testing.assert_array_equal(scores, plain.score_loader(loader(2)).score)


def test_readings_are_waited_for_when_the_next_batch_is_queued(small_net, monkeypatch):
    log = []
    events = (Event(log, number) for number in range(1, 9))
    monkeypatch.setattr(reader, "_copied_event", lambda device: next(events))
    detector = fitted(small_net, "nac")

    def parts():
        for number, (x, y) in enumerate(loader(3, size=2), 1):
            log.append(f"queued {number}")
            yield Readings.of_pass(detector._reader.read(x), y)

    found = list(reader.on_cpu(parts()))
    assert log == ["queued 1", "queued 2", "waited 1", "queued 3", "waited 2", "waited 3"]
    monkeypatch.undo()
    assert_same_readings(Readings.concatenate(found), detector.read_loader(loader(3, size=2)))


# -- CUDA ----------------------------------------------------------------------------------


@on_cuda
@pytest.mark.parametrize("pinned", [False, True])
def test_cuda_fits_and_scores(small_net, there, rule, pinned):
    batches = [(x.pin_memory() if pinned else x, y) for x, y in loader()]
    scores = fitted(there, rule, batches).score_loader(batches)
    expected = fitted(small_net, rule).score_loader(loader())
    assert np.corrcoef(scores.score, expected.score)[0, 1] > 0.99
    np.testing.assert_array_equal(scores.label, expected.label)


@on_cuda
def test_cuda_under_autocast(there, rule):
    plain = fitted(there, rule)
    with torch.autocast("cuda", dtype=torch.float16):
        assert same_fit(fitted(there, rule), plain)
    half = fitted(there, rule, autocast=torch.float16)
    assert half.read_loader(loader()).logits.dtype == torch.float16


@on_cuda
def test_cuda_does_not_wait_between_batches(there, rule):
    detector = fitted(there, rule)
    detector.score_loader(loader())
    batches = [(x.cuda(), y) for x, y in loader()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        detector.rule_.parts(detector._reader.read(batches[0][0]))
        detector.rule_.update(detector._reader.read(batches[1][0]), batches[1][1])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_cuda
def test_data_parallel_and_compiled_networks_on_cuda(there):
    plain = fitted(there, "nac")
    assert same_fit(fitted(nn.DataParallel(there), "nac"), plain)
    assert same_fit(fitted(torch.compile(there, backend="eager"), "nac"), plain)
