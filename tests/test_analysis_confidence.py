"""`analyze calibration`, `agreement` and `schemes`; errors against scikit-learn."""

import json

import numpy as np
import pytest
import torch
from analysis_data import FOUR_LAYERS
from openood_tiny import need_openood, real_openood
from scipy.stats import spearmanr
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from nac_openood.analysis import calibration as errors
from nac_openood.analysis.calibration import ALL_SAMPLES, FIFTH, LogisticMap, equal_mass_bins
from nac_openood.analysis.data import ID_VAL, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.methods import agreement
from nac_openood.analysis.schemes import SCHEMES, Backbone, schemes
from nac_openood.core.metrics import threshold_at
from nac_openood.detector.detector import NACDetector
from nac_openood.errors import NACError
from nac_openood.report.findings import analysis_document, write_figures, write_finding
from nac_openood.sources.networks import build
from nac_openood.tables import Examples

OPTIONS = Options(progress=False, repeats=3, against="paper")


@pytest.fixture(scope="module")
def data(even_readings):
    return even_readings


@pytest.fixture(scope="module")
def calibrated(data):
    return errors.calibration(data, OPTIONS)


@pytest.fixture(scope="module")
def agreements(data):
    return agreement(data, OPTIONS)


def softmax_mixture(data, name):
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
    confidence, right = (part.numpy() for part in softmax_mixture(data, name))
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
        if (r["dataset"], r["mixture"], r["method"]) == (name, ALL_SAMPLES, errors.MSP_TITLE)
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
    found = errors.typicality(np.array([-50.0, np.quantile(held, 0.01), 0.0, 50.0]), held)
    assert found[0] < 1e-3 < found[1] < 0.5 and found[2] == found[3] == 1


def test_calibration_puts_the_papers_numbers_beside(calibrated):
    printed = calibrated.tables[-1]
    row = next(r for r in printed.rows if r[:2] == ["cifar100", "RMS"])
    assert list(row[-3:]) == [50.62, 43.01, 33.04]
    assert list(row[2:5]) == [None] * 3  # not measured here


def test_decisions_are_those_of_a_detector(data, agreements):
    """The share of rejected samples of NAC, from the network and a detector."""
    detector = NACDetector(data.run.net, FOUR_LAYERS.layers)
    study = data.run.study
    detector.fit(study.fitting["train"].loader(), FOUR_LAYERS.n_samples, progress=False)
    inside = detector.score_loader(study.fitting["id_val"].loader(), progress=False)
    scored = detector.score_loader(study.scored["textures"].loader(), progress=False)
    share = 100 * float((scored.score < threshold_at(inside.score)).mean())
    assert agreements.values["rejected_by"]["NAC"]["textures"] == pytest.approx(share)


def test_rank_correlations_and_pairs(data, agreements):
    scores = data.method_scores
    outside = ["digits_8_9", "textures"]
    nac, plus = (np.concatenate([scores[m][n] for n in outside]) for m in ("NAC", "MSP"))
    found = agreements.values["rank_correlation"]["OOD samples"]
    assert found["NAC"]["MSP"] == pytest.approx(spearmanr(nac, plus).statistic)
    assert found["NAC"]["NAC"] == pytest.approx(1)
    pair = next(r for r in agreements.records if (r["first"], r["second"]) == ("NAC", "MSP"))
    keys = ("ood_both", "ood_first_only", "ood_second_only", "ood_neither")
    assert sum(pair[key] for key in keys) == pytest.approx(100)
    limits = [threshold_at(scores[m][ID_VAL]) for m in ("NAC", "MSP")]
    both = 100 * ((nac < limits[0]) & (plus < limits[1])).mean()
    assert pair["ood_both"] == pytest.approx(both)


def test_the_gallery_shows_disputed_samples(data, agreements):
    groups = {group.title: group.samples for group in agreements.gallery}
    assert groups
    for title, samples in groups.items():
        for sample in samples:
            assert sample.image.startswith("data:image/png;base64,")
            low = sample.shares["NAC"] <= 5
            assert low == ("NAC finds" in title or "NAC rejects" in title)
    sections = analysis_document([agreements], data.about()).sections
    cards = [b for s in sections for b in s.blocks if isinstance(b, Examples)]
    assert [card.title for card in cards] == list(groups)


@pytest.mark.parametrize("kind", ["calibrated", "agreements"])
def test_files(kind, request, tmp_path):
    found = request.getfixturevalue(kind)
    paths = [*write_finding(found, tmp_path), *write_figures(found, tmp_path)]
    assert all(path.stat().st_size for path in paths)
    document = json.loads((tmp_path / f"{found.kind}.json").read_text())
    again = Finding.load(tmp_path / f"{found.kind}.json").save(tmp_path)
    assert json.loads(again.read_text()) == document
    assert len(list(tmp_path.glob("*.svg"))) == len(found.figures)


