"""Records NAC-ME while a network trains, keeps the best checkpoint, and stops early."""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Optional

from torch import nn

from nac_openood import files
from nac_openood.core.layer_config import IntegralConfig, whole_number
from nac_openood.detector.config import AUTO
from nac_openood.evaluation.integral import coverage_integral
from nac_openood.network.replica import unwrap


class Measured(NamedTuple):
    """Coverage at a training step."""

    step: int
    coverage: float


class CoverageMonitor:
    """Measures the coverage of a network every n steps of any training loop.

    Examples:
        >>> monitor = CoverageMonitor(train_loader, every=300, path="best.pt", patience=5)
        >>> for step, (x, y) in enumerate(batches, start=1):
        ...     ...  # a training step
        ...     monitor(step, net)
        ...     if monitor.should_stop:
        ...         break
        >>> monitor.best  # Measured(step=1200, coverage=0.0213)

    Args:
        loader: labeled batches of training data without augmentation, as in `coverage_integral`,
            which is read at every measurement; a fixed subset of a few thousand samples is enough.
        every: number of steps between measurements.
        layer: as in `coverage_integral`.
        config: as in `coverage_integral`.
        path: file for the weights (`state_dict`) of the best step; None saves none.
        patience: number of measurements without a new best one after which to stop; None never
            stops.
        progress: whether to show progress bars.

    Attributes:
        history: all measurements, in order.
        best: the highest one, the first of equal ones; None before the first.
        should_stop: whether patience has run out.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        every: int = 300,
        layer: str = AUTO,
        config: Optional[IntegralConfig] = None,
        path: Optional[files.PathLike] = None,
        patience: Optional[int] = None,
        progress: Optional[bool] = False,
    ) -> None:
        self.loader, self.layer, self.config, self.path = loader, layer, config, path
        self.every = whole_number("every", every, 1)
        self.patience = None if patience is None else whole_number("patience", patience, 1)
        self.progress = progress
        self.history: list[Measured] = []

    def __call__(self, step: int, net: nn.Module) -> Optional[float]:
        """Measure every `every` steps; returns G, or None at other steps.

        Args:
            step: number of training steps done.
            net: the network; its weights, mode and statistics are not changed.
        """
        if step % self.every or (self.history and self.history[-1].step == step):
            return None
        found = self.measure(step, net)
        if self.path is not None and self.best == self.history[-1]:
            files.write_weights(self.path, unwrap(net))
        return found

    def measure(self, step: int, net: nn.Module) -> float:
        """Measure now and add to `history`, without saving anything."""
        found = coverage_integral(net, self.loader, self.layer, self.config, progress=self.progress)
        self.history.append(Measured(step, found))
        return found

    @property
    def best(self) -> Optional[Measured]:
        """The highest coverage so far, the first of equal ones."""
        return max(self.history, key=lambda each: each.coverage) if self.history else None

    @property
    def should_stop(self) -> bool:
        """Whether the last `patience` measurements brought no new best one."""
        if self.patience is None or self.best is None:
            return False
        return len(self.history) - 1 - self.history.index(self.best) >= self.patience
