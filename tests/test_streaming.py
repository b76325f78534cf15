"""Fitting on streams: one batch at a time, endless ones, and shards of WebDataset."""

import gc
import io
import itertools
from pathlib import Path

import pytest
import torch
from conftest import noise, same_fit
from PIL import Image
from test_docs import run_page
from torch.utils.data import DataLoader, IterableDataset

from nac_openood import LayerConfig, NACDetector, NACError
from nac_openood.core.reading import BatchReadings, Reading
from nac_openood.core.rule import rule_named

RULES = {"nac": {"avgpool": LayerConfig(), "layer1": LayerConfig()}, "nac_plus": ["layer1"]}


def batches(n, size=32, seed=0):
    return list(noise(n, seed, batch_size=size))


class Stream(IterableDataset):
    """Samples one by one; it counts how many were asked for."""

    def __init__(self, samples):
        self.samples, self.asked = samples, 0

    def __iter__(self):
        for sample in self.samples:
            self.asked += 1
            yield sample


def single(data):
    return ((x, int(y)) for images, labels in data for x, y in zip(images, labels))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("auto", [True, False])
def test_batch_by_batch_equals_fit(small_net, rule, auto):
    layers = "auto" if auto else RULES[rule]
    fitted = NACDetector(small_net, layers, rule=rule).fit(batches(200))
    det = NACDetector(small_net, layers, rule=rule)
    for batch in batches(200):
        assert det.partial_fit(batch) is det
    assert same_fit(det, fitted) and det.layers == fitted.layers
    assert det.fit_summary_.class_counts == dict.fromkeys(range(4), 50)


@pytest.mark.parametrize("rule", RULES)
def test_it_goes_on_after_fit_load_and_merge(small_net, rule, tmp_path):
    data = batches(320)
    det = NACDetector(small_net, RULES[rule], rule=rule).fit(data[:4])
    det.partial_fit(data[4]).save(tmp_path / "x")
    again = NACDetector.load(tmp_path / "x", small_net).partial_fit(data[5])
    again.merge(NACDetector(small_net, RULES[rule], rule=rule).fit(data[6:8]))
    for batch in data[8:]:
        again.partial_fit(batch)
    calibration = batches(120, seed=1)
    fitted = NACDetector(small_net, RULES[rule], rule=rule).fit(data)
    assert same_fit(again.calibrate(calibration), fitted.calibrate(calibration))
    again.partial_fit(data[0])
    assert again.threshold_ is None and again.pvalues_ is None and not again.calibrated_


@pytest.mark.parametrize("rule", RULES)
def test_a_bad_batch_changes_nothing(small_net, rule):
    images, labels = batches(64, 64)[0]
    det = NACDetector(small_net, RULES[rule], rule=rule)
    broken = images.clone()
    broken[3] = float("nan")
    with pytest.raises(NACError, match="1 of 64 samples of this batch have NaN or Inf.*nothing"):
        det.partial_fit((broken, labels))
    assert det.rule_ is None
    det.partial_fit((images, labels)).calibrate(batches(120, seed=1))
    before = {name: tensor.clone() for name, tensor in det.rule_.tensors().items()}
    for batch, message in {
        (broken, labels): "nothing of it was counted",
        (images, labels - 1): "labels must be in 0..3.*found -1",
        (images, labels[:5]): "one whole-number label for each of 64 samples",
    }.items():
        with pytest.raises(NACError, match=message):
            det.partial_fit(batch)
    after = det.rule_.tensors()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert det.fit_summary_.n_samples == 64 and det.threshold_ is not None


@pytest.mark.parametrize("labels", [True, False])
def test_an_endless_stream_is_read_as_far_as_needed(small_net, labels):
    data = batches(64)
    endless = Stream(s if labels else s[0] for s in itertools.cycle(list(single(data))))
    loader = DataLoader(endless, batch_size=10)
    det = NACDetector(small_net, ["avgpool"], rule="nac").fit(loader, n_samples=40)
    assert det.fit_summary_.n_samples == endless.asked == 40


@pytest.mark.parametrize("rule", RULES)
def test_the_state_does_not_grow_with_the_samples(rule):
    fitted = rule_named(rule)({"a": rule_named(rule).layer_settings()})
    draw = torch.Generator().manual_seed(0)
    sizes = {}
    for n in range(1000, 40_001, 1000):
        activation, gradient = torch.randn(2, 1000, 8, generator=draw).clamp(-3, 3)
        logits = torch.randn(1000, 4, generator=draw)
        fitted.update(BatchReadings(logits, {"a": Reading(activation, gradient)}))
        sizes[n] = sum(tensor.nbytes for tensor in fitted.tensors().values())
    assert fitted.n_samples == 40_000
    # NAC+ has set enough aside after 10,000 samples; files leave out empty cells
    assert sizes[40_000] < 1.02 * sizes[10_000]


# -- WebDataset ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three tar files of 20 images each, as WebDataset writes them."""
    wds = pytest.importorskip("webdataset")
    folder = tmp_path_factory.mktemp("shards")
    draw = torch.Generator().manual_seed(0)
    with wds.ShardWriter(str(folder / "train-%03d.tar"), maxcount=20, verbose=0) as writer:
        for number in range(60):
            pixels = torch.randint(0, 256, (9, 9, 3), generator=draw, dtype=torch.uint8)
            content = io.BytesIO()
            Image.fromarray(pixels.numpy()).save(content, "png")
            writer.write({"__key__": f"{number:04d}", "png": content.getvalue(), "cls": number % 4})
    return str(folder / "train-{000..002}.tar")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_the_page(shards, monkeypatch):
    monkeypatch.chdir(Path(shards).parent)
    names = run_page("scale.md", "Streaming")
    assert names["first"].fit_summary_.n_samples == 2 * 5 * 32
    assert names["det"].fit_summary_.n_samples == 60
    names.clear()
    gc.collect()
