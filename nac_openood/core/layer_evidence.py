"""What NAC+ learns about one layer: counts for the coverage, moments for the distance."""

from __future__ import annotations

from functools import cached_property
from typing import Mapping, Optional

import torch
from torch import Tensor

from nac_openood.core.activation_coverage import ActivationCoverage
from nac_openood.core.fine_counts import N_CELLS, FineCounts
from nac_openood.core.moments import Gaussian, Moments
from nac_openood.core.restoring import check_counts, refuse_other_tensors, stored_tensor
from nac_openood.errors import NACError

#: Wider layers have no distance: their covariance would take too much memory.
WIDEST = 2048
_TENSORS = ("counts", "first_cell", "n_samples", "moments/high", "moments/low")


class LayerEvidence:
    """Activations of the training data, summed up so that shards add up exactly.

    Args:
        counts: how often each neuron was in which range.
        moments: means and covariances; None for layers wider than `WIDEST`.
    """

    def __init__(self, counts: FineCounts, moments: Optional[Moments]) -> None:
        self.counts, self.moments = counts, moments

    @classmethod
    def empty(cls, neurons: int, device: torch.device) -> LayerEvidence:
        """No samples yet."""
        moments = Moments.empty(neurons, device) if neurons <= WIDEST else None
        return cls(FineCounts.empty(neurons, N_CELLS, device), moments)

    @property
    def n_samples(self) -> int:
        """How many samples were counted."""
        return self.counts.n_samples

    def update(self, activation: Tensor) -> None:
        """Add activations `[batch, neurons]`, on their device."""
        self.counts.to(activation.device).update(activation)
        if self.moments is not None:
            self.moments.to(activation.device).update(activation)
        self._forget()

    def merge(self, other: LayerEvidence) -> None:
        """Add what another one of the same layer has seen."""
        self.counts.merge(other.counts)
        if self.moments is not None and other.moments is not None:
            self.moments.merge(other.moments)
        self._forget()

    @cached_property
    def coverage(self) -> ActivationCoverage:
        """Of each neuron alone."""
        return ActivationCoverage(self.counts)

    @cached_property
    def gaussian(self) -> Optional[Gaussian]:
        """Of all neurons together; None for a wide layer."""
        return None if self.moments is None else Gaussian(self.moments)

    def _forget(self) -> None:
        for made_of_counts in ("coverage", "gaussian"):
            vars(self).pop(made_of_counts, None)

    # -- shards and files ------------------------------------------------------------------

    def addends(self) -> dict[str, Tensor]:
        """What the evidence of two shards adds up to, element by element."""
        named = {"counts": self.counts.counts}
        if self.moments is not None:
            named.update(high=self.moments.high, low=self.moments.low)
        return named

    @classmethod
    def of_sums(cls, sums: Mapping[str, Tensor]) -> LayerEvidence:
        """The evidence whose `addends` these are."""
        counts = FineCounts.of_sums(sums["counts"], N_CELLS)
        moments = Moments.of_sums(sums["high"], sums["low"]) if "high" in sums else None
        return cls(counts, moments)

    def tensors(self) -> dict[str, Tensor]:
        """Counts without empty cells at both ends; half of the symmetric moments."""
        first, end = _used(self.counts)
        named = {
            "counts": self.counts.counts[:, first:end].contiguous(),
            "first_cell": torch.tensor(first),
            "n_samples": torch.tensor(self.n_samples),
        }
        if self.moments is not None:
            rows, columns = _upper(self.moments.neurons)
            named["moments/high"] = self.moments.high.cpu()[rows, columns]
            named["moments/low"] = self.moments.low.cpu()[rows, columns]
        return named

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor]) -> LayerEvidence:
        """What `tensors` came from.

        Raises:
            NACError: where the tensors contradict each other.
        """
        refuse_other_tensors(tensors, _TENSORS)
        kept = stored_tensor(tensors, "counts", torch.int32, 2)
        first = int(stored_tensor(tensors, "first_cell", torch.int64, 0))
        n = int(stored_tensor(tensors, "n_samples", torch.int64, 0))
        if not 0 <= first <= N_CELLS - kept.shape[1] or not kept.shape[1]:
            raise NACError("the counts have the wrong shape.")
        check_counts("its activations", kept, n)
        found = cls.empty(kept.shape[0], kept.device)
        found.counts.counts[:, first : first + kept.shape[1]] = kept
        found.counts.n_samples = n
        if found.moments is not None:
            rows, columns = _upper(found.moments.neurons)
            for name, part in (("high", found.moments.high), ("low", found.moments.low)):
                stored = stored_tensor(tensors, f"moments/{name}", part.dtype, 1)
                if stored.shape != rows.shape:
                    raise NACError("the moments have the wrong shape.")
                part[rows, columns] = part[columns, rows] = stored
            if round(float(found.moments.products()[0, 0])) != n:
                raise NACError("the moments are of another number of samples than the counts.")
        return found


def _upper(neurons: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(neurons + 1, neurons + 1)
    return rows, columns


def _used(counts: FineCounts) -> tuple[int, int]:
    """The first cell that any neuron was in, and the one after the last."""
    columns = counts.counts.any(dim=0).nonzero()[:, 0]
    return (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 1)
