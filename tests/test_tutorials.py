"""The tutorials run as they stand, and what they say about their results is so."""

import pytest
import torch
from test_docs import DOCS, blocks

TUTORIALS = DOCS / "tutorials"


def run(name, folder, monkeypatch):
    """The names that a tutorial has defined at its end."""
    monkeypatch.chdir(folder)
    path = TUTORIALS / f"{name}.md"
    names = {"__name__": name}
    with torch.random.fork_rng(devices=[]):
        for block in blocks(path.read_text(encoding="utf-8")):
            exec(compile(block, str(path), "exec"), names)
    return names


def test_images(tmp_path, monkeypatch):
    names = run("images", tmp_path, monkeypatch)
    assert names["verdicts"].out().tolist() == [False, True, True]
    ours, msp = names["aurocs"]["photographs"]
    assert ours > 0.999 and msp < 0.95  # "NAC+ finds all of them"
    ours, msp = names["aurocs"]["8 and 9"]
    assert ours == pytest.approx(msp, abs=0.05)  # "about as good as MSP"
    assert (tmp_path / "digits.safetensors").is_file()


def test_tables(tmp_path, monkeypatch):
    names = run("tables", tmp_path, monkeypatch)
    assert list(names["det"].layers) == ["1", "3"] and names["accuracy"] > 0.9
    good, units, shifted, small = names["rejected"].values()
    assert good[0] < 0.13
    for ours, msp in (units, shifted):
        assert ours == 1 and msp < good[1] < 0.2  # MSP is more confident in them than in good rows
    assert small[0] < 0.2


def test_text(tmp_path, monkeypatch):
    names = run("text", tmp_path, monkeypatch)
    assert list(names["det"].layers) == ["blocks.0", "blocks.1"] and names["accuracy"] > 0.6
    assert 0.5 < names["ours"] < 0.9 and 0.5 < names["theirs"] < 0.9  # "neither is good"
