import gc

import numpy as np
import pytest
import torch
from test_probe import equal, snapshot
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import LayerConfig, NACDetector, NACError, NotFittedError, Readings, threshold_at
from nac_openood.core.layer_config import LayoutConfig

LAYERS = {
    "avgpool": LayerConfig(n_bins=20, full_count=3, steepness=10.0),
    "layer2": LayerConfig(n_bins=50, full_count=2, steepness=0.1),
}


@pytest.fixture
def loader(images, labels):
    return DataLoader(TensorDataset(images, labels), batch_size=7)


@pytest.fixture
def detector(small_net, loader):
    return NACDetector(small_net, LAYERS).fit(loader)


def test_loaders_of_every_kind_fit_the_same(small_net, images, labels, loader):
    expected = NACDetector(small_net, LAYERS).fit(loader).score(images)
    for other in (
        [{"data": images[:10], "label": labels[:10]}, {"data": images[10:], "label": labels[10:]}],
        [images.flip(0)],
        [[images]],
        [{"data": images}],
        iter([(images, labels.tolist(), "more")]),
        DataLoader(TensorDataset(images), batch_size=24, shuffle=True),
    ):
        assert torch.equal(NACDetector(small_net, LAYERS).fit(other).score(images), expected)


def test_fit_takes_a_balanced_subset(small_net, loader, images, labels):
    for source in (loader, [(images, labels)]):
        detector = NACDetector(small_net, LAYERS).fit(source, n_samples=9)
        assert detector.fit_summary_.n_samples == 8
        assert detector.fit_summary_.class_counts == {0: 2, 1: 2, 2: 2, 3: 2}
    unlabelled = NACDetector(small_net, LAYERS).fit([images], n_samples=9)
    assert unlabelled.fit_summary_.n_samples == 9


@pytest.mark.parametrize("rule", ["nac", "nac_plus"])
def test_a_fit_keeps_nothing_of_its_batches(small_net, images, labels, rule):
    alive = []

    def stream():
        for _ in range(120):
            alive.append(sum(isinstance(one, torch.Tensor) for one in gc.get_objects()))
            yield images[:8].clone(), labels[:8].clone()

    detector = NACDetector(small_net, ["layer2"], rule=rule).fit(stream())
    assert detector.fit_summary_.n_right == 120 * int(
        (detector.net(images[:8]).argmax(1) == labels[:8]).sum()
    )
    assert max(alive[60:]) <= max(alive[20:60]) + 5


def test_score_loader(detector, loader, images, labels):
    result = detector.score_loader(loader, progress=True)
    # a batch of another size may round differently inside the network, not in the counts
    np.testing.assert_allclose(result.score, detector.score(images).numpy(), atol=0.05)
    assert result.label.tolist() == labels.tolist()
    assert result.prediction.tolist() == detector.net(images).argmax(1).tolist()
    mean = (result.by_layer["avgpool"] + result.by_layer["layer2"]) / 2
    np.testing.assert_allclose(result.score, mean, rtol=1e-12)
    assert detector.score_loader([images]).label.tolist() == [-1] * 24


def test_readings_replace_the_network(detector, small_net, loader, tmp_path):
    readings = detector.read_loader(loader)
    readings.save(tmp_path / "readings.safetensors")
    again = Readings.load(tmp_path / "readings.safetensors")
    assert list(again) == list(LAYERS)
    assert again.n_samples == 24
    second = NACDetector(small_net, LAYERS).fit_readings(again)
    expected = detector.score_loader(loader).score
    np.testing.assert_array_equal(second.score_readings(again).numpy(), expected)
    plain = {name: (r.activation, r.gradient) for name, r in again.items()}
    third = NACDetector(small_net, LAYERS).fit_readings(plain)
    np.testing.assert_array_equal(third.score_readings(plain).numpy(), expected)


def test_a_fit_ends_the_calibration(detector, loader, images):
    assert detector.calibrate(loader).predict(images[:1]).shape == (1,)
    detector.fit(loader)
    with pytest.raises(NotFittedError, match="not calibrated: call calibrate"):
        detector.predict(images)


def test_thresholds_keep_what_they_promise():
    scores = np.arange(1, 101) / 100
    assert threshold_at(scores, 0.95) == 0.06
    assert threshold_at(scores, 1.0) == 0.01
    assert threshold_at([0.5], 0.01) == 0.5
    assert (scores >= threshold_at(scores, 0.07)).sum() == 7
    with pytest.raises(NACError, match="tpr must be above 0 and at most 1, got 95"):
        threshold_at(scores, 95)
    with pytest.raises(NACError, match="needs finite scores, got 2 with 1 not finite"):
        threshold_at([0.1, float("nan")])
    with pytest.raises(NACError, match="needs finite scores, got 0"):
        threshold_at([])


