"""NACDetector: where a network, a loader and coverage meet."""

from __future__ import annotations

import warnings
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Union

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood import store
from nac_openood.choose import LayerChoice, choose_layers
from nac_openood.core.coverage import Coverage, Pair, combine
from nac_openood.core.files import PathLike
from nac_openood.core.plan import PassPlan
from nac_openood.core.probe import Probed, Reading, read
from nac_openood.core.readings import Readings
from nac_openood.core.undisturbed import undisturbed
from nac_openood.data import AUTHORS_SEED, Batch, batches
from nac_openood.errors import NACError, NotFittedError
from nac_openood.fitting import count
from nac_openood.progress import bar
from nac_openood.store import FitSummary, Fitted
from nac_openood.thresholds import threshold_at


class Scores(NamedTuple):
    """Scores of a data set as NumPy arrays `[samples]`; `label` is -1 where there was none."""

    score: np.ndarray
    prediction: np.ndarray
    label: np.ndarray
    layers: dict[str, np.ndarray]


class NACDetector:
    """Neuron Activation Coverage on top of any classifier.

    Args:
        net: a network that returns logits `[batch, classes]`. It is never changed.
        layers: a preset (`"cifar10"`, `"cifar100"`, `"imagenet"`), a list of layer names, or a
            mapping of layer names to `LayerConfig`. A name is an alias of a known architecture
            (`avgpool`, `layer3`, `block11`, ...) or any dotted module path.
        fast: fold BatchNorm into convolutions and, on CPUs, use the memory layout that suits
            them. The same numbers up to float rounding, in clearly less time on CPUs.

    Attributes:
        coverage_: the fitted counts.
        fit_summary_: what they were fitted on.
        threshold_: the decision threshold, once calibrated.

    Example:
        >>> det = NACDetector(net, layers="imagenet").fit(train_loader, n_samples=1000)
        >>> det.score(images)                    # higher = more in-distribution
        >>> det.calibrate(val_loader).predict(images)
    """

    def __init__(self, net: nn.Module, layers: LayerChoice, *, fast: bool = False) -> None:
        self.net = net
        self.fast = fast
        self._plan: Optional[PassPlan] = None
        self.layers, self.configs = choose_layers(net, layers)
        self.coverage_: Optional[Coverage] = None
        self.fit_summary_: Optional[FitSummary] = None
        self.threshold_: Optional[float] = None

    # -- fitting ---------------------------------------------------------------------------

    def fit(
        self,
        loader: Iterable[Any],
        n_samples: Optional[int] = None,
        *,
        seed: int = AUTHORS_SEED,
        progress: Optional[bool] = None,
    ) -> NACDetector:
        """Count the neuron states of in-distribution training data.

        Args:
            loader: batches as OpenOOD dicts, `(x, y)` tuples or plain tensors, under the test
                transform. A `DataLoader` over an indexable data set is only read where needed.
            n_samples: size of the subset, class-balanced where labels exist (`n // classes` of
                each, drawn as the authors draw them); None takes everything.
            seed: of that draw.
            progress: a progress bar; None shows one on a terminal.
        """
        if n_samples is not None and n_samples < 1:
            raise NACError(f"n_samples must be at least 1 or None, got {n_samples}.")
        coverage = Coverage(self.configs)
        with undisturbed(self.net):
            counted = count(
                coverage, self.net, self._probe, loader, n_samples, seed=seed, progress=progress
            )
        coverage.check()
        self._accept(coverage, FitSummary(coverage.n_samples, counted.by_class))
        counted.warn_if_uneven()
        return self

    def fit_readings(self, readings: Union[Readings, Mapping[str, Pair]]) -> NACDetector:
        """Like `fit`, from readings `layer -> (activation, gradient)` made earlier."""
        coverage = Coverage(self.configs)
        for part in readings.batches() if isinstance(readings, Readings) else [readings]:
            coverage.update(part)
        coverage.check()
        self._accept(coverage, FitSummary(coverage.n_samples))
        return self

    def _accept(self, coverage: Coverage, summary: FitSummary) -> None:
        self.coverage_, self.fit_summary_ = coverage, summary
        self.threshold_ = None  # a threshold belongs to the counts it was chosen with

    @classmethod
    def from_coverage(
        cls, net: nn.Module, coverage: Coverage, *, fast: bool = False
    ) -> NACDetector:
        """A fitted detector from counts made earlier on the same network."""
        detector = cls(net, coverage.layers, fast=fast)
        coverage.check()
        detector._accept(coverage, FitSummary(coverage.n_samples))
        return detector

    # -- scoring ---------------------------------------------------------------------------

    def score(self, x: Tensor, *, nonfinite: str = "raise") -> Tensor:
        """Coverage of a batch, `[batch]` in [0, 1]; higher = more in-distribution.

        Args:
            x: samples `[batch, ...]`; moved to the network's device.
            nonfinite: what to do with samples whose readings are NaN or Inf: "raise" an error, or
                "nan" to score them NaN and warn with their number.
        """
        coverage = self._fitted()
        score = coverage.score(self._probe(x).layers)
        _report_nonfinite(int(score.isnan().sum()), score.shape[0], nonfinite)
        return score

    def score_readings(self, readings: Mapping[str, Pair]) -> Tensor:
        """Like `score`, from readings `layer -> (activation, gradient)`."""
        return self._fitted().score(readings)

    def score_loader(
        self,
        loader: Iterable[Any],
        *,
        progress: Optional[bool] = None,
        nonfinite: str = "raise",
    ) -> Scores:
        """Score a whole data set; labels come along where the loader has them."""
        coverage = self._fitted()
        parts: dict[str, list[Tensor]] = {name: [] for name in self.configs}
        predictions, labels = [], []
        with undisturbed(self.net):
            for batch, probed in self._probe_all(loader, "NAC score", progress):
                for name, part in coverage.layer_scores(probed.layers).items():
                    parts[name].append(part)
                predictions.append(probed.logits.argmax(dim=1))
                labels.append(batch.labels())
        layers = {name: torch.cat(part).cpu() for name, part in parts.items()}
        score = combine(layers, self.configs).numpy()
        _report_nonfinite(int(np.isnan(score).sum()), len(score), nonfinite)
        return Scores(
            score,
            torch.cat(predictions).cpu().numpy(),
            torch.cat(labels).numpy(),
            {name: part.numpy() for name, part in layers.items()},
        )

    def read_loader(
        self,
        loader: Iterable[Any],
        *,
        save_to: Optional[PathLike] = None,
        progress: Optional[bool] = None,
    ) -> Readings:
        """Read a whole data set once, to fit, score or search without the network afterwards.

        Args:
            loader: as in `fit`.
            save_to: a file that the readings are written to batch by batch; what is returned is
                mapped from it, so that they need not fit in memory.
            progress: a progress bar; None shows one on a terminal.
        """
        with undisturbed(self.net):
            parts = (
                Readings(
                    {n: Reading(*(t.cpu() for t in r)) for n, r in probed.layers.items()},
                    probed.logits.argmax(dim=1).cpu(),
                    batch.labels(),
                )
                for batch, probed in self._probe_all(loader, "NAC read", progress)
            )
            if save_to is not None:
                return Readings.save_parts(save_to, parts)
            return Readings.concatenate(list(parts))

    # -- deciding --------------------------------------------------------------------------

    def calibrate(
        self, loader: Iterable[Any], tpr: float = 0.95, *, progress: Optional[bool] = None
    ) -> NACDetector:
        """Choose the threshold that keeps `tpr` of this in-distribution data."""
        self.threshold_ = threshold_at(self.score_loader(loader, progress=progress).score, tpr)
        return self

    def predict(self, x: Tensor) -> Tensor:
        """True = in-distribution, bool `[batch]`. NaN or Inf readings are not in-distribution."""
        self._fitted()
        if self.threshold_ is None:
            raise NotFittedError("no threshold yet: call calibrate(loader) first.")
        return self.score(x, nonfinite="nan") >= self.threshold_

    # -- files -----------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write counts, settings, threshold and the network's fingerprint, atomically."""
        summary = self.fit_summary_ or FitSummary(0)
        store.save(path, Fitted(self._fitted(), summary, self.threshold_), self.net)

    @classmethod
    def load(
        cls,
        path: PathLike,
        net: nn.Module,
        *,
        layers: Optional[LayerChoice] = None,
        fast: bool = False,
    ) -> NACDetector:
        """Read what `save` wrote, for the very network it was fitted on.

        Args:
            path: the file.
            net: the network, with the same weights.
            layers: if given, what the file must have been fitted with.
            fast: as in the constructor.
        """
        fitted = store.load(path, net)
        detector = cls.from_coverage(net, fitted.coverage, fast=fast)
        if layers is not None:
            store.refuse_other_layers(path, fitted.coverage, choose_layers(net, layers)[1])
        detector.fit_summary_ = fitted.summary
        detector.threshold_ = fitted.threshold
        return detector

    # -- inside ----------------------------------------------------------------------------

    def _fitted(self) -> Coverage:
        if self.coverage_ is None:
            raise NotFittedError("this NACDetector is not fitted: call fit first.")
        return self.coverage_

    def _probe(self, x: Tensor) -> Probed:
        if self._plan is None:
            self._plan = PassPlan(self.net, x, fast=self.fast)
        return read(self.net, x, self.layers, self._plan)

    def _probe_all(
        self, loader: Iterable[Any], description: str, progress: Optional[bool]
    ) -> Iterator[tuple[Batch, Probed]]:
        seen = False
        for batch in batches(bar(loader, description, progress)):
            seen = True
            yield batch, self._probe(batch.data)
        if not seen:
            raise NACError("the loader yielded no batch: there is nothing to score.")


def _report_nonfinite(broken: int, total: int, nonfinite: str) -> None:
    if nonfinite not in ("raise", "nan"):
        raise NACError(f"nonfinite must be 'raise' or 'nan', got {nonfinite!r}.")
    if not broken:
        return
    message = f"{broken} of {total} samples have NaN or Inf readings"
    if nonfinite == "raise":
        raise NACError(
            f"{message}. Check the inputs (normalization, corrupt images) and the precision, or "
            "pass nonfinite='nan' to score them NaN."
        )
    warnings.warn(f"{message}; their score is NaN.", RuntimeWarning, stacklevel=3)
