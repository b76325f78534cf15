"""Drift of a dataset and of a stream: validity by simulation, power, and files."""

import copy
import itertools
import math
import time

import numpy as np
import pytest
import torch

from nac_openood import NACError
from nac_openood.core.pvalues import PValues
from nac_openood.detector import drift
from nac_openood.detector.drift import DriftMonitor, dataset_drift
from nac_openood.errors import FileError


def drift_of(n=150, m=80, shift=0.0, spread=1.0, seed=0, classes=True, share=0.5):
    draw = torch.Generator().manual_seed(seed)
    pick = lambda size, p: (torch.rand(size, generator=draw) < p).long()  # noqa: E731
    pvalues = PValues(torch.randn(n, generator=draw), pick(n, 0.5) if classes else None)
    scores = torch.randn(m, generator=draw).double() * spread - shift
    return dataset_drift(pvalues, scores, pick(m, share), seed=seed)


@pytest.fixture
def fewer(monkeypatch):
    monkeypatch.setattr(drift, "_MOST", 199)


def test_p_values_of_drift_are_uniform_without_any(fewer):
    found = [drift_of(seed=seed) for seed in range(400)]
    for level in (0.05, 0.2, 0.5):
        error = 3 * math.sqrt(level * (1 - level) / 400)
        for values in ([f.p_scores for f in found], [f.p_classes for f in found]):
            assert abs(np.mean([p <= level for p in values]) - level) < error + 0.005
        assert np.mean([f.p_value <= level for f in found]) < level + error
    inside = np.mean([f.auroc.low <= 0.5 <= f.auroc.high for f in found])
    assert inside > 0.97


@pytest.mark.parametrize("how", [{"shift": 0.8}, {"shift": -0.8}, {"spread": 4.0}, {"share": 0.9}])
def test_drift_is_found(fewer, how):
    assert drift_of(**how).p_value <= 0.05
    assert "samples are like the 150 calibration samples" in str(drift_of(**how))


def test_small_shifts_are_found_about_as_often_as_by_wilcoxons_test(fewer):
    """Which finds 77 % of these, and no changes of spread."""
    found = [drift_of(n=100, m=100, shift=0.4, classes=False, seed=seed) for seed in range(60)]
    assert np.mean([each.p_value <= 0.05 for each in found]) > 0.5


def test_the_effect_is_the_probability_to_score_higher():
    found = drift_of(shift=1.0, n=2000, m=2000, classes=False)
    assert found.auroc.value == pytest.approx(0.760, abs=0.02)  # the normal's cdf at 1 / sqrt(2)
    assert found.auroc.low < 0.760 < found.auroc.high and found.p_classes is None
    assert found.classes.shape == (2, 0) and len(found.p_values) == 2000


@pytest.mark.parametrize(("n", "m"), [(2, 2), (50, 2), (200, 20)])
def test_the_effect_of_separated_samples_has_an_interval(fewer, n, m):
    """DeLong's would have no width: two samples say little, 20 say more."""
    scores = torch.linspace(-9, -8, m).double()
    found = dataset_drift(PValues(torch.rand(n)), scores, torch.zeros(m, dtype=torch.long))
    assert found.auroc.value == found.auroc.high == 1.0
    assert found.auroc.low < 0.6 if m == 2 else 0.7 < found.auroc.low < 0.97


def test_the_interval_holds_for_few_samples(fewer):
    """With an effect of 0.76; DeLong's holds for 93 % of such samples."""
    found = [drift_of(n=200, m=5, shift=1.0, seed=seed, classes=False) for seed in range(300)]
    assert np.mean([f.auroc.low <= 0.760 <= f.auroc.high for f in found]) > 0.97


def test_large_datasets_take_seconds():
    """Permutations draw the smaller set only: 10,000 of 100,000 samples would take a minute."""
    start = time.process_time()
    found = drift_of(n=200, m=100_000)
    assert time.process_time() - start < 15 and found.p_value > 0.001


def test_ties_and_nan_are_compared():
    pvalues = PValues(torch.ones(50), torch.zeros(50, dtype=torch.long))
    same = dataset_drift(pvalues, torch.ones(30), torch.zeros(30, dtype=torch.long))
    assert same.p_value == 1.0 and same.auroc.value == 0.5
    scores = torch.full((30,), math.nan)
    broken = dataset_drift(pvalues, scores, torch.zeros(30, dtype=torch.long))
    assert broken.p_scores < 0.01 and broken.auroc.value == 1.0
    with pytest.raises(NACError, match="at least 2 samples and 2 calibration samples, got 1 and"):
        dataset_drift(pvalues, torch.ones(1), torch.zeros(1))


# -- streams -------------------------------------------------------------------------------


