from __future__ import annotations

import dataclasses
import json

import pytest

from nac_openood import NACError
from nac_openood.bench.against import Against, against, to_markdown

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
    only_paper = Against("msp", "tin", "FPR@95", None, None, 43.27, 3.00, None)
    assert rows["msp", "tin", "FPR@95"] == only_paper
    only_ours = Against("nac", "farood", "ACC", 95.0, 0.1, None, None, None)
    assert rows["nac", "farood", "ACC"] == only_ours
    assert rows["mine", "svhn", "AUROC"] == Against(
        "mine", "svhn", "AUROC", 90.0, None, None, None, None
    )
    # 22 methods x (6 sets + 2 averages) x 2 metrics, and three numbers the paper does not have
    assert len(rows) == len(against(MEASURED, "cifar10", R18)) == 22 * 8 * 2 + 3


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


def test_rows_are_json() -> None:
    rows = [dataclasses.asdict(r) for r in against(MEASURED, "cifar10", R18)]
    assert [Against(**row) for row in json.loads(json.dumps(rows))] == against(
        MEASURED, "cifar10", R18
    )


def test_no_such_results() -> None:
    with pytest.raises(
        NACError, match="no results for imagenet200 with resnet18_224x224; it has: "
    ):
        against({}, "imagenet200", "resnet18_224x224")
    with pytest.raises(NACError, match="cifar10 with resnet18_32x32.*imagenet with vit_b_16"):
        against({}, "cifar10", "vit_b_16")


def test_markdown() -> None:
    rows = [
        Against("nac", "svhn", "AUROC", 95.0, 0.25, 96.05, 0.47, -1.05),
        Against("nac", "tin", "FPR@95", 27.0, None, 26.53, None, 0.47),
        Against("msp", "svhn", "AUROC", None, None, 91.46, 0.4, None),
        Against("nac", "svhn", "ACC", 95.06, None, None, None, None),
    ]
    assert to_markdown(rows) == (
        "| method | dataset | metric | measured | published | difference |\n"
        "| --- | --- | --- | ---: | ---: | ---: |\n"
        "| nac | svhn | AUROC | 95.00 ± 0.25 | 96.05 ± 0.47 | -1.05 |\n"
        "| nac | tin | FPR@95 | 27.00 | 26.53 | +0.47 |\n"
        "| msp | svhn | AUROC | - | 91.46 ± 0.40 | - |\n"
        "| nac | svhn | ACC | 95.06 | - | - |\n"
    )


def test_an_average_of_ours_is_marked() -> None:
    rows = against({}, "imagenet", "resnet50", methods=["ash"])
    assert [r.dataset for r in rows] == ["inaturalist", "textures", "openimage_o", "farood"]
    assert [r.derived for r in rows] == [False, False, False, True]
    text = to_markdown(rows)
    assert "| ash | farood | AUROC | - | 95.74* | - |\n\n\\* the mean of the numbers" in text
    assert "\\*" not in to_markdown(against({}, "imagenet", "resnet50", methods=["nac"]))
