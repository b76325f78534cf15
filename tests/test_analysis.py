"""Analyses: one pass over the network, numbers that tie out, findings as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from analysis_data import ARCH, CONFIG, few_sets, finding, prepared

from nac_openood.analysis import KINDS, chosen_kinds
from nac_openood.analysis.api import analyze
from nac_openood.analysis.data import Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.layers import subsets
from nac_openood.analysis.scoring import TestScores
from nac_openood.benchmark.api import compare
from nac_openood.benchmark.run.network import NetworkRun
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError, NACError
from nac_openood.files import write_json
from nac_openood.report.findings import write_analysis_page, write_finding
from nac_openood.tables import Column, Table


@pytest.fixture
def data(few_readings):
    return few_readings


@pytest.fixture
def net(data):
    return data.run.net


@pytest.fixture
def folder(data):
    return data.run.study.out.parent


@pytest.fixture(scope="module")
def compared(few_readings, tmp_path_factory):
    """NAC's row of a comparison on the same data."""
    out = tmp_path_factory.mktemp("compared")
    found = compare(
        few_readings.run.net, **vars(few_sets()), methods=["nac"], nac_config=CONFIG, arch=ARCH, out=out,
        progress=False,
    )  # fmt: skip
    return found.rows[0]


# ---- numbers tie out


def test_all_layers_are_the_row_of_compare(data, compared):
    assert compared.status == "ok"
    assert data.found is not None and data.found.evaluated == 4
    assert data.about().settings == compared.hyperparameters["layers"]
    found = finding(data, "layers")
    assert found.values["all"] == compared.metrics  # to the last bit


def test_params_at_the_settings_in_use_are_the_row_of_compare(data, compared):
    found = finding(data, "params")
    assert found.values["default"] == compared.metrics
    used = {"steepness": data.settings["avgpool"].steepness, "n_bins": 50}
    for parameter, value in used.items():
        rows = [
            r for r in found.records
            if (r["layer"], r["parameter"], r["value"], r["layers"])
            == ("avgpool", parameter, value, "all")
        ]  # fmt: skip
        assert {r["dataset"]: r["AUROC"] for r in rows} == {
            name: line["AUROC"] for name, line in compared.metrics.items()
        }


def test_scores_are_those_of_a_detector(data, net):
    chosen = {name: data.settings[name] for name in ("avgpool", "layer2")}
    detector = NACDetector(net, chosen).fit_readings(data.fitting.fit)
    expected = detector.score_loader(data.run.loader("photos", "network")).score
    assert np.array_equal(TestScores(data).scores(chosen)["photos"], expected)


def test_every_subset_of_few_layers_is_there(data):
    found = finding(data, "layers")
    assert {r["layers"] for r in found.records} == {"+".join(s) for s in subsets(data.layers)}
    assert len(subsets(data.layers)) == 2**3 - 1
    assert found.tables[0].rows[-1][0] == "avgpool+layer3+layer2"
    many = subsets([str(n) for n in range(10)])
    assert len(many) == 10 + 10 + 8  # singles, all but one, and the deepest 2 to 8 and 10
    assert many[-1] == tuple(map(str, range(10)))


# ---- one pass


def test_training_data_is_read_once_and_in_order(data):
    train = data.run.study.sets.train
    assert sorted(data.train_rows) == list(range(len(train)))
    assert data.train.label.tolist() == train.labels.tolist()
    assert data.fitting.fit.n_samples == 160


def test_a_second_time_nothing_is_read(folder, net, monkeypatch):
    monkeypatch.setattr(Readings, "save_parts", lambda *a, **k: pytest.fail("read again"))
    said: list[str] = []
    data = prepared(net, folder, say=said.append, search=False)
    assert "readings of the fitting and validation data: made before" in said
    assert data.settings == CONFIG.layers and data.found is None  # as they are, without a search


def test_what_was_not_finished_is_read(folder, net, data):
    before = data.scored["photos"]["layer2"].gradient.clone()
    (folder / "readings" / "test" / "photos.json").unlink()
    said: list[str] = []
    again = prepared(net, folder, say=said.append)
    assert [line for line in said if line.startswith("reading ")] == ["reading test set photos"]
    assert torch.equal(again.scored["photos"]["layer2"].gradient, before)


def test_another_network_is_read_again_and_surrogates_are_labelled(net, tmp_path):
    few = replace(few_sets(), far={}, ood_val=None)
    data = prepared(net, tmp_path, sets=few)
    assert data.fitting.surrogate and "surrogates" in data.about().ood_val.name
    said: list[str] = []
    prepared(type(net)(8).eval(), tmp_path, sets=few, say=said.append)
    assert "reading the fitting subset" in said and "reading test set test" in said


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


@pytest.mark.parametrize("document", [{}, {"format": 1}, {"format": 99, "kind": "x"}])
def test_what_is_no_finding(document, tmp_path):
    path = write_json(tmp_path / "layers.json", document)
    with pytest.raises(FileError, match="is damaged|has format 99"):
        Finding.load(path)


def test_csv_and_page(example, tmp_path):
    pytest.importorskip("matplotlib")
    write_finding(example, tmp_path)
    assert (tmp_path / "calibration.csv").read_text() == "a,b,c\nx,1.25,\ny,,2\n"
    text = write_analysis_page(tmp_path).read_text()
    assert "It is so." in text and text.count("<svg") == len(example.figures)
    assert "1.00 <small>± 0.50</small>" in text and "1.23" in text
    assert "NAC&#39;s settings were not searched." in text


def test_the_page_is_about_one_network(example, tmp_path):
    with pytest.raises(FileError, match="holds no findings"):
        write_analysis_page(tmp_path)
    pytest.importorskip("matplotlib")
    other = replace(example.about, accuracy=1.0)
    old = replace(example, kind="params", sentence="Of another network.", about=other)
    write_finding(old, tmp_path)
    write_finding(example, tmp_path)
    text = write_analysis_page(tmp_path).read_text()
    assert "It is so." in text and "Of another network." not in text
