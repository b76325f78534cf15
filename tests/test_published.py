"""The paper's tables: that they agree with themselves, with each other and with its text."""

from __future__ import annotations

from statistics import fmean
from typing import Mapping

import pytest

from nac_openood import NACError
from nac_openood.benchmark.methods.table import LATER_METHODS, METHODS
from nac_openood.benchmark.paper.published import (
    GROUPS,
    LEADERBOARD,
    PRINTED_METHODS,
    PRINTED_METRICS,
    PrintedTable,
    against,
    against_choice,
    benchmarks,
    published,
    published_choice,
    table,
    tables,
)
from nac_openood.benchmark.paper.published import PrintedValue as Value
from nac_openood.detector.config import preset
from nac_openood.evaluation.rank import SPACES

R18 = "resnet18_32x32"


def members(each: PrintedTable, at: Mapping[str, str]) -> list[float]:
    """What a printed average is over; empty where the table does not print it, or is no average."""
    cells = {frozenset(cell.items()): value for cell, value in each.cells()}
    values = {axis: {dict(cell)[axis] for cell in cells} - {"average"} for axis in at}
    axes = [axis for axis in at if at[axis] == "average" and values[axis]]
    mean_of = axes[0] if axes else "dataset"
    if axes:
        names = values[mean_of]
        # where a backbone has no number the paper prints the other's as the average
        least = 1 if mean_of == "architecture" else len(names)
    elif at.get("dataset") in ("nearood", "farood"):
        names = set(GROUPS[at["benchmark"]][at["dataset"]])
        least = len(names)
    else:
        return []
    over = [{**at, mean_of: name} for name in names]
    found = [cells.get(frozenset(one.items())) for one in over]
    means = [value.mean for value in found if value is not None]
    return means if len(means) >= least else []


def off_averages(each: PrintedTable) -> tuple[dict[tuple[str, ...], float], int]:
    """Averages that do not fit, with the right number; and how many were looked at."""
    off, seen = {}, 0
    for at, value in each.cells():
        parts = members(each, at) if value else []
        if value and parts:
            seen += 1
            if abs(fmean(parts) - value.mean) > 1.1 * 10**-value.decimals:
                off[(each.name, *at.values())] = round(fmean(parts), value.decimals)
    return off, seen


def test_printed_averages_are_the_means_of_what_is_printed() -> None:
    """In the tables that print averages beside their parts, with the number of these averages."""
    found = {name: off_averages(each) for name, each in tables().items()}
    assert not any(off for off, _ in found.values())
    assert {name: seen for name, (_, seen) in found.items() if seen} == {
        "Table 1": 52, "Table 2": 30, "Table 8": 28, "Table 15": 44, "Table 17": 4, "Table 18": 3,
        "Table 20": 44, "Table 21": 44, "Table 22": 63, **{f"Table {n}": 20 for n in range(23, 27)},
    }  # fmt: skip


def test_the_same_number_is_the_same_in_all_tables() -> None:
    first: dict[frozenset[tuple[str, str]], tuple[str, Value]] = {}
    shared: dict[tuple[str, str], int] = {}
    for name, each in tables().items():
        for at, value in each.cells():
            key = frozenset(at.items() - each.default.items())
            if value is None:
                continue
            if key in first:
                other, seen = first[key]
                assert value.mean == seen.mean, (name, other, dict(key))
                # Table 17 rounds the stds of Table 1 to one decimal, all but one
                slack = 0.0501 if name == "Table 17" else 0
                if value.std is not None and seen.std is not None:
                    assert abs(value.std - seen.std) <= slack, (name, other, dict(key))
                shared[name, other] = shared.get((name, other), 0) + 1
            else:
                first[key] = name, value
    assert shared == {
        ("Table 4", "Table 1"): 4,
        ("Table 14", "Table 4"): 3,
        ("Table 17", "Table 1"): 10,
        ("Table 20", "Table 1"): 130,
        ("Table 21", "Table 1"): 130,
        ("Table 22", "Table 2"): 90,
        **{(f"Table {n}", "Table 8"): 20 for n in (23, 24, 25, 26)},
    }