def monitor(seed=0, n=300, **options):
    return DriftMonitor(np.random.RandomState(seed).randn(n), seed=seed, **options)


def peak(found):
    return max(value for _, value in found.history)


@pytest.mark.parametrize("rounded", [False, True])
def test_false_alarms_are_as_rare_as_promised(rounded):
    """Over all seeds and over several epochs; with ties, too."""
    peaks = []
    for seed in range(150):
        draw = np.random.RandomState(1000 + seed)
        calibration, stream = draw.randn(100), draw.randn(900)
        if rounded:
            calibration, stream = calibration.round(), stream.round()
        found = DriftMonitor(calibration, seed=seed, epoch=300)
        found.update_scores(stream)
        peaks.append(peak(found))
    for level in (0.5, 0.2, 0.1):
        share = np.mean([value >= -math.log10(level) for value in peaks])
        assert share <= level + 3 * math.sqrt(level * (1 - level) / 150)
    assert min(peaks) < 0 < max(peaks)


@pytest.mark.parametrize("seen", [1, 7])
def test_the_evidence_is_a_martingale(seen):
    """Over all ranks of the next input and all ways to break its tie, its mean stays the same."""
    found = monitor(n=3)
    found.update_scores(np.arange(seen) - 3.0)
    before, size, after = 10**found.log10_evidence, len(found._seen), []
    between = np.concatenate([[-99], np.sort(found._seen) + 1e-6])  # below all, above each
    # many points near 0 and 1, where bets win most
    v = (np.arange(100) + 0.5) / 100
    ties, density = v**4 / (v**4 + (1 - v) ** 4), 4 * (v - v**2) ** 3 / (v**4 + (1 - v) ** 4) ** 2
    for rank, (tie, weight) in itertools.product(between, zip(ties, density)):
        again = copy.deepcopy(found)
        again._ties[seen] = tie
        again.update_scores([rank])
        after.append(weight * 10**again.log10_evidence)
    assert len(after) == 100 * (size + 1)
    assert np.mean(after) == pytest.approx(before, rel=0.001)


@pytest.mark.parametrize(("share", "late"), [(1.0, 0), (0.5, 0), (0.2, 3000), (1.0, 12_000)])
def test_changes_are_found_soon_also_late_ones_and_of_saturated_scores(share, late):
    for sign in (1, -1):
        draw = np.random.RandomState(5)
        found = monitor(n=500)
        found.update_scores(draw.randn(late))
        assert not found.alarm
        shifted = draw.rand(600) < share
        found.update_scores(draw.randn(600) - 4 * sign * shifted)
        assert found.alarm and late < found.alarm_at <= late + 600
        assert f"ALARM at input {found.alarm_at}" in str(found)


def test_batches_make_no_difference_and_nan_is_lowest():
    scores = np.random.RandomState(1).randn(200)
    one, two = monitor(), monitor()
    one.update_scores(scores)
    for part in np.array_split(scores, 7):
        two.update_scores(torch.tensor(part))
    assert one.history == two.history
    broken, low = monitor(), monitor()
    broken.update_scores([math.nan] * 5)
    low.update_scores([-math.inf] * 5)
    assert broken.log10_evidence == low.log10_evidence > monitor().log10_evidence


def test_a_monitor_goes_on_from_its_file(tmp_path):
    scores = np.random.RandomState(2).randn(700) - 1
    whole, first = monitor(epoch=300), monitor(epoch=300)
    whole.update_scores(scores)
    first.update_scores(scores[:450])
    first.save(tmp_path / "state")
    second = monitor(epoch=300).load(tmp_path / "state")
    second.update_scores(scores[450:])
    assert second.history == whole.history and second.alarm_at == whole.alarm_at
    with pytest.raises(NACError, match="of other calibration data"):
        monitor(seed=1, epoch=300).load(tmp_path / "state")
    with pytest.raises(NACError, match="or of other settings"):
        monitor(epoch=300, alpha=0.5).load(tmp_path / "state")
    (tmp_path / "state").write_bytes(b"no")
    with pytest.raises(FileError, match="damaged"):
        monitor().load(tmp_path / "state")


def test_memory_stays_bounded(monkeypatch):
    monkeypatch.setattr(drift, "_HISTORY", 50)
    found = monitor(n=20, epoch=40)
    found.update_scores(np.random.RandomState(0).randn(1000))
    assert len(found._seen) <= 60 and len(found.history) <= 50
    assert found.history[-1][0] > 950 and found.n_inputs == 1000


def test_a_monitor_of_scores_takes_no_inputs():
    with pytest.raises(NACError, match="this monitor has no detector"):
        monitor().update(torch.zeros(2, 3))
