"""NAC+ against its formulas written out literally, and what happens at its edges."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nac_openood import NACError, NotFittedError
from nac_openood.core.fine_counts import N_CELLS, FineCounts, cell_index, cell_values
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.logit_scores import gen
from nac_openood.core.plus import NACPlus
from nac_openood.core.pvalues import PValues
from nac_openood.core.reading import Probed, Reading

LAYERS = {"a": LayoutConfig(), "b": LayoutConfig()}
CPU = torch.device("cpu")


def samples(n, seed, scale=1.0, sharp=3.0):
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.01, 1.0, 30.0, 400.0, 1.0, 1.0]).repeat(6)
    a = torch.randn(n, 36, generator=draw) * sizes * scale
    b = (torch.randn(n, 40, generator=draw) * scale).relu()
    return Probed(sharp * torch.randn(n, 10, generator=draw), {"a": Reading(a), "b": Reading(b)})


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


def oracle_p(c, x):
    q05 = np.quantile(c, 0.05)
    b = np.mean(q05 - c[c < q05])
    p = np.array([(1 + (c <= value).sum()) / (len(c) + 1) for value in x])
    return np.maximum(np.where(x < q05, 0.05 * np.exp(-(q05 - x) / b), p), 1e-300)


def test_gen_is_its_formula():
    logits = samples(50, 1).logits
    np.testing.assert_allclose(gen(logits).numpy(), oracle_gen(logits.double().numpy()), rtol=1e-12)
    many = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(gen(many).numpy(), oracle_gen(many.double().numpy()), rtol=1e-10)


def test_p_values_are_their_formula():
    c = np.random.RandomState(0).randn(200)
    x = np.concatenate([np.linspace(-8, 3, 50), c[:20]])
    np.testing.assert_allclose(PValues(c)(torch.tensor(x)).numpy(), oracle_p(c, x), rtol=1e-10)
    assert float(PValues(c)(torch.tensor([-1e9]))) == pytest.approx(1e-300)
    assert PValues(c)(torch.tensor([float("nan")])).isnan().all()


def test_coverage_is_its_formula_up_to_the_grid():
    rule, train = NACPlus(LAYERS), samples(3000, 0)
    rule.update(train)
    rule.calibrate([samples(200, 7)])  # also counts what was set aside
    x = samples(400, 1, scale=1.5)
    for name in LAYERS:
        found = rule.parts(x)[name].numpy()
        wanted = oracle_coverage(*(r[name].activation.double().numpy() for r in (train, x)))
        assert np.corrcoef(found, wanted)[0, 1] > 0.95
        assert np.abs(found - wanted).mean() < 0.03


def test_the_score_is_the_sum_of_its_evidence():
    rule = fitted()
    held, x = samples(300, 10**6), samples(40, 5, scale=2.0)
    rule.calibrate([held])
    c, parts = rule.parts(held), rule.parts(x)
    logs = {n: np.log(oracle_p(c[n].numpy(), parts[n].numpy())) for n in parts}
    early_c = sum(np.log(oracle_p(c[n].numpy(), c[n].numpy())) for n in LAYERS)
    early = np.log(oracle_p(early_c, sum(logs[n] for n in LAYERS)))
    np.testing.assert_allclose(rule.combine(parts).numpy(), 4 * logs["logits"] + early, rtol=1e-9)
    added = rule.contributions(parts)
    total = sum(part for part in added.values())
    torch.testing.assert_close(total, rule.combine(parts), rtol=1e-9, atol=1e-9)


# -- the grid ------------------------------------------------------------------------------


@given(st.floats(width=32, allow_nan=False, min_value=-(2.0**15), max_value=2.0**15))
def test_a_cell_holds_what_is_near_its_middle(value):
    index = int(cell_index(torch.tensor([value])))
    middle = float(cell_values(CPU)[index])
    if abs(value) < 2**-16:
        assert middle == 0
    else:
        assert abs(middle - value) <= abs(value) / 64


def test_cells_are_in_order_and_nothing_falls_outside():
    values = cell_values(CPU)
    assert len(values) == N_CELLS and (values.diff() > 0).all()
    assert torch.equal(cell_index(values.float()), torch.arange(N_CELLS))
    edge = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0])
    assert cell_index(edge).tolist() == [N_CELLS - 1, 0, *[N_CELLS // 2] * 3]


def test_quantiles_of_magnitudes():
    z = torch.randn(5000, 4, generator=torch.Generator().manual_seed(0))
    counts = FineCounts.empty(4, CPU)
    counts.update(z)
    exact = z.abs().double().quantile(0.95, dim=0)
    assert ((counts.magnitude_quantile(0.95) / exact - 1).abs() < 0.03).all()


# -- shards, files, edges ------------------------------------------------------------------


def test_shards_add_up_exactly():
    one, first, second = NACPlus(LAYERS), NACPlus(LAYERS), NACPlus(LAYERS)
    batches = [samples(70, seed) for seed in range(8)]
    for number, batch in enumerate(batches):
        one.update(batch)
        (first if number % 3 else second).update(batch)
    first.merge(second)
    assert first.n_samples == one.n_samples == 560
    x, held = samples(30, 99, scale=2.0), samples(100, 77)
    one.calibrate([held])
    first.calibrate([held])
    assert torch.equal(first.score(x), one.score(x))


def test_batches_do_not_matter():
    whole = samples(500, 3)
    one, many = NACPlus(LAYERS), NACPlus(LAYERS)
    one.update(whole)
    for rows in torch.arange(500).split(37):
        many.update(
            Probed(whole.logits[rows], {n: Reading(r.activation[rows]) for n, r in whole.items()})
        )
    assert torch.equal(one.counts["a"].counts, many.counts["a"].counts)
    assert one._held.n_samples == many._held.n_samples == 50


def test_without_calibration_data_it_says_so_and_works():
    rule = fitted()
    with pytest.warns(UserWarning, match="not calibrated.*Call calibrate"):
        first = rule.score(samples(20, 5))
    assert not rule.calibrated and first.isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        rule.score(samples(20, 5))
    few = NACPlus(LAYERS)
    few.update(samples(5, 0))
    with pytest.raises(NotFittedError, match=r"call calibrate\(loader\) first"):
        few.score(samples(5, 1))


def test_few_calibration_samples_warn_and_fewer_are_refused():
    rule = fitted()
    with pytest.warns(UserWarning, match="calibrated on 16 samples only"):
        rule.calibrate([samples(16, 5)])
    assert rule.calibrated
    with pytest.raises(NACError, match="at least 16 held-out samples, got 15"):
        rule.calibrate([samples(15, 5)])
    with pytest.raises(NACError, match="nothing to calibrate on"):
        rule.calibrate([])


@pytest.mark.parametrize("calibrated", [True, False])
def test_files(calibrated):
    rule, x = fitted(400), samples(30, 5)
    if calibrated:
        rule.calibrate([samples(100, 7)])
    again = NACPlus.restore(rule.settings(), rule.tensors())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(again.score(x), rule.score(x))
    assert again.calibrated is calibrated and again.n_samples == rule.n_samples
    assert rule.tensors()["counts/a"].shape[1] < N_CELLS
    broken = {**rule.tensors(), "counts/a": rule.tensors()["counts/a"] + 1}
    with pytest.raises(NACError, match="counts of layer 'a' do not add up"):
        NACPlus.restore(rule.settings(), broken)


def test_broken_samples():
    rule = fitted()
    rule.calibrate([samples(100, 7)])
    x = samples(5, 1)
    x["b"].activation[2, 3] = float("inf")
    x.logits[4, 0] = float("nan")
    assert rule.score(x).isnan().tolist() == [False, False, True, False, True]
    rule.update(x)
    with pytest.raises(NACError, match="2 of 2005 fitting samples have NaN or Inf"):
        rule.check()


def test_what_it_needs():
    needs = NACPlus(LAYERS).needs
    assert needs.layers == ("a", "b") and not needs.gradients and needs.logits and needs.mean
    with pytest.raises(NACError, match="have no logits"):
        NACPlus(LAYERS).update({"a": Reading(torch.zeros(2, 36)), "b": Reading(torch.zeros(2, 40))})
    with pytest.raises(NACError, match="no layers given"):
        NACPlus({})


def test_dead_and_constant_neurons_do_no_harm():
    rule = NACPlus({"a": LayoutConfig()})
    dead = Probed(torch.randn(200, 3), {"a": Reading(torch.zeros(200, 4))})
    rule.update(dead)
    rule.calibrate([dead])
    assert rule.parts(dead)["a"].unique().tolist() == [0.0]
    assert rule.score(dead).isfinite().all()
