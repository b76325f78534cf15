"""benchmarks/notes/analyses.md: made from analyses.json, and complete."""

import json
import re
from pathlib import Path

import pytest
import yaml
from script_module import script_module

from nac_openood.analysis import KINDS
from nac_openood.benchmark.paper.published import tables
from nac_openood.cli import build_parser

ROOT = Path(__file__).parents[1]
PRINTED = yaml.safe_load((ROOT / "scripts" / "analyses_paper.yml").read_text())


@pytest.fixture(scope="module")
def script():
    return script_module("analyses_page")


def test_the_page_is_what_the_script_writes(script):
    findings = json.loads((ROOT / "benchmarks/notes" / "analyses.json").read_text())
    assert (ROOT / "benchmarks/notes" / "analyses.md").read_text() == script.page(findings)


def test_every_kind_has_a_section(script):
    assert set(script.KINDS) == set(KINDS)
    page = (ROOT / "benchmarks/notes" / "analyses.md").read_text()
    assert re.findall(r"^## (\w+)$", page, flags=re.M) == list(script.KINDS)


def test_every_table_and_figure_of_the_paper_is_listed():
    names = [row["name"] for row in PRINTED]
    assert names == [*(f"Figure {n}" for n in range(1, 10)), *tables()]


def test_commands_and_scripts_exist():
    commands = build_parser()[1]
    for row in PRINTED:
        for text in re.findall(r"`([^`]+)`", row["command"]):
            if text.startswith("scripts/"):
                assert (ROOT / text).is_file(), text
            else:
                words = text.split()
                assert words[0] == "nac-openood" and words[1] in commands, text
                assert words[1] != "analyze" or words[2] in KINDS, text
