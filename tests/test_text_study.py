"""The text study: its data, a small run of all of it, and its page in the docs."""

import json
from pathlib import Path

import pytest
from script_module import script_module

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def study():
    return script_module("text_study")


def test_the_page_in_the_docs_is_made_of_its_figures(study):
    figures = json.loads((ROOT / "benchmarks" / "notes" / "text.json").read_text())
    assert [run["held_out"] for run in figures["runs"]] == list(study.TOPICS)
    assert (ROOT / "benchmarks" / "notes" / "text.md").read_text() == study.page(figures)


def test_a_small_run_with_apart_sets(study, monkeypatch):
    small = {"TRAIN": 60, "VAL": 40, "FAR": 50, "EPOCHS": 1, "WIDTH": 16, "VOCABULARY": 300}
    for name, value in small.items():
        monkeypatch.setattr(study, name, value)
    words = ["war peace vote", "goal match team", "stock price bank", "chip moon gene"]
    by_topic = [[f"{words[t]} number {i}" for i in range(130)] for t in range(4)]
    strings = [f"Return the value of argument {i} as an integer or None." for i in range(80)]
    monkeypatch.setattr(study, "docstrings", lambda: strings)
    sets = study.split(by_topic, 1, seed=0)
    assert {name: len(part.texts) for name, part in sets.items()} == {
        "train": 180, "val": 120, "test": 90, "near": 90, "far": 50,
    }  # fmt: skip
    every = [text for part in sets.values() for text in part.texts]
    assert len(every) == len(set(every))
    assert all("goal" in text for text in sets["near"].texts)
    found = study.measure(1, by_topic, seed=0)
    assert set(found["results"]["far"]) == set(study.METHODS)
    assert all(0 <= v <= 100 for m in found["results"]["near"].values() for v in m.values())
