"""OpenOOD's numbers and its hyperparameter protocol, and what a method costs."""

import numpy as np
import pytest
import torch

from nac_openood.benchmark.methods.scorer import BatchScorer, MethodInputs, usable_points
from nac_openood.benchmark.methods.table import Method
from nac_openood.benchmark.run.cost import Meter, typical_rate
from nac_openood.benchmark.run.results import METRICS, metrics_by_set
from nac_openood.errors import NACError
from nac_openood.network.head import Head
from nac_openood.search.run import grid_points

# ---- metrics


def test_the_table_has_means_and_one_accuracy():
    scores = {"test": [3.0, 2, 1], "a": [0.0, 0.5], "b": [2.5, 0.0]}
    roles = {"test": "id", "a": "near", "b": "near"}
    table = metrics_by_set({n: np.array(s) for n, s in scores.items()}, roles, 66.0)
    assert list(table) == ["a", "b", "nearood"]  # no mean of nothing
    assert all(tuple(line) == METRICS for line in table.values())
    for metric in METRICS[:-1]:
        mean = (table["a"][metric] + table["b"][metric]) / 2
        assert table["nearood"][metric] == pytest.approx(mean)
    assert {line["ACC"] for line in table.values()} == {66.0}
    table = metrics_by_set({n: np.array(s) for n, s in scores.items()}, roles, None)
    assert all(tuple(line) == METRICS[:-1] for line in table.values())


# ---- the method table


# ---- sweep


def test_the_first_name_changes_fastest():
    points = grid_points({"a": [1, 2], "b": [10, 20], "c": [5]})
    assert [tuple(p.values()) for p in points] == [(1, 10, 5), (2, 10, 5), (1, 20, 5), (2, 20, 5)]
    assert all(list(p) == ["a", "b", "c"] for p in points)
    assert grid_points({"a": [[1, 2], [3]]}) == [{"a": [1, 2]}, {"a": [3]}]
    assert grid_points({}) == [{}]


class Toy(BatchScorer):
    """Scores ID samples by `inside[k]`, and OOD samples 0 and 1; `inside` is what is searched."""

    def __init__(self, inside):
        super().__init__(Method("toy", "Toy"), "toy", {})
        self.inside = inside

    def fit(self, inputs):
        return {}, {"k": list(self.inside)}

    def use(self, point):
        self.k = point["k"]

    def score_batch(self, x):
        score = torch.tensor(self.inside[self.k]) if x[0] else torch.tensor([0.0, 1.0])
        return score, torch.zeros(2, dtype=torch.int64)


def searched(inside):
    loaders = [[torch.ones(2)], [torch.ones(2)], [torch.zeros(2)]]
    return Toy(inside).setup(MethodInputs(torch.nn.Identity(), "toy", 2, *loaders, progress=False))


def test_the_first_of_the_best_points_wins():
    found = searched({3: [1.0, 0.0], 2: [1.5, 3.0], 1: [2.0, 3.0]})
    assert found.hyperparameters == {"k": 2}
    assert found.search == {"objective": "auroc", "auroc": 1.0, "points": 3}


def test_points_without_numbers_are_passed_over():
    points = {1: [np.nan, 2.0], 2: [0.5, 0.5], 3: [np.inf, 2.0]}
    assert searched(points).hyperparameters == {"k": 2}
    for nothing in ([np.nan, 2.0], [-1.0, -1.0]):  # nothing ranked right, as in OpenOOD
        with pytest.raises(NACError, match="toy: no hyperparameters rank any ID above any OOD"):
            searched({1: nothing, 2: nothing})


def usable(method, name, values, *, n_train=3, width=4):
    loaders = [[torch.zeros(n_train, width)]] * 3
    inputs = MethodInputs(Head(torch.nn.Linear(width, 2)), "toy", 2, *loaders)
    return [p[name] for p in usable_points(method, [{name: value} for value in values], inputs)]


@pytest.mark.parametrize(("width", "dims"), [(2048, [256, 1000]), (512, [256]), (128, [64])])
def test_vims_dimensions_leave_something(width, dims):
    assert usable("vim", "dim", [256, 1000], width=width) == dims


# ---- times


def test_one_disturbed_measurement_does_not_decide():
    calm = [(100, 0.1)] * 9
    assert typical_rate([*calm, (100, 5.0)]) == pytest.approx(0.001)
    # small sets hardly count
    assert typical_rate([(100, 0.1), (3, 3.0), (100, 0.1), (4, 4.0)]) == pytest.approx(0.001)


# ---- memory

_RESETS = Meter()._restart_peak() is not None
needs_peaks = pytest.mark.skipif(not _RESETS, reason="the system does not record peak memory")


@needs_peaks
def test_memory_of_a_block_is_seen_even_if_it_is_gone_at_the_end():
    np.ones(50_000_000)  # an earlier, higher peak is not this block's
    with Meter() as measured:
        block = np.ones(25_000_000)  # 200 MB, touched
        del block
    with Meter() as nothing:
        pass
    assert 150 < measured.peak_mb < 300 and 0 <= nothing.peak_mb < 50


def test_a_system_that_does_not_record_memory(monkeypatch):
    monkeypatch.setattr(Meter, "_restart_peak", lambda self: None)
    with Meter() as measured:
        pass
    assert measured.peak_mb is None and measured.seconds >= 0
