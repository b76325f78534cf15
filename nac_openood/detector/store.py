"""A fitted detector as a file: the rule's tensors, everything else as JSON beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Mapping, Optional

import torch
from torch import Tensor, nn

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.core.coverage import Coverage
from nac_openood.core.pvalues import PValues
from nac_openood.core.rule import Rule
from nac_openood.core.rules import rule_named
from nac_openood.errors import FileError, NACError
from nac_openood.network.fingerprint import difference, fingerprint

#: Version 2 names its rule; version 1 knew reference NAC only.
_KIND, _VERSION = "nac_openood detector", 2
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


def save(path: files.PathLike, fitted: Fitted, net: nn.Module) -> None:
    """Write `fitted` with the fingerprint of `net`."""
    about = {
        "nac_openood": __version__,
        "torch": str(torch.__version__),
        "rule": fitted.rule.name,
        "settings": fitted.rule.settings(),
        "network": fingerprint(net),
        "summary": asdict(fitted.summary),
        "threshold": fitted.threshold,
    }
    tensors = {f"{_RULE}{name}": tensor for name, tensor in fitted.rule.tensors().items()}
    if fitted.pvalues is not None:
        tensors[_SCORES] = fitted.pvalues.scores
    files.write(path, _KIND, _VERSION, tensors, about)


def load(path: files.PathLike, net: nn.Module) -> Fitted:
    """Read what `save` wrote, if `net` is the network it was fitted on."""
    tensors, about = files.read(path, _KIND, _VERSION)
    try:
        differs = difference(about["network"], net)
        if differs:
            raise FileError(
                f"{path} was fitted on another network: {differs}. Load the network it was fitted "
                "on, or fit again."
            )
        rule = rule_named(about.get("rule", Coverage.name))
        restored = rule.restore(_settings(about), _of_rule(about, tensors))
        counted = {int(k): v for k, v in about["summary"]["class_counts"].items()}
        summary = FitSummary(about["summary"]["n_samples"], counted)
        pvalues = PValues(tensors[_SCORES]) if _SCORES in tensors else None
        return Fitted(restored, summary, about["threshold"], pvalues)
    except KeyError as error:
        raise FileError(f"{path} is damaged: {error} is missing.") from error
    except FileError:
        raise
    except NACError as error:
        raise FileError(f"{path} is damaged: {error}") from error


def _settings(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rule's settings, which version 1 kept beside everything else."""
    if "rule" in about:
        return about["settings"]
    return {"layers": about["layers"], "n_samples": about["n_samples"]}


def _of_rule(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The rule's tensors, which version 1 kept without a prefix."""
    if "rule" not in about:
        return tensors
    return {n[len(_RULE) :]: tensor for n, tensor in tensors.items() if n.startswith(_RULE)}


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
