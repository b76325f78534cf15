"""The PACS study: its scripts on a few small images, and its page."""

import json
import sys
from pathlib import Path

import pytest
import torch
from test_domains import write

ROOT = Path(__file__).parents[1]
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    for name in ("pacs_study", "pacs_report", "pacs_page"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import pacs_report
    import pacs_study

    monkeypatch.setattr(pacs_study, "STEPS", 12)
    monkeypatch.setattr(pacs_study, "EVERY", 4)
    monkeypatch.setattr(pacs_study, "BATCH", 4)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return pacs_study, pacs_report


@pytest.fixture
def data(tmp_path):
    for shade, domain in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        for hue, label in enumerate(CLASSES):
            write(tmp_path / "PACS", domain, label, 5, 30 * hue + 20 * shade)
    return tmp_path / "PACS"


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    script.main()


def test_training_ranking_and_page(study, data, tmp_path, monkeypatch, capsys):
    pacs_study, pacs_report = study
    out = tmp_path / "out"
    monkeypatch.setattr(pacs_study, "TRIALS", (0,))
    run(pacs_study, monkeypatch, "--data", data, "--out", out, "--variants", "erm", "max")
    assert len(capsys.readouterr().out.splitlines()) == 4 + 2
    record = out / "max" / "sketch" / "trial_0" / "run.json"
    document = json.loads(record.read_text())
    assert [c["step"] for c in document["checkpoints"]] == [4, 8, 12]
    assert document["checkpoints"][0]["entropy"] > 0
    assert document["sources"] == ["art_painting", "cartoon", "photo"]

    monkeypatch.setattr(pacs_report, "NOTES", tmp_path)
    run(pacs_report, monkeypatch, "--data", data, "--out", out)
    page = (tmp_path / "pacs_study.md").read_text()
    assert "Number of trials: Art 1, Cartoon 1, Photo 1, Sketch 1." in page
    assert "ERM 1 + 1; maximize, as printed 1 + 1" in page
    figures = json.loads((tmp_path / "pacs_study.json").read_text())
    assert len(figures["rankings"]) == 4
    for one in figures["rankings"]:
        run_json = out / "erm" / one["target"] / f"trial_{one['trial']}" / "run.json"
        recorded = json.loads(run_json.read_text())["checkpoints"]
        assert one["test"] == pytest.approx([c["target"] for c in recorded])
        assert one["val"] == pytest.approx([c["val"] for c in recorded])


def test_the_page_in_the_docs_is_made_of_its_figures(study):
    from pacs_page import page

    figures = json.loads((ROOT / "benchmarks" / "notes" / "pacs_study.json").read_text())
    assert (ROOT / "benchmarks" / "notes" / "pacs_study.md").read_text() == page(figures)
