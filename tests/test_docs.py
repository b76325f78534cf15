"""The code in the docs runs as it stands, and what they say about errors is so."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "own_model.md").read_text(encoding="utf-8")


def blocks(page):
    """The Python blocks with empty lines above each, so that an error names the page's line."""
    for match in re.finditer(r"```python\n(.*?)```", page, re.DOTALL):
        yield "\n" * page[: match.start(1)].count("\n") + match.group(1)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    pytest.importorskip("timm", reason="the page shows a timm model")
    names = {"__name__": "own_model"}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.chdir(tmp_path_factory.mktemp("own_model"))
        torch.manual_seed(0)
        for block in blocks(PAGE):
            exec(compile(block, str(DOCS / "own_model.md"), "exec"), names)
    return names


def test_own_model_runs_from_top_to_bottom(names):
    assert names["scores"].shape == names["trusted"].shape == (50,)
    assert names["trusted"].dtype == torch.bool
    assert names["det"].threshold_ is not None and names["found"].best.auroc > 0.5
    assert set(names["result"].layers) == {"avgpool", "layer3", "layer2", "layer1"}


def test_its_ten_lines_are_ten_at_most():
    code = PAGE.split("## The ten lines")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_its_errors_are_the_real_ones(names):
    told = re.findall(r"^\| `([^|]+?)` \|", PAGE, re.MULTILINE)
    assert len(told) == len(names["messages"])
    for text, message in zip(told, names["messages"]):
        assert text in message


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
