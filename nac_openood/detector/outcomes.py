"""Results of a detector: scores of a dataset, verdicts on samples, explanations."""

from __future__ import annotations

import warnings
import weakref
from html import escape
from itertools import islice
from numbers import Real
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.layer_config import whole_number
from nac_openood.core.pvalues import ALPHA, PValues
from nac_openood.core.reading import BatchReadings, Reading, logits_in
from nac_openood.core.rule import Rule
from nac_openood.detector import display
from nac_openood.errors import NACError


class Scores(NamedTuple):
    """Scores of a dataset as NumPy arrays `[samples]`; `label` is -1 where there was none.

    Higher scores mean more in-distribution. `by_layer` holds what each layer contributed,
    `[samples]` each, for methods that have layers.
    """

    score: np.ndarray
    prediction: np.ndarray
    label: np.ndarray
    by_layer: Mapping[str, np.ndarray] = {}

    def __repr__(self) -> str:
        finite, known = self.score[np.isfinite(self.score)], self.label >= 0
        if not len(finite):
            return f"Scores of {len(self.score):,} samples, none of them finite"
        low, middle, high = np.quantile(finite, [0.05, 0.5, 0.95])
        right = (self.prediction == self.label)[known]
        missing = len(self.score) - len(finite)
        lines = {
            "score": f"median {middle:.4g}; 90 % lie between {low:.4g} and {high:.4g}",
            "not finite": f"{missing:,} samples" if missing else None,
            "label": f"of {known.sum():,} samples; accuracy {display.share_text(right.mean())}"
            if known.any()
            else "none",
            "by_layer": ", ".join(self.by_layer),
        }
        return display.described(f"Scores of {len(self.score):,} samples", lines)


class Images:
    """A weak reference to the images of a batch, which are shown while the caller keeps them."""

    def __init__(self, x: Any = None) -> None:
        shown = isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] in (1, 3)
        self._batch: Any = weakref.ref(x) if shown else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Images, ()  # a reference cannot be pickled

    def pictures(self, n: int = display.MOST) -> list[str]:
        """HTML of the first `n` images; empty texts where there are none."""
        batch = None if self._batch is None else self._batch()
        shown = () if batch is None else batch[:n].detach().cpu()
        return [*map(display.picture, shown), *[""] * (n - len(shown))]


class _Verdicts(NamedTuple):
    prediction: Tensor
    confidence: Tensor
    score: Tensor
    p_value: Tensor


