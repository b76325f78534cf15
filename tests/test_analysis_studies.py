"""The studies: each number checked against another way to get it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from analysis_data import few_sets, finding
from compare_toy import Toy
from sklearn.metrics import roc_auc_score

from nac_openood.analysis import states as state_study
from nac_openood.analysis.scoring import TestScores
from nac_openood.analysis.states import PARTS, part_readings, separating_neuron
from nac_openood.benchmark.api import compare
from nac_openood.benchmark.methods.table import Method
from nac_openood.core.metrics import auroc
from nac_openood.detector.detector import NACDetector
from nac_openood.errors import NACError
from nac_openood.tables import Density


@pytest.fixture
def data(few_readings):
    return few_readings


@pytest.fixture
def net(data):
    return data.run.net


def numbers(found, **at):
    """The records at these coordinates, by dataset."""
    rows = [r for r in found.records if at.items() <= r.items()]
    assert len({r["dataset"] for r in rows}) == len(rows) > 0
    return {r["dataset"]: r["AUROC"] for r in rows}


# ---- params


def test_a_changed_parameter_is_that_of_a_detector(data, net):
    found = finding(data, "params", steepness=[7.0])
    changed = {"layer3": replace(data.settings["layer3"], steepness=7.0)}
    detector = NACDetector(net, changed).fit_readings(data.fitting.fit)
    inside, outside = (
        detector.score_loader(data.run.loader(name, "network")).score for name in ("test", "photos")
    )
    measured = numbers(found, layer="layer3", parameter="steepness", value=7.0, layers="alone")
    expected = roc_auc_score(np.repeat([1, 0], [len(inside), len(outside)]),
                             np.concatenate([inside, outside]))  # fmt: skip
    assert measured["photos"] == pytest.approx(100 * expected, abs=1e-9)


def test_r_is_varied_through_the_full_count(data):
    found = finding(data, "params", bounds=[0.5, 5.0])
    counts = {
        r["value"]: r["full_count"]
        for r in found.records
        if r["layer"] == "avgpool" and r["parameter"] == "bound"
    }
    used = data.settings["avgpool"]
    # r = O* M / n with M = 50 and n = 160
    assert counts == {0.5: 2, 5.0: 16, used.full_count * 50 / 160: used.full_count}


# ---- samples


def test_all_samples_are_all_samples(data):
    found = finding(data, "samples", shares=[0.2, 1.0], repeats=2)
    assert {r["samples"] for r in found.records} == {50, 250}
    repeats = {(r["samples"], r["repeat"]) for r in found.records}
    assert repeats == {(50, 0), (50, 1), (250, 0)}
    expected = TestScores(data, data.train).metrics(data.settings)
    assert numbers(found, samples=250, way="O* kept") == {
        name: line["AUROC"] for name, line in expected.items()
    }


def test_draws_differ_and_repeat_with_the_seed(data):
    first, again = (finding(data, "samples", shares=[0.2], repeats=2) for _ in range(2))
    assert first.records == again.records
    other = finding(data, "samples", shares=[0.2], repeats=2, seed=1)
    assert first.records != other.records
    two = [numbers(first, samples=50, way="r kept", repeat=n) for n in range(2)]
    assert two[0] != two[1]


# ---- weighted


def test_no_other_weights_are_better_on_validation_data(data):
    found = finding(data, "weighted")
    weights = found.values["weights"]
    given = {"id": data.fitting.id_val, "ood": data.fitting.ood_val}
    scores = TestScores(data, scored=given)

    def value(chosen):
        layers = {n: replace(data.settings[n], weight=w) for n, w in zip(data.layers, chosen)}
        made = scores.scores(layers)
        return float(auroc(made["id"], made["ood"]))

    every = [value(chosen) for chosen in product((0.2, 0.4, 0.6, 0.8, 1.0), repeat=3)]
    assert value([weights[n] for n in data.layers]) == max(every)
    assert found.values["candidates"] == 125


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("params", {"bounds": [0.0]}, "`bounds` must be above 0, got 0"),
        ("params", {"n_bins": [2]}, "`n_bins` must be at least"),
        ("params", {"steepness": [0.0]}, "steepness must be above 0"),
        ("samples", {"shares": [0.5, 0.0]}, r"`shares` must be above 0 and at most 1, got \[0.0\]"),
        ("samples", {"shares": [2.0]}, "`shares` must be"),
        ("samples", {"repeats": 0}, "`repeats` must be at least 1"),
        ("states", {"neuron": 10**6}, "`neuron` must be in 0.."),
        ("states", {"ood_set": "svhn"}, "`ood_set` must be one of digits_8_9, photos, portrait"),
        ("weighted", {}, "weights need at least two layers"),
        ("layers", {"against": "mine"}, "`against` must be 'paper' or None"),
    ],
)
def test_options_that_cannot_be(data, kind, options, message, monkeypatch):
    single = replace(data, settings={"avgpool": data.settings["avgpool"]})
    monkeypatch.setattr(state_study, "chosen_settings", lambda *_: data.settings["avgpool"])
    with pytest.raises(NACError, match=message):
        finding(single if kind == "weighted" else data, kind, **options)


# ---- near


class NotNumbers(Toy):
    def score(self, loader):
        found = super().score(loader)
        return found._replace(score=found.score * float("nan"))


def test_near_ood_goes_on_where_scores_are_no_numbers(data):
    strange = Method("strange", "Strange", scorer=NotNumbers)
    found = finding(data, "near", methods=[strange, "nac"])
    assert [row[0] for row in found.tables[0].rows] == ["NAC"]
    assert found.notes[-1].startswith("Strange has no result: ")
    assert found.notes[-1].endswith(" scores of test are NaN or Inf.")


def test_a_rule_of_others_does_not_get_the_scores_of_nac_plus(data):
    mine = Method("mine", "Mine", needs="network", rule="mine")
    found = finding(data, "near", methods=[mine, "nac"])
    assert "Mine needs the network itself" in found.values["problems"]["mine"]


def test_msp_is_that_of_the_logits(data):
    pytest.importorskip("pytorch_ood", reason="pytorch-ood is not installed")
    found = finding(data, "near", methods=["msp", "nac", "nac_plus", "odin"], backend="pytorch-ood")
    inside, outside = (
        data.scored[name].logits.softmax(dim=1).max(dim=1).values.numpy()
        for name in ("test", "digits_8_9")
    )
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    expected = 100 * roc_auc_score(truth, np.concatenate([inside, outside]))
    assert numbers(found, method="msp")["digits_8_9"] == pytest.approx(expected, abs=1e-6)
    nac = TestScores(data).metrics(data.settings)["digits_8_9"]["AUROC"]
    assert numbers(found, method="nac")["digits_8_9"] == nac
    problems = found.values["problems"]
    assert "ODIN needs the network itself" in problems["odin"]
    assert "NAC+ needs the ends of the early stages" in problems["nac_plus"]  # layer1 was not read


def test_baselines_are_those_of_compare(data, net, tmp_path):
    pytest.importorskip("pytorch_ood", reason="pytorch-ood is not installed")
    options = {"methods": ["knn", "react"], "backend": "pytorch-ood"}
    found = finding(data, "near", **options)
    row = compare(net, **vars(few_sets()), **options, out=tmp_path, progress=False)
    for method in options["methods"]:
        value = row.value(method, "digits_8_9", "AUROC").mean
        assert numbers(found, method=method)["digits_8_9"] == pytest.approx(value, abs=1e-9)


# ---- states


@pytest.fixture(scope="module")
def states(few_readings):
    return finding(few_readings, "states", steepness=[10.0, 100.0], against="paper")


def test_the_parts_of_the_state_make_the_gradient(data):

    weight = torch.from_numpy(data.run.head.get_fc()[0])
    read = data.scored["photos"]
    for name, expected in (
        ("dg*(p-u)", read["avgpool"].gradient),
        ("z*dg*(p-u)", read["avgpool"].activation * read["avgpool"].gradient),
        ("z", read["avgpool"].activation),
    ):
        made = part_readings(read, "avgpool", weight, name)["state"].activation
        torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-6)


def test_z_alone_is_the_state_output(states):
    assert numbers(states, state="z") == numbers(states, state="output", layers="avgpool")


def test_every_combination_is_measured(states):
    assert [row[0] for row in states.tables[1].rows] == list(PARTS)
    assert states.tables[1].rows[-1][-2:] == [94.57, 26.89]  # the paper's
    assert set(states.values["settings"]) == {"output", "gradient", "output*gradient"}


def test_distributions_of_states(data, states):
    neuron, coverage, _ = states.figures
    assert list(neuron.columns) == ["alpha 10", "alpha 100"]
    assert [title for title, _ in neuron.rows] == [title for title, _ in coverage.rows]
    for _, panels in (*neuron.rows, *coverage.rows):
        for panel in panels:
            assert sum(panel.inside) == pytest.approx(1) == pytest.approx(sum(panel.outside))
            assert 0 <= panel.edges[0] < panel.edges[-1] <= 1.02


def test_the_neuron_that_separates_best(data):
    config = data.settings["avgpool"]
    inside, outside = (
        torch.sigmoid(config.steepness * (read["avgpool"].activation * read["avgpool"].gradient))
        for read in (data.fitting.id_val, data.fitting.ood_val)
    )
    pairs = zip(inside.t(), outside.t())
    values = [abs(float(auroc(*pair)) - 0.5) for pair in pairs]
    assert values[separating_neuron(data, "avgpool", config)] == max(values)


def test_densities_of_equal_values():
    found = Density.of(np.ones(5), np.ones(3), note="n")
    assert sum(found.inside) == sum(found.outside) == 1 and found.note == "n"
