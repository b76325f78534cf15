"""What the README says is what was measured and what exists."""

import re
from pathlib import Path

import pytest
import readme_example
from script_module import script_module

from nac_openood.cli import build_parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_figures_are_the_stored_ones():
    script = script_module("update_readme")
    for page in script.PAGES:
        assert script.updated(page) == (ROOT / page).read_text(), page


def test_its_make_targets_and_commands_exist():
    assert len(README.splitlines()) <= 100, "it does not fit on a few screens"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert not set(re.findall(r"nac-openood (\w+)", README)) - set(build_parser()[1])


@pytest.mark.filterwarnings("ignore")  # random weights
def test_its_example_runs():
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len(code.replace("\n\n", "\n").splitlines()) <= 10
    readme_example.main()
