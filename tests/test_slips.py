"""Slips of people who use the package for the first time: each error says what to do."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from nac_openood import NACDetector, compare
from nac_openood.core.reading import Reading
from nac_openood.errors import NACError

ONE_IMAGE = r"leading dimension, x\[None\]"


@pytest.fixture
def detector(small_net, images, labels):
    return NACDetector(small_net, ["avgpool"], rule="nac").fit([(images, labels)])


def new(detector, layers=("avgpool",), **options):
    layers = layers if isinstance(layers, str) else list(layers)
    return NACDetector(detector.net, layers, **{"rule": "nac", **options})


def changed(detector, **attributes):
    vars(detector).update(attributes)
    return detector


def raw(x):
    return (x * 20).clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda d, x: d.score(x[0]), r"batch has shape \[3, 9, 9\].*" + ONE_IMAGE),
        (lambda d, x: new(d).fit([x[0]]), r"batch has shape \[3, 9, 9\].*" + ONE_IMAGE),
        (lambda d, x: new(d, "auto", rule="nac_plus").fit([x[0]]), ONE_IMAGE),
        (lambda d, x: d.score({"image": x[0]}), r"dict of image: shape \[3, 9, 9\].*" + ONE_IMAGE),
        (lambda d, x: new(d).fit(DataLoader(list(x), batch_size=None)), ONE_IMAGE),
        (lambda d, x: d.score(raw(x)), "dtype torch.uint8. Networks take images as floating-point"),
        (lambda d, x: new(d).fit([raw(x)]), r"pass x.float\(\) / 255, normalized as in training"),
        (lambda d, x: d.score([x[0], x[1]]), r"joined with torch.stack\(x\)"),
        (lambda d, x: d.fit((x, torch.zeros(24))), "expected a loader .* got tuple"),
        (lambda d, x: d.calibrate([(x, -torch.ones(24))]), "calibration data: labels must be in"),
        (lambda d, x: d.score(x, nonfinite="NaN"), "`nonfinite` must be 'raise' or 'nan'"),
        (lambda d, x: d.score_readings({"avgpool": x}), r"expected \(activation, gradient\)"),
        (lambda d, x: d.score_readings(None), "expected readings by layer name, got NoneType"),
        (
            lambda d, x: d.score_readings({"avgpool": Reading(x[:, 0, 0], x[:, 0, 0])}),
            "has 9 neurons here, and had 10 in the fit",
        ),
        (lambda d, x: d.calibrate([x]).drift(x, seed=-1), "`seed` must be at least 0"),
        (lambda d, x: d.calibrate([x]).monitor(seed="a"), "`seed` must be a whole number"),
        (lambda d, x: compare(None, train=x, id_val=x, test=x), "expected a network, or several"),
        (lambda d, x: d.fit([x], seed=-1), "`seed` must be at least 0"),
        (lambda d, x: new(d, [3]), r"expected names of layers, such as \['layer3'\].* got int"),
        (lambda d, x: NACDetector(d.net, 5), "expected names of layers.* got int"),
        (lambda d, x: NACDetector(d.net, output=1.5), "`output` must be a number or a name"),
        (lambda d, x: d.merge("a.nac"), "expected another NACDetector, got str"),
        (lambda d, x: d.save(None), "expected the name of a file, got None"),
        (lambda d, x: NACDetector.load("a\0b", d.net), "expected the name of a file, got 'a.x00b'"),
        (lambda d, x: d.save("a" * 300), "cannot write a*: File name too long"),
        (lambda d, x: changed(d, threshold_=float("nan")).predict(x), "`threshold_` must be a num"),
        (lambda d, x: changed(d, notes_={"n": 5}).save("x"), "`notes_` must be strings by name"),
        (lambda d, x: d.calibrate([x], tpr="0.9"), "`tpr` must lie between 0 and 1, got '0.9'"),
        (lambda d, x: d.calibrate([x]).judge(x).out("1"), "must lie between 0 and 1, got '1'"),
        (lambda d, x: d.calibrate([x]).false_alarms([x], [10]), "`levels` must lie between 0"),
        (lambda d, x: NACDetector(None, "auto", rule="nac"), "expected a network, a torch.nn"),
    ],
)
def test_slips(detector, images, use, message):
    with pytest.raises(NACError, match=message):
        use(detector, images)


def test_a_network_that_takes_uint8_is_let(small_net, images, labels):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net

        def forward(self, x):
            return self.net(x.float() / 255)

    x = raw(images)
    found = NACDetector(Normalized(), ["net.avgpool"], rule="nac").fit([(x, labels)])
    assert found.score(x).shape == (24,)


def test_samples_that_a_loader_leaves_out_are_not_fitted_on(small_net, images, labels):
    chosen = SubsetRandomSampler(range(12))
    loader = DataLoader(TensorDataset(images, labels), 4, sampler=chosen)
    found = NACDetector(small_net, ["avgpool"], rule="nac").fit(loader, 8)
    only = NACDetector(small_net, ["avgpool"], rule="nac").fit([images[:12]])
    assert set(found.fit_summary_.hashes) < set(only.fit_summary_.hashes)


@pytest.mark.parametrize("use", ["fit", "score_loader", "calibrate", "read_loader"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: TensorDataset(x, y),
        lambda x, y: x,
        lambda x, y: x.numpy(),
        lambda x, y: {"data": x, "label": y},
        lambda x, y: "images/train",
        lambda x, y: None,
    ],
)
def test_what_is_not_a_loader(detector, images, labels, use, make):
    wrong = make(images, labels)
    message = rf"expected a loader .* got {type(wrong).__name__}. Pass a list .*DataLoader\(data"
    with pytest.raises(NACError, match=message):
        getattr(detector, use)(wrong)


@pytest.mark.parametrize("rule", ["nac", "nac_plus"])
@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("imagnet", "no preset 'imagnet'.*there are .*'imagenet'.*and 'auto', which finds"),
        ("layer3", r"read the layer, pass a list: `layers=\['layer3'"),
    ],
)
def test_what_names_no_layers(small_net, rule, layers, message):
    with pytest.raises(NACError, match=message):
        NACDetector(small_net, layers, rule=rule)


def test_sizes_are_whole_numbers(small_net, images, labels):
    for n in (20.5, float("nan"), "20"):
        with pytest.raises(NACError, match="n_samples must be a whole number, got"):
            NACDetector(small_net, ["avgpool"], rule="nac").fit([(images, labels)], n_samples=n)
    for n in (20.0, np.int64(20)):
        found = NACDetector(small_net, ["avgpool"], rule="nac").fit([(images, labels)], n_samples=n)
        assert found.fit_summary_.n_samples == 20


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3, 9, 9)), "got ndarray"),
        ("cat.png", "got str"),
        (torch.zeros(0, 3, 9, 9), r"at least one sample, got shape \[0, 3, 9, 9\]"),
        (torch.tensor(1.0), r"at least one sample, got shape \[\]"),
        (None, "got NoneType"),
    ],
)
def test_what_is_not_a_batch(detector, small_net, x, message):
    for use in (detector.score, lambda x: NACDetector(small_net, ["avgpool"], rule="nac").fit([x])):
        with pytest.raises(NACError, match=message):
            use(x)


def test_other_failures_of_the_network_are_its_own(small_net, images, labels):
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net

        def forward(self, x):
            if x.max() > 100:
                raise ValueError("too bright")
            return self.net(x)

    detector = NACDetector(Strict(), ["net.avgpool"], rule="nac").fit([(images, labels)])
    with pytest.raises(ValueError, match="^too bright$"):
        detector.score(images + 1000)
