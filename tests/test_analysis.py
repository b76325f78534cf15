"""Analyses: one pass over the network, numbers that tie out, findings as files."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from analysis_data import ARCH, CONFIG, few_sets, finding, prepared
from compare_toy import Toy
from conftest import percent

from nac_openood.analysis import KINDS, analyze, chosen_kinds
from nac_openood.analysis import states as state_study
from nac_openood.analysis.ablations import subsets
from nac_openood.analysis.data import Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scores import NACScores
from nac_openood.analysis.states import PARTS, part_readings, separating_neuron
from nac_openood.benchmark.api import compare
from nac_openood.benchmark.methods.table import Method
from nac_openood.benchmark.run.network import NetworkRun
from nac_openood.benchmark.run.results import metrics_by_set
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.metrics import auroc
from nac_openood.detector.config import NACConfig
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError, NACError
from nac_openood.report.findings import (
    analysis_document,
    finding_text,
    write_analysis_page,
    write_finding,
)
from nac_openood.tables import Column, Density, Table


@pytest.fixture
def data(few_readings):
    return few_readings


@pytest.fixture
def net(data):
    return data.run.net


@pytest.fixture(scope="module")
def compared(few_readings, tmp_path_factory):
    """NAC's row of a comparison on the same data."""
    out = tmp_path_factory.mktemp("compared")
    found = compare(
        few_readings.run.net, **vars(few_sets()), methods=["nac"], nac_config=CONFIG, arch=ARCH, out=out,
        progress=False,
    )  # fmt: skip
    return found.rows[0]


def numbers(found, **at):
    """The AUROC of the records at these coordinates, by dataset."""
    rows = [r for r in found.records if at.items() <= r.items()]
    assert len({r["dataset"] for r in rows}) == len(rows) > 0
    return {r["dataset"]: r["AUROC"] for r in rows}


def aurocs(metrics):
    return {name: line["AUROC"] for name, line in metrics.items()}


# ---- numbers tie out


def test_the_settings_in_use_give_the_row_of_compare(data, compared):
    assert compared.status == "ok"
    assert data.found is not None and data.found.evaluated == 4
    assert data.about().settings == compared.hyperparameters["layers"]
    assert finding(data, "layers").values["all"] == compared.metrics  # to the last bit
    found = finding(data, "params")
    assert found.values["default"] == compared.metrics
    used = {"steepness": data.settings["avgpool"].steepness, "n_bins": 50}
    for parameter, value in used.items():
        at = {"layer": "avgpool", "parameter": parameter, "value": value, "layers": "all"}
        assert numbers(found, **at) == aurocs(compared.metrics)


def test_scores_are_those_of_a_detector(data, net):
    chosen = {name: data.settings[name] for name in ("avgpool", "layer2")}
    detector = NACDetector(net, chosen, rule="nac").fit_readings(data.fitting.fit)
    expected = detector.score_loader(data.run.loader("photos", "network")).score
    assert np.array_equal(NACScores(data).scores(chosen)["photos"], expected)


def test_every_subset_of_few_layers_is_there(data):
    found = finding(data, "layers")
    assert {r["layers"] for r in found.records} == {"+".join(s) for s in subsets(data.layers)}
    assert len(subsets(data.layers)) == 2**3 - 1
    assert found.tables[0].rows[-1][0] == "avgpool+layer3+layer2"
    many = subsets([str(n) for n in range(10)])
    assert len(many) == 10 + 10 + 8  # singles, all but one, and the deepest 2 to 8 and 10
    assert many[-1] == tuple(map(str, range(10)))


def test_different_rows_have_different_names_in_a_terminal():
    names = ["avgpool+layer3+layer2", "avgpool+layer3+layer2+layer1"]
    table = Table("", [Column("Layers", number=False), Column("AUROC")], [[n, 1.0] for n in names])
    text = finding_text(Finding("layers", "T", "S.", [table]))
    assert [line.split()[0] for line in text.splitlines()[3:]] == names


# ---- one pass


def test_training_data_is_read_once_and_in_order(data):
    train = data.run.study.sets.train
    assert sorted(data.train_rows) == list(range(len(train)))
    assert data.train.label.tolist() == train.labels.tolist()
    assert data.fitting.fit.n_samples == 160


def test_a_second_time_nothing_is_read(few_readings, net, monkeypatch):
    monkeypatch.setattr(Readings, "save_parts", lambda *a, **k: pytest.fail("read again"))
    messages: list[str] = []
    folder = few_readings.run.study.out.parent
    data = prepared(net, folder, say=messages.append, search=False)
    assert "readings of the fitting and validation data: made before" in messages
    assert data.settings == CONFIG.layers and data.found is None  # as they are, without a search


