"""The authors' scores, sample by sample, for a real network on real images."""

import json

import minibench
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from torch.utils.data import DataLoader, Subset

from nac_openood import NACDetector
from nac_openood.detector.batches import balanced_indices, dataset_labels

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def expected(bench):
    return json.loads((bench[0] / "expected.json").read_text())


@pytest.fixture(scope="module")
def detector(bench):
    folder, root = bench
    detector = NACDetector(minibench.trained(folder), "cifar10")
    return detector.fit(minibench.loader(root, "train_cifar10"), n_samples=1000)


@pytest.fixture(scope="module")
def in_distribution(bench, detector):
    return detector.score_loader(minibench.loader(bench[1], "test_cifar10"))


def test_the_fitting_set_is_the_authors(bench, expected, detector):
    labels = dataset_labels(minibench.loader(bench[1], "train_cifar10").dataset)
    assert balanced_indices(labels, 1000).tolist() == expected["fit_lines"]
    assert detector.fit_summary_.class_counts == dict.fromkeys(range(10), 100)
    for name, settings in expected["settings"].items():
        assert {k: getattr(detector.layers[name], k) for k in settings} == settings


def test_in_distribution_scores_and_accuracy(expected, in_distribution):
    difference = np.abs(in_distribution.score - expected["scores"]["cifar10"])
    assert difference.max() <= 2e-3
    accuracy = 100 * (in_distribution.prediction == in_distribution.label).mean()
    assert accuracy == pytest.approx(expected["accuracy"], abs=0.051)


@pytest.mark.parametrize("name", ["cifar100", "tin", "mnist", "svhn", "texture", "places365"])
def test_out_of_distribution_scores(bench, expected, detector, in_distribution, name):
    scores = detector.score_loader(minibench.loader(bench[1], f"test_{name}")).score
    assert np.abs(scores - expected["scores"][name]).max() <= 2e-3
    positive = np.concatenate([np.ones(len(in_distribution.score)), np.zeros(len(scores))])
    auroc = 100 * roc_auc_score(positive, np.concatenate([in_distribution.score, scores]))
    assert auroc == pytest.approx(expected["metrics"][name]["auroc"], abs=0.02)


def test_the_plan_agrees_too(bench, expected, detector):
    data = minibench.loader(bench[1], "test_cifar10").dataset
    first = DataLoader(Subset(data, range(300)), batch_size=100)
    fast = NACDetector(detector.net, "cifar10", fast=True)
    fast.fit(minibench.loader(bench[1], "train_cifar10"), n_samples=1000)
    difference = np.abs(fast.score_loader(first).score - expected["scores"]["cifar10"][:300])
    assert difference.max() <= 2e-3
