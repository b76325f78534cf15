"""`analyze cost` on a small part of the embedded benchmark."""

from dataclasses import replace

import pytest

from nac_openood.analysis.cost import FORWARD, cost, method_runners, workload
from nac_openood.analysis.data import Options
from nac_openood.benchmark.methods.table import Method

OPTIONS = Options(
    progress=False, repeats=2, most_samples=40, backend="pytorch-ood", against="paper"
)


@pytest.fixture(scope="module")
def data(even_readings):
    return even_readings


@pytest.fixture(scope="module")
def found(data):
    return cost(data, OPTIONS)


def test_every_method_has_a_row_and_every_trial_a_record(found):
    expected = [FORWARD, "MSP", "GEN", "VIM", "SHE", "NAC, 1 layer", "NAC, 2 layers",
                "NAC, 3 layers", "NAC, 4 layers", "NAC+"]  # fmt: skip
    assert [row[0] for row in found.tables[0].rows] == expected
    assert len(found.records) == 2 * len(expected)
    assert all(record["inference_seconds"] > 0 for record in found.records)


def test_ratios_are_over_the_forward_pass_of_the_same_trial(found):
    seconds = {(r["method"], r["trial"]): r["inference_seconds"] for r in found.records}
    for r in found.records:
        plain = seconds[FORWARD, r["trial"]]
        assert r["ratio"] == pytest.approx(r["inference_seconds"] / plain)
    assert found.values["summary"][FORWARD]["ratio"] == (1.0, 0.0)


def test_methods_look_at_as_many_samples_as_they_say(data):
    inputs, test = workload(data, 40)
    assert sum(batch.size for batch in test) == len(inputs.train.dataset) == 40
    runners, _ = method_runners(data, inputs, test[0], OPTIONS)
    seen = {each.name: each.samples for each in runners}
    n_val = len(data.run.study.fitting["id_val"])
    assert seen["MSP"] == 0 and seen["SHE"] == 40
    assert seen["NAC, 1 layer"] == 40 and seen["NAC+"] == 40 + n_val


def test_scores_are_those_of_a_method_that_runs_alone(data):
    """Features are computed on the way; the scores of MSP are those of the readings."""
    inputs, test = workload(data, None)
    runners, _ = method_runners(data, inputs, test[0], OPTIONS)
    found = {each.name: each for each in runners}
    found["MSP"].set_up()
    scored = found["MSP"].score(test)
    logits = data.scored["test"].logits
    assert scored.score == pytest.approx(logits.softmax(dim=1).amax(dim=1).numpy(), abs=1e-5)


def test_the_papers_times_are_beside_those_measured(found):
    rows = {row[0]: row for row in found.tables[0].rows}
    assert rows["VIM"][-2:] == [(1087.82, 9.0), (48.10, 0.4)]
    assert rows["NAC, 2 layers"][-2:] == [(6.75, 0.3), (46.09, 0.7)]
    assert rows["NAC+"][-2:] == [None, None]


class Broken:
    implementation, settings = "broken 1", {}

    def setup(self, inputs, chosen=None):
        raise KeyError("fc")


def test_methods_that_cannot_run_are_notes_and_the_others_go_on(data):
    methods = [Method("mine", "Mine", scorer=Broken), "msp", "opengan"]
    found = cost(data, replace(OPTIONS, repeats=1, most_samples=24, methods=methods))
    assert [row[0] for row in found.tables[0].rows][:3] == [FORWARD, "MSP", "NAC, 1 layer"]
    assert any("24 of 250 training samples" in note for note in found.notes)
    assert any(note.startswith("OpenGAN was left out: OpenGAN is not in") for note in found.notes)
    assert "Mine was left out: KeyError: 'fc'" in found.notes
