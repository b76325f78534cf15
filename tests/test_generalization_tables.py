"""The paper's tables on OOD generalization: with themselves, each other, its text and the search."""

from itertools import product
from statistics import fmean

import pytest

from nac_openood import NACError
from nac_openood.benchmark.paper.published import (
    GENERALIZATION_TABLES,
    against_choice,
    published_choice,
    table,
)
from nac_openood.evaluation.rank import SPACES

ARCHITECTURES = ("resnet18", "resnet50", "vit_t_16", "vit_b_16")
CRITERIA = ("oracle", "validation", "nac-me")


@pytest.mark.parametrize("name", GENERALIZATION_TABLES.values())
def test_averages_over_domains(name):
    seen = 0
    for where in product(ARCHITECTURES, CRITERIA, ("RC", "ACC")):
        cells = {
            at["domain"]: value
            for at, value in table(name).cells()
            if (at["architecture"], at["criterion"], at["metric"]) == where
        }
        average = cells.pop("average")
        assert len(cells) == 4
        if where[1:] == ("oracle", "RC"):
            assert average is None and not any(cells.values())
            continue
        mean = fmean(value.mean for value in cells.values())
        assert average.mean == pytest.approx(mean, abs=0.011), where
        seen += 1
    assert seen == 20


def test_table_8_agrees_with_itself():
    eight = table("Table 8")
    for where in product(ARCHITECTURES, CRITERIA, ("RC", "ACC")):
        at = dict(zip(("architecture", "criterion", "metric"), where))
        values = [eight.value(**at, benchmark=name) for name in GENERALIZATION_TABLES]
        average = eight.value(**at, benchmark="average")
        if values[0] is not None and average is not None:
            mean = fmean(value.mean for value in values)
            assert average.mean == pytest.approx(mean, abs=0.011), where


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


def test_table_18_interchanges_photo_and_sketch():
    def right(domain):
        return published_choice("pacs", "resnet18")[domain]["validation"]["ACC"].mean

    for printed, meant in (("photo", "sketch"), ("sketch", "photo"), ("cartoon", "cartoon")):
        assert table("Table 18").value(algorithm="erm", domain=printed).mean == right(meant)


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
