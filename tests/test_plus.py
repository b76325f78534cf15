"""NAC+ against its formulas written out literally, and what happens at its edges."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr
from test_fusion import oracle_p, own_p

from nac_openood import NACError
from nac_openood.core import plus, plus_layer
from nac_openood.core.fusion import ALIGNMENT, DISTANCE, LATE, LOGITS, TOWARDS, VERSION, Fusion
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.plus import MAX_SAMPLES, HeldOut, NACPlus, NACPlus1, distance_of, gen
from nac_openood.core.plus_layer import N_CELLS, Moments, cell_edges, cell_index
from nac_openood.core.reading import BatchReadings, Reading

LAYERS = {"a": LayoutConfig(), "b": LayoutConfig()}
CPU = torch.device("cpu")


def samples(n, seed, scale=1.0, sharp=3.0):
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.01, 1.0, 30.0, 400.0, 1.0, 1.0]).repeat(6)
    a = torch.randn(n, 36, generator=draw) * sizes * scale
    b = (torch.randn(n, 40, generator=draw) * scale).relu()
    logits = sharp * torch.randn(n, 10, generator=draw)
    return BatchReadings(logits, {"a": Reading(a), "b": Reading(b)})


def fitted(n=2000, **options):
    rule = NACPlus(LAYERS, **options)
    for start in range(0, n, 100):
        rule.update(samples(100, start))
    return rule


# -- the formulas, literally ---------------------------------------------------------------


def oracle_gen(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = np.sort(p / p.sum(1, keepdims=True), axis=1)[:, ::-1][:, :100].clip(1e-12, 1 - 1e-12)
    return -(p**0.1 * (1 - p) ** 0.1).sum(1)


def oracle_coverage(train, x):
    q = np.quantile(np.abs(train), 0.95, axis=0)
    q = np.maximum(q, np.quantile(q, 0.1) + 1e-12)
    total = np.zeros(len(x))
    for k in range(train.shape[1]):
        bins = [np.minimum((50 / (1 + np.exp(-2.94 * v[:, k] / q[k]))).astype(int), 49)
                for v in (train, x)]  # fmt: skip
        count = np.bincount(bins[0], minlength=50)
        total += np.minimum(0, np.log((count[bins[1]] + 0.5) * 50 / len(train)))
    return total / train.shape[1]


def oracle_distance(train, x):
    covariance = np.cov(train.T, bias=True)
    size = len(covariance)
    covariance += (0.01 * np.trace(covariance) / size + 1e-12) * np.eye(size)
    off = x - train.mean(0)
    return -np.einsum("bi,ij,bj->b", off, np.linalg.inv(covariance), off)


def test_gen_is_its_formula():
    logits = samples(50, 1).logits
    np.testing.assert_allclose(gen(logits).numpy(), oracle_gen(logits.double().numpy()), rtol=1e-12)
    many = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(gen(many).numpy(), oracle_gen(many.double().numpy()), rtol=1e-10)


def test_coverage_and_distance_are_their_formulas_up_to_the_grid():
    rule, train = NACPlus(LAYERS), samples(3000, 0)
    rule.update(train)
    rule.calibrate(map(rule.parts, [samples(200, 7)]))  # also counts what was held out
    x = samples(400, 1, scale=1.5)
    found = rule.parts(x)
    for name in LAYERS:
        arrays = [r[name].activation.double().numpy() for r in (train, x)]
        coverage = oracle_coverage(*arrays)
        assert np.corrcoef(found[name].numpy(), coverage)[0, 1] > 0.99
        assert np.abs(found[name].numpy() - coverage).mean() < 0.015
        distance = found[distance_of(name)].numpy()
        np.testing.assert_allclose(distance, oracle_distance(*arrays), rtol=1e-4)


def test_the_score_is_the_fusion_of_its_evidence():
    rule = fitted()
    held, x = samples(300, 10**6), samples(40, 5, scale=2.0)
    ranked = rule.calibrate(map(rule.parts, [held]))
    every, parts = rule.parts(held), rule.parts(x)
    c = {name: part[1::2] for name, part in every.items()}  # half of them shape the score
    early_parts = [n for n in parts if n != "logits"]
    assert len(early_parts) == 4
    p = {n: oracle_p(c[n].numpy(), parts[n].numpy()) for n in parts}
    # a calibration sample is compared with the others
    own = {name: own_p(c[name].numpy()) for name in parts}
    early_c = sum(np.log(own[n]) for n in early_parts)
    early = oracle_p(early_c, sum(np.log(p[n]) for n in early_parts))
    wanted = 2 * np.log(p["logits"]) - np.log(1 + 0.2 / early)
    np.testing.assert_allclose(rule.combine(parts).numpy(), wanted, rtol=1e-9)
    # and the others rank new samples
    assert torch.equal(ranked, rule.combine({name: part[0::2] for name, part in every.items()}))
    assert rule.ranking_rows(300).tolist() == list(range(0, 300, 2))


def test_contributions_sum_to_the_score():
    rule = fitted()
    rule.calibrate(map(rule.parts, [samples(300, 10**6)]))
    # the second batch is as usual as can be: nothing to share by
    usual = {name: part.max().expand(3) + 1 for name, part in rule.fusion().calibration.items()}
    for parts in (rule.parts(samples(40, 5, scale=2.0)), usual):
        added = rule.contributions(parts)
        assert set(added) == {*LAYERS, "logits"}
        torch.testing.assert_close(sum(added.values()), rule.combine(parts), rtol=1e-9, atol=1e-9)


# -- the grid ------------------------------------------------------------------------------


@given(st.floats(width=32, allow_nan=False, min_value=-(2.0**15), max_value=2.0**15))
def test_a_cell_holds_what_is_between_its_edges(value):
    index = int(cell_index(torch.tensor([value])))
    low, high = cell_edges(CPU)[index : index + 2].tolist()
    if abs(value) < 2**-16:
        assert low == high == 0
    else:
        assert low <= value <= high and high - low <= abs(value) / 32


def test_cells_are_in_order_and_nothing_falls_outside():
    edges = cell_edges(CPU)
    middles = (edges[1:] + edges[:-1]) / 2
    assert len(edges) == N_CELLS + 1 and (middles.diff() > 0).all()
    # but for those beside zero, whose cells begin at 2**-16
    found = cell_index(middles.float())
    beside = (torch.arange(N_CELLS) - N_CELLS // 2).abs() == 1
    assert torch.equal(found[~beside], torch.arange(N_CELLS)[~beside])
    edge = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0])
    assert cell_index(edge).tolist() == [N_CELLS - 1, 0, *[N_CELLS // 2] * 3]


# -- shards, files, edges ------------------------------------------------------------------


def test_too_few_calibration_samples_are_refused():
    rule = fitted()
    with pytest.raises(NACError, match="NAC. needs at least 16 held-out samples, got 15"):
        rule.calibrate(map(rule.parts, [samples(15, 5)]))
    assert len(rule.calibrate(map(rule.parts, [samples(16, 5)]))) == 8
    with pytest.raises(NACError, match="nothing to calibrate on"):
        rule.calibrate(map(rule.parts, []))


def test_broken_samples():
    rule = fitted()
    rule.calibrate(map(rule.parts, [samples(100, 7)]))
    x = samples(5, 1)
    x["b"].activation[2, 3] = float("inf")
    x.logits[4, 0] = float("nan")
    assert rule.score(x).isnan().tolist() == [False, False, True, False, True]
    rule.update(x)
    with pytest.raises(NACError, match="layer .b.: 1 of 2005 fitting samples have NaN"):
        rule.check()


def test_wide_layers_have_no_distance():
    rule = NACPlus({"a": LayoutConfig()})
    reading = Reading(torch.randn(40, plus_layer.MAX_NEURONS + 1))
    wide = BatchReadings(torch.randn(40, 3), {"a": reading})
    rule.update(wide)
    rule.calibrate(map(rule.parts, [wide, wide, wide]))
    assert set(rule.parts(wide)) == {"a", "logits"} and rule.score(wide).isfinite().all()
    again = NACPlus.restore(rule.settings(), rule.tensors())
    assert torch.equal(again.score(wide), rule.score(wide))
    assert set(rule.contributions(rule.parts(wide))) == {"a", "logits"}


def test_dead_and_constant_neurons_do_no_harm():
    rule = NACPlus({"a": LayoutConfig()})
    dead = BatchReadings(torch.randn(200, 3), {"a": Reading(torch.zeros(200, 4))})
    rule.update(dead)
    rule.calibrate(map(rule.parts, [dead]))
    assert rule.parts(dead)["a"].unique().tolist() == [0.0]
    assert rule.score(dead).isfinite().all()


def test_damaged_settings_and_tensors_are_refused():
    rule = fitted(400)
    tensors = rule.tensors()
    assert tensors["layer/a/counts"].shape[1] < N_CELLS  # files leave out empty cells
    for name, value in {"logit_weight": 1e9, "softness": 1.5}.items():
        with pytest.raises(NACError, match=f"{name} must be at most"):
            NACPlus.restore({**rule.settings(), name: value}, tensors)
    for name, message in {
        "layer/a/counts": "the counts do not add up",
        "layer/b/moments/high": "the moments are of another number of samples",
    }.items():
        with pytest.raises(NACError, match=message):
            NACPlus.restore(rule.settings(), {**tensors, name: tensors[name] * 2})


# -- the alignment of NAC+ 2 ---------------------------------------------------------------

HEAD = {"a": LayoutConfig(), "b": LayoutConfig(head_input=True)}


def with_head(n=600, layers=HEAD, parts=1):
    rules = []
    for part in range(parts):
        rule = NACPlus(layers)
        rule.start_at(part * n // parts)
        for start in range(part * n // parts, (part + 1) * n // parts, 100):
            rule.update(samples(100, start))
        rules.append(rule)
    for other in rules[1:]:
        rules[0].merge(other)
    return rules[0]


def test_alignment_literally():
    rule, x = with_head(), samples(30, 5)
    rule.calibrate(map(rule.parts, [samples(100, 7)]))
    train = [samples(100, start) for start in range(0, 600, 100)]
    z, logits = (
        torch.cat([pick(s) for s in train]).double().numpy()
        for pick in (lambda s: s["b"].activation, lambda s: s.logits)
    )
    covariance = np.cov(z.T, bias=True)
    covariance += 0.01 * covariance.diagonal().mean() * np.eye(len(covariance))
    off = x["b"].activation.double().numpy() - z.mean(0)
    distance = np.sqrt((off @ np.linalg.inv(covariance) * off).sum(1))
    relative = logits - logits.mean(1, keepdims=True)
    own = x.logits.double().numpy()
    own = own - own.mean(1, keepdims=True) - relative.mean(0)
    towards = (own / relative.std(0)).max(1)
    parts = rule.parts(x)
    assert np.allclose(parts[DISTANCE], distance, rtol=1e-6)
    assert np.allclose(parts[TOWARDS], towards, atol=1e-5)
    held = rule.fusion().calibration
    usual = held[DISTANCE].median()
    aligned, others = (p[TOWARDS] / (p[DISTANCE] ** 2 + usual**2).sqrt() for p in (parts, held))
    logs = rule.fusion().evidence(parts)
    expected = np.log(oracle_p(others.numpy(), aligned.numpy()))
    assert np.allclose(logs[ALIGNMENT], expected)
    assert rule.settings()["version"] == VERSION and LATE in logs
    added = rule.contributions(parts)
    assert set(added) == {"a", "b", "logits"}
    assert torch.allclose(sum(added.values()), rule.score(x), atol=1e-8)


def agreement(part, logits):
    rho = spearmanr(part, logits).statistic
    return max(0.0, rho - 2 / (len(part) - 1) ** 0.5) ** 2


def test_parts_are_weighted_by_how_they_agree_with_gen():
    rule = with_head()
    rule.calibrate(map(rule.parts, [samples(100, 7)]))
    fusion, names = rule.fusion(), ["a", distance_of("a"), DISTANCE]
    held = {**fusion.calibration, DISTANCE: -fusion.calibration[DISTANCE]}
    a, far, head = (agreement(held[name], held[LOGITS]) for name in names)
    assert [fusion.weights[name] for name in names] == pytest.approx([1 - a, 1 - far, head])
    assert fusion.weights[LOGITS] == pytest.approx(1 - head)
    assert fusion.weights[ALIGNMENT] == 1.0


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    "spread, noise, expected",
    [(0.0, 0.0, 1.0), (0.0, 10.0, 1.0), (0.0, 36.0, 0.67), (0.0, 60.0, 0.0), (1.0, 0.0, 0.0)],
)
def test_the_distance_takes_the_place_of_the_alignment(version, spread, noise, expected):
    """Early layers follow both up to `noise`; with `spread`, the two have little in common."""
    rule, draw = with_head(), np.random.RandomState(0)
    rule.calibrate(map(rule.parts, [samples(400, 7)]))
    held = dict(rule.fusion().calibration)
    near = -held[DISTANCE]
    n = len(near)
    held[TOWARDS] = torch.from_numpy(10 + spread * draw.randn(n))
    aligned = held[TOWARDS] / (near**2 + near.median() ** 2).sqrt()
    held["a"] = torch.from_numpy(rankdata(near) + rankdata(aligned) + 2 * noise * draw.randn(n))
    held[distance_of("a")] = held["a"] + 1.0
    early = sum(np.log(own_p(held[name].numpy())) for name in ("a", distance_of("a")))
    least = min(agreement(*pair) for pair in combinations((near, aligned, early), 2))
    taken = np.clip(5 * least - 2, 0, 1) if version == 4 else 0.0
    assert taken == pytest.approx(expected if version == 4 else 0.0, abs=0.05)
    weight = max(agreement(near, held[LOGITS]), taken)
    fusion = Fusion(held, logit_weight=2.0, softness=0.2, version=version)
    found = [fusion.weights[name] for name in (DISTANCE, LOGITS, ALIGNMENT)]
    assert found == pytest.approx([weight, 1 - weight, 1 - taken])
    parts = rule.parts(samples(30, 5))
    for name, own, w in ((DISTANCE, near, weight), (LOGITS, held[LOGITS], 1 - weight)):
        logs = w * np.log(oracle_p(own.numpy(), fusion.used(parts)[name].numpy()))
        assert np.allclose(fusion.evidence(parts)[name], logs)
    added = fusion.contributions(parts)
    torch.testing.assert_close(sum(added.values()), fusion.score(parts), rtol=1e-9, atol=1e-9)
    assert not any((part.signbit() & (part == 0)).any() for part in added.values())  # no "-0"


@pytest.mark.parametrize("parts", [2, 3])
def test_shards_and_files_keep_the_head(parts):
    whole, merged, x = with_head(), with_head(parts=parts), samples(30, 5)
    for name, total in whole.sums().items():
        assert torch.equal(merged.sums()[name], total)
    for rule in (whole, merged):
        rule.calibrate(map(rule.parts, [samples(100, 7)]))
    again = NACPlus.restore(merged.settings(), merged.tensors())
    assert torch.equal(whole.score(x), merged.score(x))
    assert torch.equal(whole.score(x), again.score(x))
    wrong = {"layer/b/moments/high": 2 * merged.head.tensors()["moments/high"]}
    with pytest.raises(NACError, match="input of the head is of another number of samples"):
        NACPlus.restore(merged.settings(), {**merged.tensors(), **wrong})


def test_without_the_head_input_it_is_nac_plus_1():
    layers, x = {"a": LayoutConfig()}, samples(30, 5)
    both = [NACPlus(layers), NACPlus1(layers)]
    for rule in both:
        rule.update(samples(600, 0))
        rule.calibrate(map(rule.parts, [samples(100, 7)]))
        assert rule.settings()["version"] == 1 and LOGITS in rule.parts(x)
    assert torch.equal(both[0].score(x), both[1].score(x))
    for kind, wrong in ((NACPlus1, HEAD), (NACPlus, {"b": HEAD["b"]})):
        with pytest.raises(NACError, match="expected early layers and at most"):
            kind(wrong)
    with pytest.raises(NACError, match="head_input must be true or false, got 1"):
        LayoutConfig(head_input=1)


def test_a_head_input_that_is_too_wide_is_left_out(monkeypatch):
    monkeypatch.setattr(plus, "MAX_NEURONS", 39)
    rule, x = with_head(), samples(30, 5)
    rule.calibrate(map(rule.parts, [samples(100, 7)]))
    one = with_head(layers={"a": LayoutConfig()})
    one.calibrate(map(one.parts, [samples(100, 7)]))
    assert torch.equal(rule.score(x), one.score(x))
    assert rule.contributions(rule.parts(x))["b"].unique().tolist() == [0.0]


# -- moments that add up exactly, and the distance from a Gaussian made of them


def literal(values):
    """The sum of products in Python's integers, which have no limit."""
    rows = [[2**28, *(round(v * 2**28) for v in row)] for row in values.double().tolist()]
    size = len(rows[0])
    return [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([1e-4, 1.0, 300.0, 2.0**15]))
