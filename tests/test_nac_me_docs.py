"""The code in docs/nac_me.md runs as it stands, and its figures are those of the benchmark."""

import json
import re
from pathlib import Path

import pytest
import torch
from test_docs import blocks

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs" / "nac_me.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "nac_me"}
    with torch.random.fork_rng(devices=[]):
        for block in blocks(PAGE):
            exec(compile(block, str(PATH), "exec"), names)
    assert names["ranking"].chosen().name in names["networks"]
    assert (tmp_path / "ranking" / "ranking.json").is_file() and (tmp_path / "best.pt").is_file()
    assert names["monitor"].history


def test_its_costs_are_those_measured():
    measured = json.loads((ROOT / "benchmarks" / "nac_me.json").read_text())
    told = dict(re.findall(r"^\| ([\w/-]+, \d+ x \d+) \| ([\d.]+) \|$", PAGE, re.MULTILINE))
    assert {k.replace(" x ", "x"): float(v) for k, v in told.items()} == {
        title: pytest.approx(ratio, abs=0.005) for title, ratio in measured["passes"].items()
    }
    assert max(measured["passes"].values()) <= 1.5
    seconds = float(re.search(r"24 settings for PACS take ([\d.]+) seconds", PAGE)[1])
    assert seconds == pytest.approx(measured["search_seconds"]["24 settings"], abs=0.05)