class Verdicts(_Verdicts):
    """The results of a detector for a batch, in tensors `[batch]` on the CPU.

    Attributes:
        prediction: the network's class, int64.
        confidence: the softmax probability of that class, float64.
        score: higher = more in-distribution; NaN where readings were NaN or Inf.
        p_value: how unusual the score is, float64; NaN where the score is.
        alpha: the level at which they are shown as out-of-distribution.
        classes: names of the network's classes, for showing.
        images: the samples, for showing.
    """

    alpha: float = ALPHA
    classes: Sequence[str] = ()
    images = Images()

    def out(self, alpha: float = ALPHA) -> Tensor:
        """Whether each sample counts as out-of-distribution, bool `[batch]`.

        At most a share `alpha` of in-distribution samples will, on average. Samples without a
        p-value always do.
        """
        return ~(self.p_value > checked_alpha(alpha))

    def __repr__(self) -> str:
        heads = ("", *self._HEADS)
        rows = [(str(n), *cells[:-1], "out" if cells[-1] else "in") for n, cells in self._rows()]
        return f"{self._caption()}\n{display.text_rows([heads, *rows])}"

    def _repr_html_(self) -> str:
        pictures = self.images.pictures()
        rows = [
            (pictures[n] or str(n), *map(escape, cells[:-1]), display.badge(cells[-1]))
            for n, cells in self._rows()
        ]
        return display.html_table(("", *self._HEADS), rows, self._caption())

    _HEADS = ("class", "confidence", "score", "p-value", "decision")

    def _caption(self) -> str:
        n, out = len(self.score), int(self.out(self.alpha).sum())
        more = f"; the first {display.MOST}" if n > display.MOST else ""
        return f"Verdicts on {n:,} samples, {out:,} out-of-distribution (p <= {self.alpha:g}){more}"

    def _rows(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Number, class, confidence, score, p-value and decision of the first samples."""
        names, out = dict(enumerate(self.classes)), self.out(self.alpha).tolist()
        for n, (answer, sure, score, p) in enumerate(
            zip(*(column[: display.MOST].tolist() for column in self))
        ):
            name = names.get(answer, str(answer))
            yield n, (name, display.share_text(sure), f"{score:.4g}", f"{p:.2g}", out[n])


#: Usual values, for errors.
_USUAL = {"tpr": 0.95, "confidence": 0.9, "fdr": 0.1}


def checked_alpha(alpha: float, name: str = "alpha") -> float:
    """Return `alpha` if it is a number between 0 and 1; an error calls it `name`."""
    if not isinstance(alpha, Real) or not 0 < alpha < 1:
        usual = _USUAL.get(name, ALPHA)
        raise NACError(f"`{name}` must lie between 0 and 1, got {alpha!r}. Usual is {usual}.")
    return float(alpha)


class Explanation(NamedTuple):
    """Why a sample has its score.

    Attributes:
        score: higher = more in-distribution.
        p_value: None before `calibrate`.
        contributions: how much each layer (and the logits) adds; they sum to the score.
        neurons: by layer, the least covered neurons and how well they are covered.
    """

    score: float
    p_value: Optional[float]
    contributions: dict[str, float]
    neurons: dict[str, dict[int, float]]

    def __repr__(self) -> str:
        rows = [("part", "adds", "least covered neurons"), *self._rows()]
        return f"Explanation: {self._caption()}\n{display.text_rows(rows)}"

    def _repr_html_(self, picture: str = "", largest: float = 0.0) -> str:
        """A table beside a picture, with bars relative to `largest`, or to the longest of them."""
        largest = max([largest, *map(abs, self.contributions.values())]) or 1.0
        rows = [
            (escape(name), adds, display.colored_bar(float(adds), largest), least)
            for name, adds, least in self._rows()
        ]
        heads = ("part", "adds", "", "least covered neurons (how well)")
        table = display.html_table(heads, rows, self._caption())
        return f'<div style="display:flex;gap:16px;padding:8px 0">{picture}{table}</div>'

    def _caption(self) -> str:
        p = "no p-value" if self.p_value is None else f"p = {self.p_value:.2g}"
        return f"score {self.score:.4g}, {p}"

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Name, contribution and least covered neurons of each part."""
        for name, value in self.contributions.items():
            least = ", ".join(f"#{n} ({v:.3g})" for n, v in self.neurons.get(name, {}).items())
            yield name, f"{value:.3g}", least


class Explanations(list[Explanation]):
    """Explanations of a batch, which notebooks show with its `images`."""

    images = Images()

    def _repr_html_(self) -> str:
        shown = list(zip(self, self.images.pictures()))
        largest = max((abs(v) for why, _ in shown for v in why.contributions.values()), default=0)
        more = f"<p>and {len(self) - display.MOST} more</p>" if len(self) > display.MOST else ""
        return "".join(why._repr_html_(image, largest) for why, image in shown) + more


def explanations(
    rule: Rule, readings: BatchReadings, pvalues: Optional[PValues], top: int
) -> Explanations:
    """Explain every sample of a pass, naming the `top` least covered neurons per layer."""
    top = whole_number("top", top, 0)
    parts = rule.parts(readings)
    score = rule.combine(parts)
    report_nonfinite(score)
    contributions = rule.contributions(parts)
    p_values = [None] * len(score)
    if pvalues is not None:
        p_values = pvalues(score, readings.logits.argmax(dim=1)).tolist()
    worst = {
        name: covered.topk(min(top, covered.shape[1]), dim=1, largest=False)
        for name, covered in rule.neurons(readings).items()
    }
    found = (
        Explanation(
            score=float(score[row]),
            p_value=p_values[row],
            contributions={name: float(part[row]) for name, part in contributions.items()},
            neurons={
                name: dict(zip(found.indices[row].tolist(), found.values[row].tolist()))
                for name, found in worst.items()
            },
        )
        for row in range(len(score))
    )
    return Explanations(found)


class ScoredBatch(NamedTuple):
    """Scores of samples by part, `[samples]` each, with the network's predictions.

    Labels are -1 where there were none; `n_classes` is the number of the network's classes.
    """

    parts: Mapping[str, Tensor]
    prediction: Tensor
    label: Tensor
    n_classes: int

    @classmethod
    def joined(cls, batches: Iterable[ScoredBatch]) -> ScoredBatch:
        """All batches as one, on the CPU.

        They are joined by the hundred as they come, because many small tensors take much more
        memory than their sizes.
        """
        ahead, whole = iter(batches), []
        while group := list(islice(ahead, 100)):
            whole.append(cls._concatenated(group))
        if not whole:
            raise NACError("the loader yielded no batch: there is nothing to score.")
        return cls._concatenated(whole)

    @classmethod
    def _concatenated(cls, batches: Sequence[ScoredBatch]) -> ScoredBatch:
        parts, predictions, labels, n_classes = zip(*batches)
        by_part = {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}
        return cls(by_part, torch.cat(predictions).cpu(), torch.cat(labels), n_classes[0])


def score_batch(rule: Rule, readings: Mapping[str, Reading], label: Tensor) -> ScoredBatch:
    """Score the readings of a batch."""
    logits = logits_in(readings)
    return ScoredBatch(rule.parts(readings), logits.argmax(dim=1), label, logits.shape[1])


def report_nonfinite(scores: Tensor, nonfinite: str = "raise") -> None:
    """Raise or warn if samples have scores of NaN, that is, readings that are not finite."""
    if nonfinite not in ("raise", "nan"):
        raise NACError(f"`nonfinite` must be 'raise' or 'nan', got {nonfinite!r}.")
    broken = int(scores.isnan().sum())
    if not broken:
        return
    message = f"{broken} of {len(scores)} samples have NaN or Inf readings"
    if nonfinite != "nan":
        raise NACError(
            f"{message}. Check the inputs (normalization, corrupt images) and the precision; "
            "`score(..., nonfinite='nan')` returns NaN for them."
        )
    warnings.warn(f"{message}; their score is NaN.", RuntimeWarning, stacklevel=3)


def warn_if_saturated(rule: Rule) -> None:
    """Warn if a layer gives nearly all samples the same score."""
    found = list(rule.saturated().values())
    if found:
        warnings.warn(
            f"{'; '.join(found)}. `nac_openood.advise` suggests settings, and rule='nac_plus' "
            "needs none.",
            stacklevel=3,
        )