def test_full_tables_have_all_methods_and_sets() -> None:
    for name in ("Table 15", "Table 20", "Table 21", "Table 22"):
        assert [row[0] for row in table(name).rows] == list(PRINTED_METHODS)
    assert list(tables()) == [f"Table {n}" for n in range(1, 27)]
    for each in tables().values():
        assert {len(row) for row in each.rows} == {len(each.row_axes)}
        assert {len(values) for values in each.rows.values()} == {len(each.columns)}
    for benchmark, architecture in benchmarks():
        results = published(benchmark, architecture)
        assert list(results) == list(PRINTED_METHODS)
        for method, sets in results.items():
            if benchmark != "imagenet":
                assert {*GROUPS[benchmark]["farood"], "farood"} <= set(sets), method
                assert all(set(metrics) == set(PRINTED_METRICS) for metrics in sets.values())
                assert all(v.std is not None for ms in sets.values() for v in ms.values())
    absent = {m for m, sets in published("imagenet", "vit_b_16").items() if not sets}
    assert absent == {"odin", "mds_ensemble", "gram", "opengan", "rankfeat"}
    assert [m for m, sets in published("imagenet", "resnet50").items() if not sets] == ["opengan"]


def test_settings_are_those_of_the_shipped_presets() -> None:
    names = {"layer4": "avgpool", "before_head": "ln"}
    seen = 0
    for number, benchmark in ((10, "cifar10"), (11, "cifar100"), (12, "imagenet")):
        for at, value in table(f"Table {number}").cells():
            family = "vit" if at["architecture"] == "vit_b_16" else "resnet"
            layer = preset(benchmark, family).layers[names.get(at["layer"], at["layer"])]
            assert getattr(layer, at["parameter"]) == value.mean, (number, at)
            seen += 1
    assert seen == 48


def test_spot_values() -> None:
    results = published("cifar10", R18)
    assert results["nac"]["svhn"] == {"FPR@95": Value(14.33, 1.24), "AUROC": Value(96.05, 0.47)}
    assert published("imagenet", "vit_b_16")["rmds"]["inaturalist"]["AUROC"] == Value(96.10)
    assert table("Table 3").value(training="godin", method="nac", metric="AUROC") == Value(94.61)
    assert table("Table 16").value(state="z*dg", metric="AUROC") == Value(88.9, decimals=1)
    assert table("Table 19").value(dataset="svhn", method="nac", metric="RMS") == Value(45.32)
    assert PRINTED_METHODS["nac"] == "NAC-UE" and PRINTED_METHODS["temp_scaling"] == "TempScale"


def test_unknown_names_are_reported_what_there_is() -> None:
    with pytest.raises(
        NACError, match="no results for imagenet200 with resnet18.*cifar10 with resnet18_32x32,"
    ):
        published("imagenet200", "resnet18")
    with pytest.raises(NACError, match="imagenet with resnet50, imagenet with vit_b_16"):
        published("imagenet", "average")
    with pytest.raises(NACError, match="one cell of Table 1; .* fit 20.*'benchmark'"):
        table("Table 1").value(method="nac")


# -- measured numbers beside the paper's -------------------------------------------------


MEASURED = {
    ("mine", "svhn", "AUROC"): (90.0, None),
    ("nac", "other", "AUROC"): (50.0, None),
    ("nac", "farood", "AUROC"): (94.5, 0.25),
    ("nac", "farood", "FPR@95"): (18.81, None),
    ("nac", "cifar100", "AUROC"): (89.78, 0.0),
}


def compared(*methods, benchmark="cifar10", arch=R18, source="paper"):
    return against(lambda *at: MEASURED.get(at), methods, ["other"], benchmark, arch, source)