def test_what_was_not_finished_is_read(net, data):
    before, readings = data.scored["photos"]["layer2"].gradient.clone(), data.run.study.out
    (readings / "test" / "photos.json").unlink()
    messages: list[str] = []
    again = prepared(net, readings.parent, say=messages.append)
    assert [line for line in messages if line.startswith("reading ")] == ["reading test set photos"]
    assert torch.equal(again.scored["photos"]["layer2"].gradient, before)


def test_another_network_is_read_again_and_surrogates_are_labelled(net, tmp_path):
    few = replace(few_sets(), far={}, ood_val=None)
    data = prepared(net, tmp_path, sets=few)
    assert data.fitting.surrogate and "surrogates" in data.about().ood_val["name"]
    messages: list[str] = []
    prepared(type(net)(8).eval(), tmp_path, sets=few, say=messages.append)
    assert "reading the fitting subset" in messages and "reading test set test" in messages


@pytest.mark.parametrize("search", [True, False])
def test_without_settings_layers_are_found(net, tmp_path, search):
    few = replace(few_sets(), id_name="mine", far={})
    data = prepared(net, tmp_path, sets=few, config=None, search=search)
    assert data.layers[0] == "avgpool" and len(data.layers) >= 3
    if search:
        assert data.found.strategy == "layerwise"
    else:
        assert data.found is None and set(data.settings.values()) == {LayerConfig()}


# ---- kinds


def test_chosen_kinds():
    assert [k.name for k in chosen_kinds(["all"])] == [k for k, row in KINDS.items() if row.in_all]
    assert [k.name for k in chosen_kinds(["params", "layers"])] == ["layers", "params"]
    with pytest.raises(NACError, match=r"unknown kind of analysis \['layerz'\].*states, layers"):
        chosen_kinds(["layers", "layerz"])
    with pytest.raises(NACError, match="no kind of analysis; expected some of"):
        chosen_kinds([])


def test_one_that_cannot_be_done_does_not_stop_the_others(data):
    few = replace(data.run.study, sets=replace(data.run.study.sets, near={}))
    far_only = replace(data, run=NetworkRun(few, data.run.checkpoint, data.run.net))
    outcome = dict(analyze(far_only, ["near", "layers"], Options(progress=False)))
    assert isinstance(outcome["layers"], Finding)
    with pytest.raises(NACError, match="there is no near-OOD set: pass `near`"):
        raise outcome["near"]


def test_the_papers_numbers_are_beside(data):
    found = finding(data, "layers", against="paper")
    printed = [[93.21, 23.5], [94.35, 21.32], [94.46, 18.5]]
    assert [row[-2:] for row in found.tables[0].rows] == printed
    assert "another benchmark, so only trends can be compared" in found.notes[-1]


# ---- params


def test_a_changed_parameter_is_that_of_a_detector(data, net):
    found = finding(data, "params", steepness=[7.0])
    changed = {"layer3": replace(data.settings["layer3"], steepness=7.0)}
    detector = NACDetector(net, changed, rule="nac").fit_readings(data.fitting.fit)
    inside, outside = (
        detector.score_loader(data.run.loader(name, "network")).score for name in ("test", "photos")
    )
    measured = numbers(found, layer="layer3", parameter="steepness", value=7.0, layers="alone")
    assert measured["photos"] == pytest.approx(percent(inside, outside), abs=1e-9)


def test_r_is_varied_through_the_full_count(data):
    found = finding(data, "params", bounds=[0.5, 5.0])
    rows = [r for r in found.records if (r["layer"], r["parameter"]) == ("avgpool", "bound")]
    counts = {r["value"]: r["full_count"] for r in rows}
    used = data.settings["avgpool"]
    # r = O* M / n with M = 50 and n = 160
    assert counts == {0.5: 2, 5.0: 16, used.full_count * 50 / 160: used.full_count}


# ---- samples


def test_all_samples_are_all_samples(data):
    found = finding(data, "samples", shares=[0.2, 1.0], repeats=2)
    assert {r["samples"] for r in found.records} == {50, 250}
    repeats = {(r["samples"], r["repeat"]) for r in found.records}
    assert repeats == {(50, 0), (50, 1), (250, 0)}
    expected = NACScores(data, data.train).metrics(data.settings)
    assert numbers(found, samples=250, way="O* kept") == aurocs(expected)


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
    samples = {"id": data.fitting.id_val, "ood": data.fitting.ood_val}
    scores = NACScores(data, scored=samples)

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
        ("params", {"n_bins": [2]}, "n_bins must be at least"),
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
    found = finding(data, "near", methods=["msp", "nac", "nac_plus", "odin"], backend="pytorch-ood")
    inside, outside = (
        data.scored[name].logits.softmax(dim=1).max(dim=1).values.numpy()
        for name in ("test", "digits_8_9")
    )
    expected = pytest.approx(percent(inside, outside), abs=1e-6)
    assert numbers(found, method="msp")["digits_8_9"] == expected
    nac = NACScores(data).metrics(data.settings)["digits_8_9"]["AUROC"]
    assert numbers(found, method="nac")["digits_8_9"] == nac
    problems = found.values["problems"]
    assert "ODIN needs the network itself" in problems["odin"]
    assert "NAC+ needs the ends of the early stages" in problems["nac_plus"]  # layer1 was not read


