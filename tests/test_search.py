from dataclasses import replace
from functools import cache
from typing import Any

import openood_standin
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_metrics import fpr_at

from nac_openood import Coverage, LayerConfig, NACError, Reading, Readings
from nac_openood.core.metrics import auroc, fpr_in_at
from nac_openood.core.rule import combine
from nac_openood.detector.config import preset, presets
from nac_openood.search import STRATEGIES, Budget, default_guard, paper_space, run, search
from nac_openood.search.run import layer_candidates

AUTHORS = [(b, "resnet") for b in ("cifar10", "cifar100", "imagenet")] + [("imagenet", "vit")]
GRID_SIZES = dict(zip(AUTHORS, (256, 288, 576, 256)))


def readings(n, layers, seed, spread=1.0, neurons=7):
    """Random readings; a larger `spread` is less like what was fitted."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for depth, name in enumerate(layers):
        scale = spread * (0.02, 0.1, 1.0, 5.0)[depth % 4]
        activation = torch.rand(n, neurons + depth, generator=draw).relu()
        found[name] = Reading(activation, torch.randn(n, neurons + depth, generator=draw) * scale)
    return Readings(found, torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64))


def sets(layers, seed=0, n=60):
    return {
        "fit": readings(n, layers, seed),
        "id_val": readings(n - 10, layers, seed + 1),
        "ood_val": readings(n - 20, layers, seed + 2, spread=1.7),
    }


def points_of(layers, sweep):
    """Every joint point in the order of OpenOOD's sweep, in which the first list is fastest."""
    names = [(layer, key) for layer in layers for key in sweep.get(layer, {})]
    for values in openood_standin.combinations([sweep[layer][key] for layer, key in names]):
        changes: dict[str, dict[str, Any]] = {name: {} for name in layers}
        for (layer, key), value in zip(names, values):
            changes[layer][key] = value
        yield {name: replace(config, **changes[name]) for name, config in layers.items()}


def pairs_won(inside, outside):
    above, equal = inside[:, None] > outside, inside[:, None] == outside
    return (int(above.sum()) + int(equal.sum()) / 2) / above.numel()


def brute_force(layers, sweep, data, guard=None):
    """The first best point and its AUROC, by `Coverage` and `combine`."""

    @cache
    def part(name, config, role):
        coverage = Coverage({name: config})
        coverage.update(data["fit"])
        return coverage.parts(data[role])[name]

    def score(point, role):
        parts = {n: part(n, replace(c, weight=1.0), role) for n, c in point.items()}
        return combine(parts, point)

    best, highest = {}, -1.0
    for point in points_of(layers, sweep):
        if not any(c.weight for c in point.values()):
            continue
        inside, outside = score(point, "id_val"), score(point, "ood_val")
        value = pairs_won(inside, outside)
        if guard is not None and abs(pairs_won(score(point, "held_out"), inside) - 0.5) > guard:
            continue
        if value > highest:
            best, highest = point, value
    return best, highest


@pytest.mark.parametrize(("benchmark", "family"), AUTHORS)
def test_grid_is_brute_force_on_the_authors_grids(benchmark, family):
    config = preset(benchmark, family)
    data = sets(config.layers)
    found = search(**data, layers=config.layers, sweep=config.sweep, strategy="grid")
    point, value = brute_force(config.layers, config.sweep, data)
    assert found.evaluated == GRID_SIZES[benchmark, family]
    assert found.best.auroc == found.best.objective == value
    assert found.layers == point


SMALL = {"a": LayerConfig(), "b": LayerConfig(), "c": LayerConfig()}


@settings(max_examples=25)
@given(st.data(), st.integers(0, 10**6))
def test_grid_is_brute_force_on_any_lists(data, seed):
    def lists(*values):
        return st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)

    settings = {
        "n_bins": lists(4, 50, 51, 500),
        "full_count": lists(1, 2, 10),
        "steepness": lists(1, 30.0),
        "state": lists("output", "output*gradient", "gradient"),
        "weight": lists(0.0, 0.2, 0.6, 1),
    }
    one_layer = st.fixed_dictionaries({}, optional=settings)
    sweep = {name: data.draw(one_layer) for name in SMALL}
    few = sets(SMALL, seed, n=24)
    if all(lists.get("weight") == [0.0] for lists in sweep.values()):
        return
    found = search(**few, layers=SMALL, sweep=sweep, strategy="grid")
    point, value = brute_force(SMALL, sweep, few)
    assert found.best.auroc == value
    assert found.layers == {name: c for name, c in point.items() if c.weight > 0}


