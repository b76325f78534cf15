"""Numbers and names as a reader wants them, and where NAC stands in one sentence."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional, Sequence

from nac_openood.compare.results import FAR, NEAR, Results, Value
from nac_openood.report.order import NAC, Standing, find, measured_groups

#: What stands where nothing was measured.
NOTHING = "\u2013"
GROUP_TITLES = {NEAR: "near-OOD", FAR: "far-OOD"}
GROUP_HEADS = {NEAR: "Near-OOD", FAR: "Far-OOD"}
METRIC_TITLES = {"AUPR_IN": "AUPR-in", "AUPR_OUT": "AUPR-out", "ACC": "Accuracy"}
_SETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet-1K",
    "imagenet200": "ImageNet-200",
    "tin": "Tiny ImageNet",
    "mnist": "MNIST",
    "svhn": "SVHN",
    "texture": "Textures",
    "textures": "Textures",
    "places365": "Places365",
    "ssb_hard": "SSB-hard",
    "ninco": "NINCO",
    "inaturalist": "iNaturalist",
    "openimage_o": "OpenImage-O",
    "embedded": "Handwritten digits",
    "digits_8_9": "digits 8, 9",
    "mnist_8_9": "MNIST 8, 9",
    "mnist_0_7": "MNIST 0 to 7",
    "imagenet_v2": "ImageNet-V2",
    "imagenet_c": "ImageNet-C",
    "imagenet_r": "ImageNet-R",
    **GROUP_TITLES,
}


def set_title(name: str) -> str:
    """A data set's name as papers write it."""
    return _SETS.get(name, name)


def metric_title(name: str) -> str:
    """A metric's name for a heading."""
    return METRIC_TITLES.get(name, name)


def number(value: Optional[Value], digits: int = 2) -> str:
    """`91.23 ± 0.10`, without the second part where there was a single run."""
    if value is None:
        return NOTHING
    spread = "" if value.std is None else f" \u00b1 {value.std:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def quantity(value: Optional[float]) -> str:
    """Three significant digits, whole numbers from 100 on."""
    if value is None:
        return NOTHING
    if value and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(fraction: Any) -> str:
    """A fraction as percent; `NOTHING` where it is none."""
    is_number = isinstance(fraction, (int, float)) and fraction == fraction
    return f"{100 * fraction:.2f} %" if is_number else NOTHING


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th, ..., 11th, ..., 21st."""
    teen = rank % 100 in (11, 12, 13)
    return f"{rank}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(rank % 10, 'th')}"


def plain(value: Any) -> str:
    """A hyperparameter on one line, as JSON where it is no text."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def settings(hyperparameters: Mapping[str, Any]) -> str:
    """`K = 50, alpha = 0.1`, or `none`."""
    return ", ".join(f"{k} = {plain(v)}" for k, v in hyperparameters.items()) or "none"


def verdict(results: Results, order: Sequence[Standing]) -> str:
    """Where NAC stands, as it is."""
    worked = [s for s in order if s.status == "ok"]
    nac, groups = find(order, NAC), measured_groups(results)
    if not worked:
        return "No method gave a result; the reasons are in the table."
    if nac is None:
        return f"{_count(worked)} compared; NAC is not among them."
    if nac.status != "ok":
        return f"NAC has no result here ({nac.error or nac.status}); {_count(worked)} do."
    parts = [_place(nac, worked, g) for g in groups if nac.value(g) is not None]
    if not parts:
        return "NAC ran, but there is no near-OOD or far-OOD mean to rank it by."
    alone = " It is the only method with a result." if len(worked) == 1 else ""
    return f"NAC is {' and '.join(parts)}.{alone}"


def _count(worked: Sequence[Standing]) -> str:
    return f"{len(worked)} method{'' if len(worked) == 1 else 's'}"


def _place(nac: Standing, worked: Sequence[Standing], group: str) -> str:
    """`2nd of 20 on near-OOD (AUROC 88.10, 0.52 behind KNN)`."""
    ranked = [s for s in worked if s.value(group) is not None]
    mine, rank = nac.values[group, "AUROC"], nac.ranks[group]
    others = sorted((s for s in ranked if s is not nac), key=lambda s: -s.values[group, "AUROC"][0])
    gap = ""
    if others:
        distance = mine.mean - others[0].values[group, "AUROC"].mean
        side = "ahead of" if distance >= 0 else "behind"
        level = f"{abs(distance):.2f} points {side}"
        gap = f", {'level with' if abs(distance) < 0.005 else level} {others[0].title}"
    shared = "shared " if sum(s.ranks[group] == rank for s in ranked) > 1 else ""
    place = f"{shared}{ordinal(rank)} of {len(ranked)} on {GROUP_TITLES[group]}"
    return f"{place} (AUROC {mine.mean:.2f}{gap})"
