"""The paper's tables on OOD generalization: with themselves, each other, its text and the search."""

import pytest

from nac_openood import NACError
from nac_openood.benchmark.paper.published import (
    against_choice,
    published_choice,
    table,
)
from nac_openood.evaluation.rank import SPACES

ARCHITECTURES = ("resnet18", "resnet50", "vit_t_16", "vit_b_16")
CRITERIA = ("oracle", "validation", "nac-me")


@pytest.mark.parametrize("name", ["Table 8", "Table 9"])
def test_deltas_are_differences(name):
    each, seen = table(name), 0
    for at, value in each.cells():
        if at["criterion"] == "delta":
            ours, reference = (
                each.value(**{**at, "criterion": criterion}).mean
                for criterion in ("nac-me", "validation")
            )
            assert value.mean == pytest.approx(ours - reference, abs=1e-9), at
            seen += 1
    assert seen == (40 if name == "Table 8" else 4)


def test_the_search_space_is_the_papers():
    for at in table("Table 13").rows:
        lists = {}
        for cell, value in table("Table 13").cells():
            if cell["benchmark"] == at[0] and value is not None:
                lists.setdefault(cell["parameter"], []).append(value.mean)
        assert {k: list(v) for k, v in SPACES[at[0]].items()} == lists
    assert set(SPACES) == {row[0] for row in table("Table 13").rows} | {"all"}


def test_numbers_side_by_side():
    measured = {"Sketch": {"nac-me": {"RC": (70.0, 2.0), "ACC": (None, None)}}, "x": {}}
    rows = against_choice(measured, "pacs", "resnet18")
    assert [(r["published"], r["published_error"]) for r in rows] == [(80.96, 1.9), (71.34, 2.4)]
    assert rows[0]["difference"] == pytest.approx(-10.96) and rows[1]["difference"] is None
    assert against_choice(measured, "pacs", "resnet_embedded") == rows
    timm = published_choice("pacs", "timm:vit_tiny_patch16_224")
    assert timm["photo"]["nac-me"]["RC"].mean == 95.02
    with pytest.raises(NACError, match="not choose checkpoints on 'digits', only on vlcs, pacs"):
        published_choice("digits", "resnet18")
