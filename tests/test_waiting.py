"""Nothing in a loop over batches makes the CPU wait for the device: counted on a pretended one."""

import copy

import numpy as np
import pytest
import torch
from conftest import SmallNet
from pretend import DEVICE, Device

from nac_openood import NACDetector
from nac_openood.core import RULES
from nac_openood.core.coverage import Coverage
from nac_openood.detector import readings as reader
from nac_openood.detector.readings import Readings

LAYERS = {"nac": ["avgpool", "layer3"], "nac_plus": ["layer1", "layer2"]}


def loader(n_batches, size=40):
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, 8, 8, generator=draw), torch.arange(size) % 4)
        for _ in range(n_batches)
    ]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return SmallNet().eval()


@pytest.fixture(params=sorted(RULES))
def rule(request):
    return request.param


@pytest.fixture
def streams(monkeypatch):
    """Events that do nothing: what runs on a GPU runs here, too."""
    monkeypatch.setattr(reader, "_copied_event", lambda device: Event([], 0))


def fitted(net, rule, n_batches=3, **options):
    detector = NACDetector(net, LAYERS.get(rule, LAYERS["nac"]), rule=rule, **options)
    return detector.fit(loader(n_batches)).calibrate(loader(n_batches))


def waits(net, rule, step, n_batches, **options):
    """How often a step waits for the device, by operation."""
    with Device() as device:
        there = copy.deepcopy(net).to(DEVICE)
        detector = NACDetector(there, LAYERS.get(rule, LAYERS["nac"]), rule=rule, **options)
        if step != "fit":
            detector.fit(loader(3)).calibrate(loader(3))
            detector.score(loader(1)[0][0])  # what is made once, for the first batch, is not meant
        device.waited.clear()
        getattr(detector, step)(loader(n_batches))
        return dict(device.waited)


@pytest.mark.parametrize("step", ["fit", "calibrate", "score_loader", "read_loader"])
def test_no_batch_waits_for_the_device(net, streams, rule, step):
    waits(net, rule, step, 3)  # fills caches
    assert waits(net, rule, step, 7) == waits(net, rule, step, 3)


def test_no_batch_waits_in_fast_passes(net, streams):
    waits(net, "nac", "fit", 3, fast=True)
    assert waits(net, "nac", "fit", 7, fast=True) == waits(net, "nac", "fit", 3, fast=True)


def test_a_detector_from_a_file_moves_to_the_device_once(net, tmp_path, rule):
    fitted(net, rule).save(tmp_path / "detector.safetensors")
    counted = []
    with Device() as device:
        there = copy.deepcopy(net).to(DEVICE)
        for n_batches in (3, 7):
            detector = NACDetector.load(tmp_path / "detector.safetensors", there)
            device.waited.clear()
            found = detector.score_loader(loader(n_batches))
            counted.append(dict(device.waited))
    assert counted[0] == counted[1]
    np.testing.assert_array_equal(found.score, fitted(net, rule).score_loader(loader(7)).score)


def test_fitting_goes_on_after_a_file_was_loaded(net, tmp_path, rule):
    first, *others = loader(4)
    NACDetector(net, LAYERS[rule], rule=rule).fit([first]).save(tmp_path / "x")
    with Device() as device:
        there = NACDetector.load(tmp_path / "x", copy.deepcopy(net).to(DEVICE))
        there.partial_fit(others[0])
        device.waited.clear()
        there.rule_.update(
            there._reader.read(others[1][0])
        )  # all that was loaded has been moved by now
        assert not device.waited["copy to the device"] and not device.waited["copy to the CPU"]
        there.partial_fit(others[2])
        mine = {name: tensor.cpu() for name, tensor in there.rule_.tensors().items()}
    theirs = NACDetector(net, LAYERS[rule], rule=rule).fit([first, *others]).rule_.tensors()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_the_code_for_devices_gives_the_numbers_of_the_cpu(net, rule):
    plain = fitted(net, rule, 4)
    with Device():
        pretended = fitted(copy.deepcopy(net).to(DEVICE), rule, 4)
        scores = pretended.score_loader(loader(2))
        readings = pretended.read_loader(loader(2))
        mine = {name: tensor.cpu() for name, tensor in pretended.rule_.tensors().items()}
    theirs = plain.rule_.tensors()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    np.testing.assert_array_equal(scores.score, plain.score_loader(loader(2)).score)
    assert pretended.threshold_ == plain.threshold_
    same(readings, plain.read_loader(loader(2)))


def same(mine, theirs):
    mine, theirs = mine._tensors(), theirs._tensors()
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert type(mine[name]) is torch.Tensor
        assert torch.equal(mine[name], tensor)


class Waits(Coverage):
    """NAC that looks at a number of each batch."""

    name = "waits"

    def update(self, readings, label=None):
        super().update(readings, label)
        assert float(readings["avgpool"].activation.max()) < 1e9


def test_a_rule_that_waits_is_found(net, monkeypatch):
    monkeypatch.setattr("nac_openood.core.rule.RULES", {**RULES, "waits": ("waits", Waits)})
    few, many = waits(net, "waits", "fit", 3), waits(net, "waits", "fit", 7)
    assert many["_local_scalar_dense"] - few.get("_local_scalar_dense", 0) >= 4


# -- copies while the device works ---------------------------------------------------------


class Event:
    """Notes when it was waited for."""

    def __init__(self, log, number):
        self.log, self.number = log, number

    def record(self):
        pass

    def synchronize(self):
        self.log.append(f"waited {self.number}")


def test_readings_are_waited_for_when_the_next_batch_is_queued(net, monkeypatch):
    log = []
    events = (Event(log, number) for number in range(1, 9))
    monkeypatch.setattr(reader, "_copied_event", lambda device: next(events))
    detector = fitted(net, "nac")

    def parts():
        for number, (x, y) in enumerate(loader(3, size=2), 1):
            log.append(f"queued {number}")
            yield Readings.of_pass(detector._reader.read(x), y)

    found = list(reader.on_cpu(parts()))
    assert log == ["queued 1", "queued 2", "waited 1", "queued 3", "waited 2", "waited 3"]
    monkeypatch.undo()
    same(Readings.concatenate(found), detector.read_loader(loader(3, size=2)))
