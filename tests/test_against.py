"""Measured numbers beside the paper's."""

from __future__ import annotations

import pytest

from nac_openood.benchmark.paper.published import (
    GROUPS,
    PRINTED_METHODS,
    PRINTED_METRICS,
    PaperComparison,
    against,
)

R18 = "resnet18_32x32"
MEASURED = {
    ("mine", "svhn", "AUROC"): (90.0, None),
    ("nac", "other", "AUROC"): (50.0, None),
    ("nac", "farood", "AUROC"): (94.5, 0.25),
    ("nac", "farood", "FPR@95"): (18.81, None),
    ("nac", "cifar100", "AUROC"): (89.78, 0.0),
}


def compared(*methods, benchmark="cifar10", arch=R18):
    return against(lambda *at: MEASURED.get(at), methods, ["other"], benchmark, arch)


def test_side_by_side() -> None:
    rows = {(r.method, r.dataset, r.metric): r for r in compared("mine", *PRINTED_METHODS)}
    both = rows["nac", "farood", "AUROC"]
    assert (both.measured, both.measured_std, both.published, both.published_std) == (
        94.5, 0.25, 94.60, 0.50,
    )  # fmt: skip
    assert both.difference == pytest.approx(-0.1)
    assert rows["nac", "farood", "FPR@95"].difference == pytest.approx(0.5)
    assert rows["nac", "cifar100", "AUROC"].difference == 0
    only_paper = PaperComparison("msp", "tin", "FPR@95", None, None, 43.27, 3.00, None)
    assert rows["msp", "tin", "FPR@95"] == only_paper
    only_ours = PaperComparison("mine", "svhn", "AUROC", 90.0, None, None, None, None)
    assert rows["mine", "svhn", "AUROC"] == only_ours
    # every method on every set and average, and two numbers that the paper does not have
    sets = sum(len(names) + 1 for names in GROUPS["cifar10"].values())
    assert len(rows) == len(PRINTED_METHODS) * sets * len(PRINTED_METRICS) + 2


def test_the_order_is_the_papers() -> None:
    rows = compared("mine", "nac", "knn")
    assert list(dict.fromkeys(r.method for r in rows)) == ["knn", "nac", "mine"]
    found = [(r.dataset, r.metric) for r in rows if r.method == "nac"]
    sets = [n for average, names in GROUPS["cifar10"].items() for n in (*names, average)]
    assert found == [*((s, m) for s in sets for m in PRINTED_METRICS), ("other", "AUROC")]


def test_an_average_of_ours_is_marked() -> None:
    rows = compared("ash", benchmark="imagenet", arch="resnet50")
    assert [r.dataset for r in rows] == ["inaturalist", "textures", "openimage_o", "farood"]
    assert [r.derived for r in rows] == [False, False, False, True]
    assert rows[-1].published == pytest.approx(95.74, abs=0.005)
    nac = compared("nac", benchmark="imagenet", arch="resnet50")
    assert not any(r.derived for r in nac)