def test_baselines_are_those_of_compare(data, net, tmp_path):
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


def test_every_combination_is_measured(states):
    assert numbers(states, state="z") == numbers(states, state="output", layers="avgpool")
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


# ---- files


@pytest.fixture
def example():
    """A finding of an earlier version; its figures are lines."""
    found = Finding.load(Path(__file__).parent / "data/v0.1/analyze/calibration.json")
    entries = [["x", 1.234], ["y", None], ["z", [1.0, 0.5]]]
    table = Table("t", [Column("a", number=False), Column("b")], entries)
    records = [{"a": "x", "b": 1.25}, {"a": "y", "c": 2}]
    about = replace(found.about, searched=False)
    return replace(found, sentence="It is so.", tables=[table], records=records, about=about)


def test_csv_and_page(example, tmp_path):
    write_finding(example, tmp_path)
    assert (tmp_path / "calibration.csv").read_text() == "a,b,c\nx,1.25,\ny,,2\n"
    text = write_analysis_page(tmp_path).read_text()
    assert "It is so." in text and text.count("<svg") == len(example.figures)
    assert "1.00 <small>± 0.50</small>" in text and "1.23" in text
    assert "NAC&#39;s settings were not searched." in text


def test_the_page_is_about_one_network(example, tmp_path):
    with pytest.raises(FileError, match="holds no findings"):
        write_analysis_page(tmp_path)
    other = replace(example.about, accuracy=1.0)
    old = replace(example, kind="params", sentence="Of another network.", about=other)
    write_finding(old, tmp_path)
    write_finding(example, tmp_path)
    text = write_analysis_page(tmp_path).read_text()
    assert "It is so." in text and "Of another network." not in text


def test_studies_of_nac_plus(net, tmp_path):
    config = NACConfig({}, n_samples=100, rule="nac_plus")
    data = prepared(net, tmp_path, config=config)
    assert all(reading.gradient is None for reading in data.scored["test"].values())
    found = finding(data, "layers")
    page = analysis_document([found], data.about())
    assert page.title.endswith("analyses of NAC+") and not page.notes
    # all layers: what a detector gives that is fitted and calibrated on the same data
    detector, sets = NACDetector(net), data.run.study
    detector.fit(sets.fitting["train"].loader(), 100, progress=False)
    detector.calibrate(sets.fitting["id_val"].loader(), progress=False)
    scores = {
        name: detector.score_loader(samples.loader(), progress=False).score
        for name, samples in sets.scored.items()
    }
    expected = metrics_by_set(scores, data.roles, data.accuracy)
    every = numbers(found, layers="+".join(data.early_layers))
    assert every == pytest.approx({name: line["AUROC"] for name, line in expected.items()})
    parts = [row[0] for row in found.tables[1].rows]
    (head,) = {*data.layers} - {*data.early_layers}
    assert parts[:3] == ["logits (GEN)", f"{head} (alignment)", f"{head} (distance)"]
    assert len(parts) == 3 + 2 * len(data.early_layers)
    assert len(found.tables[0].rows) == 2 ** len(data.early_layers) - 1
    few = finding(data, "samples", shares=(0.2, 1.0), repeats=2)
    assert [row[0].split()[0] for row in few.tables[0].rows] == ["50", "250"]
    assert {r["repeat"] for r in few.records} == {0, 1}
    methods = {r["method"] for r in finding(data, "calibration").records}
    assert "NAC+, fitted" in methods and "NAC" not in methods
    timed = finding(data, "cost", repeats=1, methods=["msp"], most_samples=40)
    own = [name for name in timed.values["summary"] if name.startswith("NAC")]
    assert own == [f"NAC+, {n} layer{'s' * (n > 1)}" for n in range(1, len(data.early_layers) + 1)]
    with pytest.raises(NACError, match="params: not a study of NAC\\+. .* there are layers"):
        finding(data, "params")
    kinds = [k.name for k in chosen_kinds(["all"], "nac_plus")]
    assert kinds == ["layers", "samples", "calibration"]