def test_unfitted_use_says_what_to_do(small_net, images, tmp_path):
    detector = NACDetector(small_net, LAYERS)
    for use in (
        lambda: detector.score(images),
        lambda: detector.score_loader([images]),
        lambda: detector.score_readings({}),
        lambda: detector.calibrate([images]),
        lambda: detector.predict(images),
        lambda: detector.save(tmp_path / "x"),
    ):
        with pytest.raises(NotFittedError, match="call fit first"):
            use()


@pytest.mark.parametrize(
    ("make", "n_samples", "message"),
    [
        (lambda x, y: [], None, "yielded no samples"),
        (lambda x, y: [(x, y)], 3, "less than one sample for each of the 4 classes"),
        (lambda x, y: DataLoader(TensorDataset(x, y)), 3, "for each of the 4 classes"),
        (lambda x, y: [(x, y)], 0, "n_samples must be at least 1, got 0"),
        (lambda x, y: [(x, y + 1)], None, r"labels must be in 0..3.*found 4"),
        (lambda x, y: [(x, y - 1)], None, "found -1.*-1 marks out-of-distribution"),
        (lambda x, y: [(x * float("nan"), y)], None, "24 of 24 fitting samples have NaN or Inf"),
    ],
)
def test_bad_fitting_data_is_named(small_net, images, labels, make, n_samples, message):
    detector = NACDetector(small_net, LAYERS)
    with pytest.raises(NACError, match=message):
        detector.fit(make(images, labels), n_samples)
    assert detector.rule_ is None


def test_a_failed_fit_keeps_the_earlier_one(detector, images):
    expected = detector.score(images)
    with pytest.raises(NACError):
        detector.fit([images * float("inf")])
    assert torch.equal(detector.score(images), expected)


def test_uneven_classes_are_reported(small_net, images, labels):
    few = [(images[labels < 3], labels[labels < 3])]
    message = "1 of the network's 4 classes are missing"
    with pytest.warns(UserWarning, match=f"{message} and 3 classes have fewer than 3 samples"):
        NACDetector(small_net, LAYERS).fit(few, n_samples=9)
    keep = (labels < 3) | (torch.arange(24) < 4)
    with pytest.warns(UserWarning, match="1 classes have fewer than 2 samples"):
        NACDetector(small_net, LAYERS).fit([(images[keep], labels[keep])], n_samples=8)


def test_not_finite_samples_raise_or_are_counted(detector, images):
    images = images.clone()
    images[3] = float("nan")
    with pytest.raises(NACError, match="1 of 24 samples have NaN or Inf readings"):
        detector.score(images)
    with pytest.raises(NACError, match="1 of 24 samples"):
        detector.score_loader([images])
    with pytest.warns(RuntimeWarning, match="1 of 24 samples .* their score is NaN"):
        assert detector.score(images, nonfinite="nan").isnan().nonzero().tolist() == [[3]]
    detector.threshold_ = 0.0
    with pytest.warns(RuntimeWarning, match="1 of 24"):
        assert detector.predict(images).tolist() == [True] * 3 + [False] + [True] * 20


def test_an_empty_loader_has_nothing_to_score(detector):
    with pytest.raises(NACError, match="yielded no batch"):
        detector.score_loader([])
    with pytest.raises(NACError, match="yielded no batch"):
        detector.read_loader([])


@pytest.mark.parametrize("end", ["normal", "error"])
def test_loops_leave_the_network_and_the_random_states_alone(small_net, images, labels, end):
    loader = DataLoader(TensorDataset(images, labels), batch_size=6, shuffle=True)
    detector = NACDetector(small_net, LAYERS).fit(loader)
    small_net.train()
    before = snapshot(small_net)
    if end == "normal":
        detector.fit(loader, n_samples=8).score_loader(loader)
        detector.read_loader(loader)
    else:
        for use in (detector.fit, detector.score_loader, detector.read_loader):
            with pytest.raises(NACError):
                use([images, "not a batch"])
    assert equal(before, snapshot(small_net))


# -- defaults ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "rule"),
    [
        ("auto", "nac_plus"),
        (["avgpool", "layer1"], "nac_plus"),
        ({"avgpool": LayoutConfig()}, "nac_plus"),
        ({"avgpool": LayerConfig()}, "nac"),
        ("cifar10", "nac"),
    ],
)
def test_the_rule_follows_from_the_layers(small_net, layers, rule):
    assert NACDetector(small_net, layers).rule == rule
    assert NACDetector(small_net).rule == "nac_plus"


@pytest.mark.parametrize(("n_classes", "used"), [(4, 1000), (60, 1200), (200, 1500)])
def test_fit_takes_a_thousand_samples_or_twenty_of_a_class(n_classes, used):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, n_classes))
    x, y = torch.randn(1500, 4), torch.arange(1500) % n_classes
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    detector = NACDetector(net.eval(), ["1"]).fit(loader)
    assert detector.fit_summary_.n_samples == used
    counts = detector.fit_summary_.class_counts.values()
    assert used == 1500 or set(counts) == {used // n_classes}
    assert detector.fit(loader, n_samples=None).fit_summary_.n_samples == 1500
    assert detector.fit([(x, y)]).fit_summary_.n_samples == 1500  # not indexable
