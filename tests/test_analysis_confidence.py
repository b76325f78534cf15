"""`analyze calibration` and `analyze agreement` on a small part of the embedded benchmark."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from analysis_data import FOUR_LAYERS
from scipy.stats import spearmanr
from sklearn.calibration import calibration_curve

from nac_openood.analysis.agreement import agreement
from nac_openood.analysis.calibration import ALL_SAMPLES, FIFTH, MSP_TITLE, calibration
from nac_openood.analysis.confidence import typicality
from nac_openood.analysis.data import Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scoring import ID_VAL, scores_on_readings
from nac_openood.core.metrics import threshold_at
from nac_openood.detector.detector import NACDetector
from nac_openood.report.findings import analysis_document, write_figures, write_finding
from nac_openood.tables import Examples

OPTIONS = Options(progress=False, repeats=3, against="paper")


@pytest.fixture(scope="module")
def data(even_readings):
    return even_readings


@pytest.fixture(scope="module")
def calibrated(data):
    return calibration(data, OPTIONS)


@pytest.fixture(scope="module")
def agreed(data):
    return agreement(data, OPTIONS)


def mixture(data, name):
    """Softmax confidences and correctness of ID test and OOD samples, from the network itself."""
    net, study = data.run.net, data.run.study
    logits, right = [], []
    with torch.no_grad():
        for part in ("test", name):
            for batch in study.scored[part].loader():
                logits.append(net(batch["data"]))
                right.append(logits[-1].argmax(dim=1) == batch["label"])
    assert not right[-1].any()  # OOD samples have no class
    return torch.cat(logits).double().softmax(dim=1).amax(dim=1), torch.cat(right)


@pytest.mark.parametrize("name", ["digits_8_9", "textures"])
def test_the_table_equals_scikit_learn(data, calibrated, name):
    """The printed error: bins of 100 samples, which are quantiles where there is no rest."""
    confidence, right = (part.numpy() for part in mixture(data, name))
    n_bins = len(right) // 100
    order = np.argsort(confidence, kind="stable")
    whole, last = order[: 100 * n_bins], order[100 * (n_bins - 1) :]  # which takes the rest
    accuracy, mean = calibration_curve(
        right[whole], confidence[whole], n_bins=n_bins, strategy="quantile"
    )
    sizes = np.full(n_bins, 100.0)
    sizes[-1] = len(last)
    accuracy[-1], mean[-1] = right[last].mean(), confidence[last].mean()
    gaps = np.abs(mean - accuracy)
    found = next(
        r for r in calibrated.records
        if (r["dataset"], r["mixture"], r["method"]) == (name, ALL_SAMPLES, MSP_TITLE)
    )  # fmt: skip
    assert found["MAD"] == pytest.approx(100 * (sizes * gaps).sum() / sizes.sum(), abs=1e-6)
    rms = np.sqrt((sizes * gaps**2).sum() / sizes.sum())
    assert found["RMS"] == pytest.approx(100 * rms, abs=1e-6)


def test_a_p_value_helps_where_ood_samples_are_unusual(calibrated):
    """Textures are far from digits: an overconfident network is corrected."""
    errors = {(r["dataset"], r["mixture"], r["method"]): r["RMS"] for r in calibrated.records}
    for mixed in (ALL_SAMPLES, FIFTH):
        plain, joint = (errors["textures", mixed, m] for m in ("TempScale", "TempScale x NAC+"))
        assert joint < plain


def test_typicality_is_one_for_most_id_samples_and_falls_to_zero():
    held = np.random.default_rng(0).normal(size=1000)
    found = typicality(np.array([-50.0, np.quantile(held, 0.01), 0.0, 50.0]), held)
    assert found[0] < 1e-3 < found[1] < 0.5 and found[2] == found[3] == 1


def test_calibration_puts_the_papers_numbers_beside(calibrated):
    printed = calibrated.tables[-1]
    row = next(r for r in printed.rows if r[:2] == ["cifar100", "RMS"])
    assert list(row[-3:]) == [50.62, 43.01, 33.04]
    assert list(row[2:5]) == [None] * 3  # not measured here


def test_decisions_are_those_of_a_detector(data, agreed):
    """The share of rejected samples of NAC, from the network and a detector."""
    detector = NACDetector(data.run.net, FOUR_LAYERS.layers)
    study = data.run.study
    detector.fit(study.fitting["train"].loader(), FOUR_LAYERS.n_samples, progress=False)
    detector.calibrate(study.fitting["id_val"].loader(), progress=False)
    scored = detector.score_loader(study.scored["textures"].loader(), progress=False)
    share = 100 * float((scored.score < detector.threshold_).mean())
    assert agreed.values["rejected_by"]["NAC"]["textures"] == pytest.approx(share)


def test_rank_correlations_and_pairs(data, agreed):
    scores = scores_on_readings(data)
    outside = ["digits_8_9", "textures"]
    nac, plus = (np.concatenate([scores[m][n] for n in outside]) for m in ("NAC", "MSP"))
    found = agreed.values["rank_correlation"]["OOD samples"]
    assert found["NAC"]["MSP"] == pytest.approx(spearmanr(nac, plus).statistic)
    assert found["NAC"]["NAC"] == pytest.approx(1)
    pair = next(r for r in agreed.records if (r["first"], r["second"]) == ("NAC", "MSP"))
    keys = ("ood_both", "ood_first_only", "ood_second_only", "ood_neither")
    assert sum(pair[key] for key in keys) == pytest.approx(100)
    limits = [threshold_at(scores[m][ID_VAL]) for m in ("NAC", "MSP")]
    both = 100 * ((nac < limits[0]) & (plus < limits[1])).mean()
    assert pair["ood_both"] == pytest.approx(both)


def test_the_gallery_shows_disputed_samples(data, agreed):
    groups = {group.title: group.samples for group in agreed.gallery}
    assert groups
    for title, samples in groups.items():
        for sample in samples:
            assert sample.image.startswith("data:image/png;base64,")
            low = sample.shares["NAC"] <= 5
            assert low == ("NAC finds" in title or "NAC rejects" in title)
    sections = analysis_document([agreed], data.about()).sections
    cards = [b for s in sections for b in s.blocks if isinstance(b, Examples)]
    assert [card.title for card in cards] == list(groups)


@pytest.mark.parametrize("kind", ["calibrated", "agreed"])
def test_files(kind, request, tmp_path):
    found = request.getfixturevalue(kind)
    paths = [*write_finding(found, tmp_path), *write_figures(found, tmp_path)]
    assert all(path.stat().st_size for path in paths)
    document = json.loads((tmp_path / f"{found.kind}.json").read_text())
    again = json.loads(json.dumps(Finding.load(tmp_path / f"{found.kind}.json").to_dict()))
    assert {"format": 1, **again, "sha256": document["sha256"]} == document
    assert len(list(tmp_path.glob("*.svg"))) == len(found.figures)