def test_sums_of_products_are_exact(seed, scale):
    draw = torch.Generator().manual_seed(seed)
    values = (torch.randn(9, 3, generator=draw) * scale).clamp(-(2.0**15), 2.0**15)
    high, low = (part.numpy().astype(object) for part in Moments.of(values).sums().values())
    assert (high * 2**45 + low).tolist() == literal(values)
    assert (low >= 0).all() and (low < 2**45).all()


def test_constant_neurons_few_samples_and_extremes():
    constant = Moments.of(torch.ones(50, 3))
    assert constant.score(torch.ones(2, 3)).tolist() == [0.0, 0.0]
    assert (constant.score(torch.zeros(1, 3)) < -1e9).all()
    assert Moments.of(torch.randn(5, 40)).score(torch.randn(7, 40)).isfinite().all()
    extreme = Moments.of(torch.tensor([[float("inf"), -float("inf"), float("nan"), 1e30]]))
    assert extreme.products()[0].tolist() == [1, 2.0**15, -(2.0**15), 0, 2.0**15]


# -- which training samples are held out, however the training set is sharded

ONE = {"a": LayoutConfig()}


def few(n, seed=0):
    draw = torch.Generator().manual_seed(seed)
    a = torch.randn(n, 4, generator=draw)
    return BatchReadings(torch.randn(n, 3, generator=draw), {"a": Reading(a)})


