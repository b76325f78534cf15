"""A fitted detector as a file: the tensors of the rule, and everything else as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Mapping, Optional

import torch
from torch import nn

from nac_openood import tensor_files
from nac_openood.__about__ import __version__
from nac_openood.core.coverage import Coverage
from nac_openood.core.pvalues import PValues
from nac_openood.core.rule import Rule, rule_named
from nac_openood.errors import FileError
from nac_openood.files import PathLike, damage
from nac_openood.network.fingerprint import difference
from nac_openood.records import from_values

#: Version 2 names its rule; version 1 is always reference NAC.
_KIND, _VERSION = "nac_openood detector", 2
#: The prefix of the rule's tensors, and the name of the scores that p-values are computed from.
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
    """The content of a detector's file.

    Args:
        rule: the fitted rule.
        network: fingerprint of the network it was fitted on.
        summary: what it was fitted on.
        threshold: the decision threshold; None before calibration.
        pvalues: converts scores to p-values; None before calibration.
        classes: names of the network's classes.
        notes: strings by name.
        autocast: name of the precision that the network ran in; None for its own.
    """

    rule: Rule
    network: Mapping[str, str]
    summary: FitSummary
    threshold: Optional[float]
    pvalues: Optional[PValues] = None
    classes: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    autocast: Optional[str] = None

    def save(self, path: PathLike) -> None:
        """Write the file, atomically."""
        about = {
            "nac_openood": __version__,
            "torch": str(torch.__version__),
            "rule": self.rule.name,
            "settings": self.rule.settings(),
            "network": dict(self.network),
            "summary": asdict(self.summary),
            "threshold": self.threshold,
            "classes": list(self.classes),
            "notes": dict(self.notes),
            "autocast": self.autocast,
        }
        tensors = {f"{_RULE}{name}": tensor for name, tensor in self.rule.tensors().items()}
        if self.pvalues is not None:
            tensors[_SCORES] = self.pvalues.scores
        tensor_files.write_tensors(path, _KIND, _VERSION, tensors, about)

    @classmethod
    def load(cls, path: PathLike, net: Optional[nn.Module] = None) -> Fitted:
        """Load a file that `save` wrote.

        Args:
            path: the file.
            net: the network, which must be the one it was fitted on; None skips this check.
        """
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        differs = net is not None and difference(about.get("network", {}), net)
        if differs:
            raise FileError(
                f"{path} was fitted on another network: {differs}. Load the network it was fitted "
                "on, with the same weights (its checkpoint), or fit again."
            )
        with damage(path, "Fit again"):
            about = {k: v for k, v in about.items() if k not in ("nac_openood", "torch")}
            scores = tensors.pop(_SCORES, None)
            if "rule" in about:
                rule = rule_named(about.pop("rule")).restore(
                    about.pop("settings"), {n.removeprefix(_RULE): t for n, t in tensors.items()}
                )
            else:  # version 1: settings are top-level entries, tensors have no prefix
                names: set[str] = {"layers", "n_samples"} & set(about)
                rule = Coverage.restore({name: about.pop(name) for name in names}, tensors)
            pvalues = None if scores is None else PValues(scores)
            return from_values(cls, about, rule=rule, pvalues=pvalues)
