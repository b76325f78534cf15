"""A fitted detector as a file: the rule's tensors, everything else as JSON beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Mapping, Optional

import torch
from torch import Tensor, nn

from nac_openood import files, tensor_files
from nac_openood.__about__ import __version__
from nac_openood.core.coverage import Coverage
from nac_openood.core.layer_config import whole_number
from nac_openood.core.pvalues import PValues
from nac_openood.core.restoring import stored_values
from nac_openood.core.rule import Rule
from nac_openood.core.rules import rule_named
from nac_openood.errors import FileError, NACError
from nac_openood.network.fingerprint import difference
from nac_openood.network.inputs import PRECISIONS
from nac_openood.records import from_values

#: Version 2 names its rule; version 1 knew reference NAC only.
_KIND, _VERSION = "nac_openood detector", 2
_BY_NAME = {name: dtype for dtype, name in PRECISIONS.items()}
#: What the rule's tensors begin with, and the scores that p-values are taken against.
_RULE, _SCORES = "rule/", "calibration"


@dataclass(frozen=True)
class FitSummary:
    """What a detector was fitted on: samples, and how many of each class (empty if unlabeled)."""

    n_samples: int
    class_counts: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: FitSummary) -> FitSummary:
        counts = Counter(self.class_counts) + Counter(other.class_counts)
        return FitSummary(self.n_samples + other.n_samples, dict(sorted(counts.items())))


@dataclass(frozen=True)
class Fitted:
    """What a file holds."""

    rule: Rule
    summary: FitSummary
    threshold: Optional[float]
    pvalues: Optional[PValues] = None
    classes: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    autocast: Optional[torch.dtype] = None


def save(path: files.PathLike, fitted: Fitted, network: Mapping[str, str]) -> None:
    """Write `fitted` with the fingerprint of its network."""
    about = {
        "nac_openood": __version__,
        "torch": str(torch.__version__),
        "rule": fitted.rule.name,
        "settings": fitted.rule.settings(),
        "network": dict(network),
        "summary": asdict(fitted.summary),
        "threshold": fitted.threshold,
        "classes": list(fitted.classes),
        "notes": dict(fitted.notes),
        "autocast": None if fitted.autocast is None else PRECISIONS[fitted.autocast],
    }
    tensors = {f"{_RULE}{name}": tensor for name, tensor in fitted.rule.tensors().items()}
    if fitted.pvalues is not None:
        tensors[_SCORES] = fitted.pvalues.scores
    tensor_files.write_tensors(path, _KIND, _VERSION, tensors, about)


def load(path: files.PathLike, net: nn.Module) -> Fitted:
    """Read what `save` wrote, if `net` is the network it was fitted on."""
    return read_fitted(path, lambda network: _refuse_other_network(path, network, net))[0]


def read_fitted(
    path: files.PathLike, check: Callable[[Mapping[str, str]], None] = lambda network: None
) -> tuple[Fitted, Mapping[str, str]]:
    """Read what `save` wrote, and the fingerprint of its network, which `check` may refuse."""
    tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
    with files.damage(path, "Fit again"):
        noted = _noted(about)
        check(noted.network)
        own = _of_rule(about, {n: t for n, t in tensors.items() if n != _SCORES})
        rule = rule_named(noted.rule).restore(noted.settings, own)
        pvalues = PValues(stored_values(tensors, _SCORES, 1)) if _SCORES in tensors else None
        precision = None if noted.autocast is None else _BY_NAME[noted.autocast]
        fitted = Fitted(
            rule, noted.summary, noted.threshold, pvalues, noted.classes, noted.notes, precision
        )
    return fitted, noted.network


def notes_of(path: files.PathLike) -> Mapping[str, str]:
    """The notes in a detector's file, read without the network."""
    _, about = tensor_files.read_tensors(path, _KIND, _VERSION)
    with files.damage(path, "Fit again"):
        noted = _noted(about)
    return noted.notes


@dataclass(frozen=True)
class _Noted:
    """What a file says beside its tensors; early ones have no classes, notes and precision."""

    network: Mapping[str, str]
    summary: FitSummary
    threshold: Optional[float]
    rule: str
    settings: Mapping[str, Any]
    nac_openood: str = ""
    torch: str = ""
    classes: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    autocast: Optional[str] = None

    def __post_init__(self) -> None:
        if self.autocast is not None and self.autocast not in _BY_NAME:
            raise NACError(f"'autocast' must be one of {list(_BY_NAME)}, got {self.autocast!r}.")
        n_samples = whole_number("n_samples", self.summary.n_samples, 0)
        if not all(0 <= count <= n_samples for count in self.summary.class_counts.values()):
            raise NACError("'class_counts' must be numbers of samples by class.")


def _noted(about: Mapping[str, Any]) -> _Noted:
    """Check everything but the rule's own settings, which version 1 kept beside the rest."""
    if "rule" not in about:
        kept = {name: about[name] for name in ("layers", "n_samples") if name in about}
        others = {name: value for name, value in about.items() if name not in kept}
        about = {**others, "rule": Coverage.name, "settings": kept}
    return from_values(_Noted, about)


def _refuse_other_network(path: files.PathLike, saved: Mapping[str, str], net: nn.Module) -> None:
    differs = difference(saved, net)
    if differs:
        raise FileError(
            f"{path} was fitted on another network: {differs}. Load the network it was fitted "
            "on, with the same weights (its checkpoint), or fit again."
        )


def _of_rule(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The rule's tensors, which version 1 kept without a prefix."""
    if "rule" not in about:
        return tensors
    strange = [name for name in tensors if not name.startswith(_RULE)]
    if strange:
        raise NACError(f"unknown tensor {strange}.")
    return {name[len(_RULE) :]: tensor for name, tensor in tensors.items()}


def refuse_other_layers(path: files.PathLike, fitted: Rule, wanted: Mapping[str, Any]) -> None:
    """Raise if a file was fitted with other layers or settings than `wanted`."""
    if fitted.layers == dict(wanted):
        return
    if set(fitted.layers) != set(wanted):
        what = f"layers {list(fitted.layers)}, not {list(wanted)}"
    else:
        name = next(n for n in wanted if wanted[n] != fitted.layers[n])
        what = f"layer '{name}' as {fitted.layers[name]}, not {wanted[name]}"
    raise FileError(f"{path} was fitted with {what}. Fit again, or load it without `layers`.")