def cut(whole, size):
    """Batches with the number of their first sample."""
    parts = zip(whole.logits.split(size), whole["a"].activation.split(size))
    return [
        (size * k, BatchReadings(logits, {"a": Reading(a)})) for k, (logits, a) in enumerate(parts)
    ]


def counted(numbered, with_start=True):
    rule = NACPlus(ONE)
    for start, batch in numbered:
        if with_start:
            rule.start_at(start)
        rule.update(batch)
    return rule


def same(one, other):
    torch.testing.assert_close(one.tensors(), other.tensors(), rtol=0, atol=0)
    return True


def merged(rules):
    total = NACPlus(ONE)
    for rule in rules:
        total.merge(rule)
    return total


def test_every_tenth_sample_is_held_out_until_there_are_enough():
    whole = few(10 * MAX_SAMPLES)
    rule = counted(cut(whole, 999), with_start=False)
    assert rule.held_out.n_samples == MAX_SAMPLES and rule.n_samples == 10 * MAX_SAMPLES
    assert torch.equal(rule.held_out.readings.logits, whole.logits[9::10])
    assert torch.equal(rule.tensors()["held/number"], torch.arange(9, 10 * MAX_SAMPLES, 10))


@pytest.mark.parametrize("n", [95, 10 * MAX_SAMPLES + 30, 23_456])
@pytest.mark.parametrize("world", [2, 5])
def test_dealt_out_equals_one_pass(n, world):
    batches = cut(few(n), 37 if n < 1000 else 1500)
    one = counted(batches, with_start=False)
    ranks = [counted(batches[rank::world]) for rank in range(world)]
    assert same(merged(ranks), one) and same(merged(ranks[::-1]), one)
    assert same(counted(batches[::-1]), one)
    assert one.n_samples == n and one.held_out.n_samples == min(n // 10, MAX_SAMPLES)


def test_many_samples_are_chosen_from_all_over_the_training_set(monkeypatch):
    monkeypatch.setattr(plus, "MAX_SAMPLES", 50)
    number = counted(cut(few(5000), 250)).tensors()["held/number"]
    per_fifth = torch.histc(number.double(), 5, 0, 5000)
    assert len(number) == 50 and (number % 10 == 9).all() and (per_fifth >= 4).all()


def test_shards_that_all_began_at_zero_merge_in_any_order(monkeypatch):
    monkeypatch.setattr(plus, "MAX_SAMPLES", 30)
    shards = [counted(cut(few(200, seed), 64), with_start=False) for seed in range(4)]
    one, other = merged(shards), merged(shards[::-1])
    first, second = merged(shards[:2]), merged(shards[2:])
    first.merge(second)
    assert same(one, other) and same(one, first)
    assert one.held_out.n_samples == 30 and one.n_samples == 800


def test_broken_samples_of_a_shard_are_not_lost():
    bad = few(20)
    bad.logits[3] = float("nan")
    with pytest.raises(NACError, match="1 of 40 fitting samples have NaN or Inf"):
        merged([counted(cut(few(20), 20)), counted(cut(bad, 20))]).check()


def test_files_without_numbers():
    tensors = counted(cut(few(100), 100)).held_out.tensors
    old = {name: tensor for name, tensor in tensors.items() if name != "held/number"}
    assert torch.equal(HeldOut.restore(old, ONE).tensors["held/number"], tensors["held/number"])
