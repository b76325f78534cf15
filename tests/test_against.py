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
    "mine": {"svhn": {"AUROC": (90.0, None)}},
    "nac": {
        "other": {"AUROC": (50.0, None)},
        "farood": {"ACC": (95.0, 0.1), "AUROC": (94.5, 0.25), "FPR@95": (18.81, None)},
        "cifar100": {"AUROC": (89.78, 0.0)},
    },
}


def test_side_by_side() -> None:
    rows = {(r.method, r.dataset, r.metric): r for r in against(MEASURED, "cifar10", R18)}
    both = rows["nac", "farood", "AUROC"]
    assert (both.measured, both.measured_std, both.published, both.published_std) == (
        94.5, 0.25, 94.60, 0.50,
    )  # fmt: skip
    assert both.difference == pytest.approx(-0.1)
    assert rows["nac", "farood", "FPR@95"].difference == pytest.approx(0.5)
    assert rows["nac", "cifar100", "AUROC"].difference == 0
    only_paper = PaperComparison("msp", "tin", "FPR@95", None, None, 43.27, 3.00, None)
    assert rows["msp", "tin", "FPR@95"] == only_paper
    only_ours = PaperComparison("nac", "farood", "ACC", 95.0, 0.1, None, None, None)
    assert rows["nac", "farood", "ACC"] == only_ours
    assert rows["mine", "svhn", "AUROC"] == PaperComparison(
        "mine", "svhn", "AUROC", 90.0, None, None, None, None
    )
    # every method on every set and average, and three numbers that the paper does not have
    sets = sum(len(names) + 1 for names in GROUPS["cifar10"].values())
    printed = len(PRINTED_METHODS) * sets * len(PRINTED_METRICS)
    assert len(rows) == len(against(MEASURED, "cifar10", R18)) == printed + 3


def test_order_does_not_depend_on_what_was_measured() -> None:
    rows = against(MEASURED, "cifar10", R18)
    methods = list(dict.fromkeys(r.method for r in rows))
    assert methods[:3] == ["openmax", "msp", "temp_scaling"]
    assert methods[-2:] == ["nac", "mine"]
    nac = [(r.dataset, r.metric) for r in rows if r.method == "nac"]
    assert nac == [
        ("cifar100", "FPR@95"), ("cifar100", "AUROC"), ("tin", "FPR@95"), ("tin", "AUROC"),
        ("nearood", "FPR@95"), ("nearood", "AUROC"), ("mnist", "FPR@95"), ("mnist", "AUROC"),
        ("svhn", "FPR@95"), ("svhn", "AUROC"), ("texture", "FPR@95"), ("texture", "AUROC"),
        ("places365", "FPR@95"), ("places365", "AUROC"), ("farood", "FPR@95"),
        ("farood", "AUROC"), ("farood", "ACC"), ("other", "AUROC"),
    ]  # fmt: skip
    turned = {m: dict(reversed(s.items())) for m, s in reversed(MEASURED.items())}
    assert [r for r in against(turned, "cifar10", R18) if r.dataset != "farood"] == [
        r for r in rows if r.dataset != "farood"
    ]


def test_methods_narrows_it_down() -> None:
    rows = against(MEASURED, "cifar10", R18, methods=["nac", "knn"])
    assert {r.method for r in rows} == {"knn", "nac"}
    assert against({}, "cifar10", R18, methods=[]) == []


def test_an_average_of_ours_is_marked() -> None:
    rows = against({}, "imagenet", "resnet50", methods=["ash"])
    assert [r.dataset for r in rows] == ["inaturalist", "textures", "openimage_o", "farood"]
    assert [r.derived for r in rows] == [False, False, False, True]
    assert rows[-1].published == pytest.approx(95.74, abs=0.005)
    assert not any(r.derived for r in against({}, "imagenet", "resnet50", methods=["nac"]))