SWEEP: dict[str, dict[str, Any]] = {
    name: {"n_bins": (50, 500), "full_count": (1, 5, 20), "weight": (1.0, 0.4)} for name in SMALL
}


def test_many_blocks_and_pieces_change_nothing(monkeypatch):
    data = sets(SMALL)
    whole = search(**data, layers=SMALL, sweep=SWEEP, strategy="grid", top=50)
    monkeypatch.setattr(run, "_BLOCK", 37)
    monkeypatch.setattr("nac_openood.search.tables._PIECE", 300)
    in_slices = Readings.batches
    monkeypatch.setattr(Readings, "batches", lambda self, size=7: in_slices(self, size))
    assert search(**data, layers=SMALL, sweep=SWEEP, strategy="grid", top=50) == whole
    values = [candidate.objective for candidate in whole.ranking]
    assert values == sorted(values, reverse=True)
    assert len({str(c.layers) for c in whole.ranking}) == len(values) == 50


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_numbers_are_those_of_a_fitted_detector(strategy):
    data, held = sets(SMALL), readings(40, SMALL, 9)
    found = search(
        **data, layers=SMALL, sweep=SWEEP, held_out=held, strategy=strategy, leave_out=True,
        budget=Budget(points=300, restarts=4), top=5,
    )  # fmt: skip
    for candidate in (*found.ranking, *found.landscape[::5]):
        coverage = Coverage(candidate.layers)
        coverage.update(data["fit"])
        inside, outside = coverage.score(data["id_val"]), coverage.score(data["ood_val"])
        assert candidate.auroc == float(auroc(inside, outside))
        assert candidate.fpr95 == float(fpr_at(inside, outside))
        assert candidate.fpr95_in == float(fpr_in_at(inside, outside))
        assert candidate.guard == float(auroc(coverage.score(held), inside))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_seed_same_result_with_any_number_of_threads(strategy, one_thread):
    data = {**sets(SMALL), "layers": SMALL, "sweep": SWEEP, "strategy": strategy, "seed": 3}
    budget = Budget(points=5000, restarts=5)
    alone = search(**data, budget=budget)
    torch.set_num_threads(2)  # `one_thread` sets it back
    assert search(**data, budget=budget) == alone


def test_random_stops_in_time(monkeypatch):
    monkeypatch.setattr(run, "_BLOCK", 10)
    budget = Budget(points=10**9, seconds=0.2)
    found = search(**sets(SMALL), layers=SMALL, sweep=SWEEP, strategy="random", budget=budget)
    assert 10 <= found.evaluated < 10**6


def test_layerwise_lies_between_the_best_layer_and_the_exact_optimum():
    data = sets(SMALL)
    exact = search(**data, layers=SMALL, sweep=SWEEP, strategy="grid", leave_out=True)
    found = search(**data, layers=SMALL, sweep=SWEEP, strategy="layerwise")
    alone = max(point.auroc for point in found.landscape)
    assert alone <= found.best.auroc <= exact.best.auroc
    assert found.evaluated < exact.evaluated


def test_ties_go_to_the_first_point_in_any_strategy():
    """Dead neurons are all in one bin: every candidate scores every sample the same."""
    zeros = {name: Reading(torch.zeros(9, 3), torch.zeros(9, 3)) for name in SMALL}
    dead = Readings(zeros, torch.zeros(9, dtype=torch.int64), torch.zeros(9, dtype=torch.int64))
    for strategy in ("grid", "layerwise"):
        found = search(dead, dead, dead, layers=SMALL, sweep=SWEEP, strategy=strategy)
        assert found.best.auroc == 0.5
        assert found.layers == {n: LayerConfig(n_bins=50, full_count=1) for n in SMALL}


def test_of_equal_points_the_one_that_openood_visits_first_wins():
    """Two layers whose scores are the same: (0, 1) and (1, 0) tie, and OpenOOD sees (1, 0) first."""
    layers = {"a": LayerConfig(), "b": LayerConfig()}
    same = {k: replace(r, by_layer={"a": r["a"], "b": r["a"]}) for k, r in sets(["a"]).items()}
    sweep = {name: {"full_count": [1, 9]} for name in layers}
    ranking = search(**same, layers=layers, sweep=sweep, strategy="grid").ranking
    counts = [tuple(c.full_count for c in found.layers.values()) for found in ranking]
    assert counts.index((9, 1)) + 1 == counts.index((1, 9))
    assert brute_force(layers, sweep, same)[0] == dict(ranking[0].layers)


