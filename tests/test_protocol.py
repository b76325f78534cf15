"""OpenOOD's numbers and its hyperparameter protocol, and what a method costs."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from nac_openood.bench import meter
from nac_openood.bench.meter import Meter
from nac_openood.bench.methods import METHODS, Absent, checked_methods
from nac_openood.bench.metrics import METRICS, accuracy, ood_metrics, table_of
from nac_openood.bench.scorer import Scored
from nac_openood.bench.sweep import best_point, grid, vim_dims
from nac_openood.errors import NACError


def scored(values, prediction=(), label=()):
    return Scored(np.asarray(values, float), np.asarray(prediction), np.asarray(label))


# ---- metrics


def test_numbers_by_hand():
    # of 4 x 4 pairs, 13 have the ID score above; OOD is caught at 95 % when 2 of 4 ID are lost
    found = ood_metrics(np.array([9.0, 8, 5, 3]), np.array([7.0, 2, 1, 4]))
    assert found["AUROC"] == pytest.approx(100 * 13 / 16)
    assert found["FPR@95"] == 50.0
    perfect = ood_metrics(np.array([2.0, 3]), np.array([0.0, 1]))
    assert perfect == {"FPR@95": 0.0, "AUROC": 100.0, "AUPR_IN": 100.0, "AUPR_OUT": 100.0}
    inverted = ood_metrics(np.array([0.0, 1]), np.array([2.0, 3]))
    assert inverted["AUROC"] == 0.0 and inverted["FPR@95"] == 100.0


def test_ties_count_half_and_constants_tell_nothing():
    found = ood_metrics(np.array([1.0, 2]), np.array([1.0, 0]))
    assert found["AUROC"] == pytest.approx(100 * 3.5 / 4)
    constant = ood_metrics(np.ones(3), np.ones(5))
    assert constant["AUROC"] == 50.0 and constant["FPR@95"] == 100.0
    # the area under the one step from (0, 1) to (1, share of positives)
    assert constant["AUPR_IN"] == pytest.approx(100 * (1 + 3 / 8) / 2)


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_auroc_is_scikit_learns_either_way_round(decimals):
    rng = np.random.default_rng(decimals)
    inside = rng.normal(1, 1, 70).round(decimals)
    outside = rng.normal(0, 1, 40).round(decimals)
    is_inside = np.r_[np.ones(70), np.zeros(40)]
    expected = 100 * roc_auc_score(is_inside, np.r_[inside, outside])
    assert ood_metrics(inside, outside)["AUROC"] == pytest.approx(expected, abs=1e-10)
    swapped = ood_metrics(outside, inside)["AUROC"]
    assert swapped == pytest.approx(100 - expected, abs=1e-10)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_counted(broken):
    with pytest.raises(NACError, match="finite scores, got NaN or Inf for 2 of 5 images"):
        ood_metrics(np.array([1.0, broken, 2]), np.array([broken, 0.0]))


def test_the_table_has_means_and_one_accuracy():
    inside = scored([3.0, 2, 1], [0, 1, 2], [0, 1, 1])
    assert accuracy(inside) == pytest.approx(200 / 3)
    near = {"a": scored([0.0, 0.5]), "b": scored([2.5, 0.0])}
    table = table_of(inside, near, {}, accuracy(inside))
    assert list(table) == ["a", "b", "nearood"]  # no mean of nothing
    assert all(tuple(line) == METRICS for line in table.values())
    for metric in METRICS[:-1]:
        mean = (table["a"][metric] + table["b"][metric]) / 2
        assert table["nearood"][metric] == pytest.approx(mean)
    assert {line["ACC"] for line in table.values()} == {accuracy(inside)}


def test_methods_are_known_by_name():
    assert len(METHODS) == 22 and list(METHODS)[-1] == "nac"
    assert checked_methods(["knn", "msp", "knn"]) == ["knn", "msp"]
    with pytest.raises(NACError, match=r"unknown methods \['kn'\]; there are openmax, msp"):
        checked_methods(["kn", "msp"])
    assert issubclass(Absent, NACError)


# ---- sweep


def test_the_first_name_changes_fastest():
    points = grid({"a": [1, 2], "b": [10, 20], "c": [5]})
    assert [tuple(p.values()) for p in points] == [(1, 10, 5), (2, 10, 5), (1, 20, 5), (2, 20, 5)]
    assert all(list(p) == ["a", "b", "c"] for p in points)
    assert grid({"a": [[1, 2], [3]]}) == [{"a": [1, 2]}, {"a": [3]}]
    assert grid({}) == [{}]


def test_the_first_of_the_best_points_wins():
    order = {1: [2.0, 3], 2: [1.5, 3], 3: [1.0, 0]}  # ID scores against OOD scores 0 and 1

    def validate(point):
        return np.array(order[point["k"]]), torch.tensor([0.0, 1.0])

    points = grid({"k": [3, 2, 1]})
    found = best_point(points, validate, progress=False)
    assert found.point == {"k": 2} and found.auroc == 1.0 and found.points == 3
    assert found.told() == {"objective": "auroc", "auroc": 1.0, "points": 3}


def test_points_without_numbers_are_passed_over():
    def validate(point):
        score = point["k"]
        return np.array([score, score]), np.array([0.0, 1.0])

    assert best_point(grid({"k": [np.nan, 0.5, np.inf]}), validate).point == {"k": 0.5}
    assert best_point(grid({"k": [np.nan]}), validate) is None
    assert best_point(grid({"k": [-1.0]}), validate) is None  # nothing ranked right, as in OpenOOD
    assert best_point([], validate) is None


def test_vims_dimensions_leave_something():
    assert vim_dims([256, 1000], 2048) == [256, 1000]
    assert vim_dims([256, 1000], 512) == [256]
    assert vim_dims([256, 1000], 256) == [128]
    assert vim_dims([256, 1000], 128) == [64]


# ---- meter


@pytest.mark.skipif(meter._resident() is None, reason="the system does not tell resident memory")
def test_memory_of_a_block_is_seen_even_if_it_is_gone_at_the_end():
    with Meter() as measured:
        block = np.ones(25_000_000)  # 200 MB, touched
        total = block.sum()
        del block
    assert total == 25_000_000
    assert 150 < measured.peak_mb < 2000
    assert 0 < measured.seconds < 600
    with Meter() as nothing:
        pass
    assert 0 <= nothing.peak_mb < 150 and nothing.seconds < measured.seconds + 60


def test_a_block_that_raises_is_measured_and_the_watcher_ends():
    measured = Meter()
    with pytest.raises(KeyError), measured:
        raise KeyError
    assert measured.seconds > 0
    assert measured._watcher is None or not measured._watcher.is_alive()


def test_a_system_that_does_not_tell_memory(monkeypatch):
    monkeypatch.setattr(meter, "_resident", lambda: None)
    with Meter() as measured:
        pass
    assert measured.peak_mb is None and measured.seconds >= 0
