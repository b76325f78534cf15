"""Numbers, names of datasets and names of metrics as text."""

from __future__ import annotations

import json
from typing import Any, Mapping, NamedTuple, Optional

from nac_openood.benchmark.run.results import GROUP_WORDS
from nac_openood.tables import NOTHING

_SETS = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "embedded": "handwritten digits 0 to 7",
    "imagenet": "ImageNet-1K", "imagenet200": "ImageNet-200", "imagenet_v2": "ImageNet-V2",
    "imagenet_c": "ImageNet-C", "imagenet_r": "ImageNet-R", "tin": "Tiny ImageNet",
    "mnist": "MNIST", "svhn": "SVHN", "texture": "Textures", "textures": "Textures",
    "places365": "Places365", "ssb_hard": "SSB-hard", "ninco": "NINCO",
    "inaturalist": "iNaturalist", "openimage_o": "OpenImage-O", "digits_8_9": "digits 8, 9",
    "mnist_8_9": "MNIST 8, 9", "mnist_0_7": "MNIST 0 to 7", **GROUP_WORDS,
}  # fmt: skip


class Metric(NamedTuple):
    """How a metric is shown: its title, convention, which values are better, and its meaning."""

    title: str
    note: str = ""
    better: str = ""
    meaning: str = ""

    def __str__(self) -> str:
        return f"{self.title} ({self.note})" if self.note else self.title


#: The metrics of the tables and figures, in order.
SHOWN = {
    "AUROC": Metric("AUROC", better="higher"),
    "FPR@95": Metric(
        "FPR@95", "OOD found", "lower",
        "the share of ID samples rejected when 95 % of OOD samples are found (as in OpenOOD)",
    ),
    "FPR@95_IN": Metric(
        "FPR@95", "ID kept", "lower",
        "the share of OOD samples accepted when 95 % of ID samples are kept (as in most papers "
        "and NACDetector.calibrate)",
    ),
}  # fmt: skip

#: Metrics that are shown by dataset only.
MORE = {
    "AUPR_IN": Metric("AUPR", "ID positive", "higher"),
    "AUPR_OUT": Metric("AUPR", "OOD positive", "higher"),
}


def set_title(name: str) -> str:
    """A dataset's name as papers write it."""
    return _SETS.get(name, name)


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def quantity(value: Optional[float]) -> str:
    """Three significant digits, or a whole number from 100 on."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(fraction: float) -> str:
    """A fraction as percent."""
    return f"{100 * fraction:.2f} %"


def ordinal(rank: int) -> str:
    """1st, 2nd, 3rd, 4th, ..., 11th, ..., 21st."""
    teen = rank % 100 in (11, 12, 13)
    return f"{rank}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(rank % 10, 'th')}"


def count(n: int, noun: str, plural: str = "") -> str:
    """`1 method`, `2 methods`."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def one_line(value: Any) -> str:
    """A hyperparameter on one line, as JSON unless it is a string."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def settings_text(hyperparameters: Mapping[str, Any]) -> str:
    """`K = 50, alpha = 0.1`, or `none`."""
    return ", ".join(f"{k} = {one_line(v)}" for k, v in hyperparameters.items()) or "none"
