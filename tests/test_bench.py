"""The authors' scores, sample by sample, for a real network on real images."""

import minibench
import numpy as np
import pytest
from conftest import percent

from nac_openood import NACDetector
from nac_openood.detector.batches import balanced_indices, dataset_labels

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def detector(bench, bench_readings):
    detector = NACDetector(minibench.trained(bench[0]), "cifar10")
    return detector.fit_readings(bench_readings(minibench.FITTING))


@pytest.fixture(scope="module")
def in_distribution(bench_readings, detector):
    readings = bench_readings("test_cifar10")
    return readings, detector.score_readings(readings).numpy()


def test_the_fitting_set_is_the_authors(bench, authors, detector):
    labels = dataset_labels(minibench.images(bench[1], "train_cifar10"))
    assert balanced_indices(labels, 1000).tolist() == authors["fit_lines"]
    assert detector.fit_summary_.n_samples == 1000
    for name, settings in authors["settings"].items():
        assert {k: getattr(detector.layers[name], k) for k in settings} == settings


@pytest.mark.parametrize("fast", [False, True])
def test_fitting_on_images_is_fitting_on_readings(bench, bench_readings, in_distribution, fast):
    """With a tenth of the images: `fit` chooses them itself, and reads what readings have."""
    folder, root = bench
    train = minibench.loader(root, "train_cifar10")
    by_images = NACDetector(minibench.trained(folder), "cifar10", fast=fast)
    by_images.fit(train, n_samples=100)
    assert by_images.fit_summary_.class_counts == dict.fromkeys(range(10), 10)
    chosen = balanced_indices(dataset_labels(train.dataset), 100)
    rows = np.isin(minibench.training_rows(train.dataset)[minibench.FITTING], chosen)
    by_readings = NACDetector(by_images.net, "cifar10")
    by_readings.fit_readings(bench_readings(minibench.FITTING).rows(rows))
    assert by_readings.fit_summary_.n_samples == 100
    test, _ = in_distribution
    difference = by_images.score_readings(test) - by_readings.score_readings(test)
    assert difference.abs().max() <= 1e-4


def test_in_distribution_scores_and_accuracy(authors, in_distribution):
    readings, scores = in_distribution
    assert np.abs(scores - authors["scores"]["cifar10"]).max() <= 2e-3
    if "accuracy" in authors:
        assert 100 * readings.accuracy == pytest.approx(authors["accuracy"], abs=0.051)


def test_scores_of_images_are_those_of_readings(bench, detector, in_distribution):
    readings, scores = in_distribution
    found = detector.score_loader(minibench.first(bench[1], "test_cifar10", 200))
    n = len(found.score)
    assert np.abs(found.score - scores[:n]).max() <= 1e-6
    assert found.prediction.tolist() == readings.prediction[:n].tolist()
    assert found.label.tolist() == readings.label[:n].tolist()


@pytest.mark.parametrize("name", ["cifar100", "tin", "mnist", "svhn", "texture", "places365"])
def test_out_of_distribution_scores(bench_readings, authors, detector, in_distribution, name):
    _, inside = in_distribution
    scores = detector.score_readings(bench_readings(f"test_{name}")).numpy()
    assert np.abs(scores - authors["scores"][name]).max() <= 2e-3
    reference = percent(authors["scores"]["cifar10"], authors["scores"][name])
    whole = "metrics" in authors  # of fewer images, a pair in another order counts more
    assert percent(inside, scores) == pytest.approx(reference, abs=0.02 if whole else 0.05)
    if whole:
        assert reference == pytest.approx(authors["metrics"][name]["auroc"], abs=1e-3)


def test_the_plan_agrees_too(bench, bench_readings, authors, detector):
    fast = NACDetector(detector.net, "cifar10", fast=True)
    fast.fit_readings(bench_readings(minibench.FITTING))
    found = fast.score_loader(minibench.first(bench[1], "test_cifar10", 300)).score
    assert np.abs(found - authors["scores"]["cifar10"][: len(found)]).max() <= 2e-3