@pytest.mark.parametrize("objective", ["fpr95", "mean"])
def test_other_objectives(objective):
    data = sets(SMALL)
    found = search(**data, layers=SMALL, sweep=SWEEP, strategy="grid", objective=objective, top=999)
    for candidate in found.ranking:
        kept = 1 - candidate.fpr95
        mean = (candidate.auroc + kept) / 2
        assert candidate.objective == (kept if objective == "fpr95" else mean)
    everything = search(**data, layers=SMALL, sweep=SWEEP, strategy="grid", top=2000).ranking
    assert len(everything) == 12**3
    assert found.best.fpr95 == min(c.fpr95 for c in everything) or objective == "mean"


@pytest.mark.parametrize("guard", [0.03, 0.1])
def test_guard_excludes_what_tells_training_from_validation(guard):
    data = {**sets(SMALL), "held_out": readings(40, SMALL, 7, spread=0.95)}
    free = search(**data, layers=SMALL, sweep=SWEEP, strategy="grid", guard=None)
    kept = search(**data, layers=SMALL, sweep=SWEEP, strategy="grid", guard=guard)
    point, value = brute_force(SMALL, SWEEP, data, guard)
    assert kept.layers == point and kept.best.auroc == value <= free.best.auroc
    assert all(abs((c.guard or 0) - 0.5) <= guard for c in kept.ranking)
    climbed = search(**data, layers=SMALL, sweep=SWEEP, strategy="layerwise", guard=guard)
    assert all(abs((c.guard or 0) - 0.5) <= guard for c in climbed.ranking)


def test_guard_by_default():
    data, held = sets(SMALL), readings(40, SMALL, 7)
    assert search(**data, layers=SMALL, sweep=SWEEP).guard is None
    found = search(**data, layers=SMALL, sweep=SWEEP, held_out=held)
    assert found.guard == default_guard(40, 50) > 0.05
    assert search(**data, layers=SMALL, sweep=SWEEP, held_out=held, guard=None).guard is None
    assert default_guard(50_000, 50_000) == 0.05


def test_the_papers_space():
    space = paper_space(["avgpool", "layer3", "layer2", "layer1"])
    found = layer_candidates({n: LayerConfig() for n in space}, space)
    assert [len(points) for points in found.values()] == [3 * 6 * a * 5 for a in (5, 11, 6, 6)]
    assert "weight" not in paper_space(["avgpool"], weights=False)["avgpool"]


@pytest.mark.parametrize("key", sorted(presets()))
def test_the_papers_settings_lie_in_the_papers_space(key):
    layers = preset(*key).layers
    for name, points in layer_candidates(layers, paper_space(list(layers))).items():
        assert layers[name] in points


def broken():
    found = readings(5, SMALL, 0)
    found["b"].gradient[1, 2] = float("nan")
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id_val": readings(0, SMALL, 0)}, "the ID validation set is empty"),
        ({"ood_val": broken()}, "layer 'b': 1 of 5 OOD validation samples have NaN"),
        ({"id_val": readings(5, ["a"], 0)}, r"ID validation readings .* \(layers \['a'\], not"),
        ({"id_val": readings(5, SMALL, 0, neurons=3)}, "has 3 neurons, not 7"),
        ({"sweep": {"a": {"bins": [1]}}}, "unknown setting of layer 'a' in the sweep"),
        ({"sweep": {"z": {}}}, r"unknown layer in the sweep \['z'\]"),
        ({"sweep": {"a": {"n_bins": []}}}, "expected a non-empty list of values for 'n_bins'"),
        ({"sweep": {"a": {"n_bins": [2]}}}, "n_bins must be at least"),
        ({"sweep": {n: {"weight": [0]} for n in SMALL}}, "layer weights are all zero"),
        ({"strategy": "magic"}, r"unknown strategy \['magic'\]"),
        ({"objective": "luck"}, r"unknown objective \['luck'\]"),
        ({"guard": 0.1}, "guard=0.1 needs `held_out`"),
        ({"guard": 2.0, "held_out": readings(5, SMALL, 0)}, "`guard` must be between 0 and 0.5"),
        ({"guard": 0, "held_out": readings(40, SMALL, 7, spread=0.01)}, "or guard=0 excludes them"),
        ({"strategy": "grid", "sweep": None}, "joint points, more than"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(NACError, match=message):
        search(**{**sets(SMALL), "layers": SMALL, "sweep": SWEEP, **change})
