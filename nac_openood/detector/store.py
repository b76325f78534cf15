"""A fitted detector as a file: the tensors of the rule, and everything else as JSON."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Mapping, Optional, Union

import torch
from torch import Tensor, nn

from nac_openood import tensor_files
from nac_openood.__about__ import __version__
from nac_openood.core.coverage import Coverage
from nac_openood.core.pvalues import PValues
from nac_openood.core.rule import Rule, rule_named
from nac_openood.detector.batches import Batch
from nac_openood.detector.display import share_text
from nac_openood.errors import FileError, why_unreadable
from nac_openood.files import PathLike
from nac_openood.network.checks import InputRange, kept_hashes, sample_hashes
from nac_openood.network.fingerprint import difference
from nac_openood.network.inputs import PRECISIONS, named_output
from nac_openood.records import from_values

#: Version 1 is always reference NAC, and 2 names its rule. Version 3 says how it was calibrated;
#: before it, the calibration samples also shaped the score of NAC+.
_KIND, _VERSION = "nac_openood detector", 3
#: The prefix of the rule's tensors, and the names of the calibration samples' scores and classes.
_RULE, _SCORES, _CLASSES = "rule/", "calibration", "calibration classes"
#: For how many batches correct predictions are counted at once.
_BATCHES = 10
#: The note with the shape of the inputs that a detector was fitted on.
SHAPE = "input_shape"
#: What a file says about the calibration: arguments of `PValues`.
_PVALUE_OPTIONS = ("alpha", "confidence", "per_class", "exact")
_DTYPES = {name: dtype for dtype, name in PRECISIONS.items()}


@dataclass(frozen=True)
class FitSummary:
    """What a detector was fitted on: samples, and how many of each class (empty if unlabeled).

    `n_right` is how many of them the network classified correctly; None if that was not counted,
    also for a detector from a file. `inputs` describes the samples; None where that is unknown.
    `hashes` identify them.
    """

    n_samples: int
    class_counts: Mapping[int, int] = field(default_factory=dict)
    n_right: Optional[int] = field(default=None, compare=False)
    inputs: Optional[InputRange] = field(default=None, compare=False, repr=False)
    hashes: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of_batch(cls, batch: Batch) -> FitSummary:
        """The summary of a single batch, without `n_right`."""
        x, labels = batch.data, [] if batch.label is None else batch.label.tolist()
        hashes = kept_hashes(sample_hashes(x))
        return cls(batch.size, Counter(labels), inputs=InputRange.of(x), hashes=hashes)

    def __repr__(self) -> str:
        counts, of = sorted(self.class_counts.values()), ""
        if counts:
            each = (
                f"{counts[0]:,} to {counts[-1]:,}" if counts[0] < counts[-1] else f"{counts[0]:,}"
            )
            of = f" of {len(counts)} classes, {each} of each"
            if self.n_right is not None:  # the first sign of wrong weights, labels or transforms
                of += f"; the network is right on {share_text(self.n_right / sum(counts))}"
        return f"{self.n_samples:,} samples{of}"

    def __add__(self, other: FitSummary) -> FitSummary:
        counts = Counter(self.class_counts) + Counter(other.class_counts)
        both = self.inputs and other.inputs and self.inputs + other.inputs
        inputs = both or self.inputs or other.inputs
        n_samples, counted = self.n_samples + other.n_samples, dict(sorted(counts.items()))
        hashes = kept_hashes(self.hashes, other.hashes)
        rights = [each.n_right for each in (self, other) if each.n_samples]
        n_right = None if None in rights else sum(n for n in rights if n)
        return FitSummary(n_samples, counted, n_right, inputs, hashes)


class CorrectCount:
    """Counts correct predictions, without waiting for the device after every batch.

    It does not keep those of a whole fit: many small tensors take much more memory than their
    sizes, because what is freed between them is often too small to be used again.
    """

    def __init__(self) -> None:
        self._n = 0
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def add(self, predicted: Tensor, label: Tensor) -> None:
        """Add the predicted and the true classes of a batch, on any device."""
        self._waiting.append((predicted, label))
        if len(self._waiting) == _BATCHES:
            self.total()

    def total(self) -> int:
        """How many predictions were correct so far."""
        if self._waiting:
            predicted, label = map(torch.cat, zip(*self._waiting))
            self._n += int((predicted.cpu() == label.cpu()).sum())
            self._waiting.clear()
        return self._n


@dataclass(frozen=True)
class StoredDetector:
    """The content of a detector's file.

    Args:
        rule: the fitted rule.
        network: fingerprint of the network it was fitted on.
        summary: what it was fitted on.
        threshold: the decision threshold; None before calibration.
        pvalues: converts scores to p-values; None before calibration.
        classes: names of the network's classes.
        notes: strings by name.
        autocast: the precision that the network ran in; None for its own.
        output: which output of the network are the logits; None for the usual one.
    """

    rule: Rule
    network: Mapping[str, str]
    summary: FitSummary
    threshold: Optional[float]
    pvalues: Optional[PValues] = None
    classes: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    autocast: Optional[torch.dtype] = None
    output: Union[int, str, None] = None

    def save(self, path: PathLike) -> None:
        """Write the file, atomically."""
        about = {
            "nac_openood": __version__,
            "torch": str(torch.__version__),
            "rule": self.rule.name,
            "settings": self.rule.settings(),
            "network": dict(self.network),
            "summary": {name: v for name, v in asdict(self.summary).items() if name != "n_right"},
            "threshold": self.threshold,
            "classes": list(self.classes),
            "notes": dict(self.notes),
            "autocast": None if self.autocast is None else PRECISIONS[self.autocast],
            "output": self.output,
        }
        tensors = {f"{_RULE}{name}": tensor for name, tensor in self.rule.tensors().items()}
        if self.pvalues is not None:
            tensors[_SCORES] = self.pvalues.scores
            about["calibration"] = {name: getattr(self.pvalues, name) for name in _PVALUE_OPTIONS}
            if self.pvalues.classes is not None:
                tensors[_CLASSES] = self.pvalues.classes
        tensor_files.write_tensors(path, _KIND, _VERSION, tensors, about)

    @classmethod
    def load(cls, path: PathLike, net: Optional[nn.Module] = None) -> StoredDetector:
        """Load a file that `save` wrote.

        Args:
            path: the file.
            net: the network, which must be the one it was fitted on; None skips this check.
        """
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        net = None if net is None else named_output(net, about.get("output"))
        differs = net is not None and difference(about.get("network", {}), net)
        if differs:
            raise FileError(
                f"{path} was fitted on another network: {differs}. Load the network it was fitted "
                "on, with the same weights (its checkpoint), or fit again."
            )
        try:
            about = {k: v for k, v in about.items() if k not in ("nac_openood", "torch")}
            scores, predicted = tensors.pop(_SCORES, None), tensors.pop(_CLASSES, None)
            if "rule" in about:
                rule = rule_named(about.pop("rule")).restore(
                    about.pop("settings"), {n.removeprefix(_RULE): t for n, t in tensors.items()}
                )
            else:  # version 1: settings are top-level entries, tensors have no prefix
                names: set[str] = {"layers", "n_samples"} & set(about)
                rule = Coverage.restore({name: about.pop(name) for name in names}, tensors)
            options = about.pop("calibration", {"exact": not rule.needs_calibration})
            pvalues = None if scores is None else PValues(scores, predicted, **options)
            precision = about.pop("autocast", None)
            autocast = None if precision is None else _DTYPES[precision]
            fitted = from_values(cls, about, rule=rule, pvalues=pvalues, autocast=autocast)
        except Exception as error:  # a file that was edited may lack or hold anything
            raise FileError(f"{path} is damaged: {why_unreadable(error)}. Fit again.") from error
        if pvalues is not None and not pvalues.exact:
            warnings.warn(
                f"{path} is of version 0.1: its scores are right, but its p-values hold only "
                "approximately. Calibrate again for guaranteed ones.",
                stacklevel=3,
            )
        return fitted