def test_side_by_side() -> None:
    rows = {(r["method"], r["dataset"], r["metric"]): r for r in compared("mine", *PRINTED_METHODS)}
    both = rows["nac", "farood", "AUROC"]
    assert list(both.values())[4:8] == [94.5, 0.25, 94.60, 0.50]
    assert both["difference"] == pytest.approx(-0.1)
    assert rows["nac", "farood", "FPR@95"]["difference"] == pytest.approx(0.5)
    assert rows["nac", "cifar100", "AUROC"]["difference"] == 0
    assert rows["msp", "tin", "FPR@95"] == {
        "source": "paper", "method": "msp", "dataset": "tin", "metric": "FPR@95", "measured": None,
        "measured_std": None, "published": 43.27, "published_std": 3.0, "difference": None,
        "derived": False,
    }  # fmt: skip
    assert list(rows["mine", "svhn", "AUROC"].values())[4:] == [90.0, *[None] * 4, False]
    # every method on every set and average, and two numbers that the paper does not have
    sets = sum(len(names) + 1 for names in GROUPS["cifar10"].values())
    assert len(rows) == len(PRINTED_METHODS) * sets * len(PRINTED_METRICS) + 2


def test_the_order_is_the_papers() -> None:
    rows = compared("mine", "nac", "knn")
    assert list(dict.fromkeys(r["method"] for r in rows)) == ["knn", "nac", "mine"]
    found = [(r["dataset"], r["metric"]) for r in rows if r["method"] == "nac"]
    sets = [n for average, names in GROUPS["cifar10"].items() for n in (*names, average)]
    assert found == [*((s, m) for s in sets for m in PRINTED_METRICS), ("other", "AUROC")]


def test_an_average_of_ours_is_marked() -> None:
    rows = compared("ash", benchmark="imagenet", arch="resnet50")
    assert [r["dataset"] for r in rows] == ["inaturalist", "textures", "openimage_o", "farood"]
    assert [r["derived"] for r in rows] == [False, False, False, True]
    assert rows[-1]["published"] == pytest.approx(95.74, abs=0.005)
    nac = compared("nac", benchmark="imagenet", arch="resnet50")
    assert not any(r["derived"] for r in nac)


# ---- OpenOOD's leaderboard


def test_the_leaderboard_has_the_papers_numbers() -> None:
    """The paper took its baselines from it, and NAC is there, too."""
    off, seen = {}, 0
    for benchmark, arch in benchmarks():
        reference = published(benchmark, arch, LEADERBOARD)
        for method, sets in published(benchmark, arch).items():
            for name in {"nearood", "farood"} & set(sets) & set(reference[method]):
                first, second = (each[name]["AUROC"] for each in (sets, reference[method]))
                seen += 1
                if abs(first.mean - second.mean) > 0.02:
                    off[benchmark, arch, method, name] = first.mean, second.mean
    assert seen == 103 and off == {("cifar10", R18, "nac", "nearood"): (90.88, 90.93)}


def test_measured_beside_the_leaderboard() -> None:
    assert benchmarks(LEADERBOARD) == [
        ("cifar10", R18), ("cifar100", R18), ("imagenet", "regnet_y_16gf"),
        ("imagenet", "resnet50"), ("imagenet", "swin_t"), ("imagenet", "vit_b_16"),
        ("imagenet200", "resnet18"),
    ]  # fmt: skip
    rows = compared("nac", "fdbd", "mine", source=LEADERBOARD)
    at = [(row["method"], row["dataset"], row["metric"]) for row in rows]
    pairs = [(m, d, "AUROC") for m in ("nac", "fdbd") for d in ("nearood", "farood")]
    assert at == pairs
    numbers = list(rows[1].values())[4:]
    assert numbers == [94.5, 0.25, 94.60, 0.49, pytest.approx(-0.1), False]
    assert {row["source"] for row in rows} == {LEADERBOARD}
    names = {m for b in benchmarks(LEADERBOARD) for m in published(*b, LEADERBOARD)}
    assert names - {*METHODS, *LATER_METHODS} == {"combood", "otod"}  # not in our table
    with pytest.raises(NACError, match="the leaderboard has no results for imagenet with vgg16"):
        published("imagenet", "vgg16", LEADERBOARD)


# ---- choices of checkpoints


@pytest.mark.parametrize("name", ["Table 8", "Table 9"])
def test_deltas_are_differences(name):
    each, seen = table(name), 0
    for at, value in each.cells():
        if at["criterion"] == "delta":
            pair = [each.value(**{**at, "criterion": name}) for name in ("nac-me", "validation")]
            assert value.mean == pytest.approx(pair[0].mean - pair[1].mean, abs=1e-9), at
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