# ---- calibration errors


def test_ties_do_not_depend_on_the_order():
    """Half of 200 equally confident predictions are right: that is calibrated in any order."""
    right = np.repeat([1, 0], 100)
    assert equal_mass_bins(np.full(200, 0.5), right).errors()["RMS"] == 0


@pytest.mark.parametrize("wrong", [1.5, float("nan")])
def test_refuses_what_is_not_a_confidence(wrong):
    with pytest.raises(NACError, match="expected confidences from 0 to 1"):
        equal_mass_bins(np.array([0.5, wrong]), np.array([1, 0]))
    with pytest.raises(NACError, match="expected finite scores"):
        LogisticMap.fit(np.array([0.0, np.nan]), np.array([True, False]))


def test_temperature_undoes_a_scaling():
    draw = torch.Generator().manual_seed(0)
    label = torch.randint(0, 10, (1200,), generator=draw)
    logits = 2 * torch.randn(1200, 10, generator=draw, dtype=torch.float64)
    logits[torch.arange(1200), label] += 3
    temperature = errors.temperature_of(logits, label)
    assert errors.temperature_of(3 * logits, label) == pytest.approx(3 * temperature, rel=1e-4)
    nearby = [temperature * f for f in (0.99, 1.0, 1.01)]
    losses = [float(torch.nn.functional.cross_entropy(logits / t, label)) for t in nearby]
    assert losses[1] < losses[0] and losses[1] < losses[2]


def test_the_logistic_map_equals_scikit_learn():
    """Soft targets are two weighted copies of every sample."""
    rng = np.random.default_rng(1)
    score = rng.normal(size=500) * 0.01 + 0.7
    right = rng.random(500) < 1 / (1 + np.exp(-(score - 0.69) * 200))
    n = int(right.sum())
    target = np.where(right, (n + 1) / (n + 2), 1 / (500 - n + 2))
    standard = ((score - score.mean()) / score.std())[:, None]
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(
        np.concatenate([standard, standard]), np.repeat([1, 0], 500),
        sample_weight=np.concatenate([target, 1 - target]),
    )  # fmt: skip
    found = LogisticMap.fit(score, right)(score)
    assert np.allclose(found, model.predict_proba(standard)[:, 1], atol=1e-5)
    assert found.mean() == pytest.approx(target.mean(), abs=1e-6)


def test_a_useless_score_gives_the_accuracy_and_curves_stay_finite():
    curve = LogisticMap.fit(np.arange(100.0), np.arange(100) < 75)  # higher scores are wrong
    assert curve.slope == 0
    assert np.allclose(curve(np.array([-1e9, 0, 1e9])), 0.75, atol=0.01)
    curve = LogisticMap.fit(np.random.default_rng(0).normal(size=50), np.ones(50, bool))
    assert 0.9 < curve(np.array([0.0]))[0] < 1


# ---- schemes


def test_a_backbone_returns_what_the_head_was_given():
    torch.manual_seed(0)
    net, x = build("resnet_embedded", 8).eval(), torch.randn(2, 3, 32, 32)
    head, logits = net.fc, net(x)
    backbone = Backbone(net, x)
    _, feature = backbone(x, return_feature=True)
    assert backbone.feature_size == head.in_features
    assert torch.equal(head(feature), logits)


def test_without_openood_it_says_what_is_missing(data, monkeypatch):
    monkeypatch.delenv("OPENOOD_SRC", raising=False)
    monkeypatch.setattr("nac_openood.plugin.source.find_openood", lambda: None)
    with pytest.raises(NACError, match="Expected OpenOOD, but it is not installed"):
        schemes(data, Options(progress=False, epochs=1))


@real_openood
def test_nac_beside_the_native_detectors(data):
    need_openood()
    found = schemes(data, Options(progress=False, epochs=1, against="paper"))
    table = found.tables[0]
    assert len(table.rows) == 3 * len(SCHEMES)
    assert [row[1] for row in table.rows[:3]] == ["its own", "NAC", "NAC+"]
    numbers = [row[2:7] for row in table.rows]
    assert all(0 <= value <= 100 for row in numbers for value in row)
    # the three detectors of a network are not the same thing
    assert all(len({tuple(row[3:7]) for row in table.rows[i : i + 3]}) == 3 for i in (0, 3, 6))
    assert [list(row[-2:]) for row in table.rows[:2]] == [[83.94, 50.98], [93.90, 31.04]]
    assert "for only 1 epochs" in found.notes[0]
    assert found.notes[-1].startswith("Paper: Table 3, imagenet with resnet50")
