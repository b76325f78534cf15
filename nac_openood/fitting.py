"""The fitting set, sample by sample: which ones count, and what there is to say about them."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any, Callable, Iterable, Mapping, Optional

import torch
from torch import Tensor, nn

from nac_openood.core.coverage import Coverage
from nac_openood.core.network import classify
from nac_openood.core.probe import Probed
from nac_openood.data import Batch, batches, fitting_loader, too_few
from nac_openood.errors import NACError
from nac_openood.progress import bar


@dataclass(frozen=True)
class Counted:
    """What was counted.

    Args:
        by_class: samples of each class; empty if unlabeled.
        n_classes: of the network.
        n_samples: how many were asked for; None is everything.
    """

    by_class: Mapping[int, int]
    n_classes: int
    n_samples: Optional[int]

    def warn_if_uneven(self) -> None:
        """Say so when classes are missing, or short of their share."""
        if not self.by_class:
            return
        notes, found = [], len(self.by_class)
        if found < self.n_classes:
            missing = self.n_classes - found
            notes.append(f"{missing} of the network's {self.n_classes} classes are missing")
        share = self.n_samples // found if self.n_samples is not None else 0
        short = sum(count < share for count in self.by_class.values())
        if short:
            notes.append(f"{short} classes have fewer than {share} samples")
        if notes:
            warnings.warn(
                f"the fitting set is uneven: {' and '.join(notes)}. Coverage of those classes will "
                "be low; give more data, or ignore this if it is meant.",
                UserWarning,
                stacklevel=3,
            )


def count(
    coverage: Coverage,
    net: nn.Module,
    probe: Callable[[Tensor], Probed],
    loader: Iterable[Any],
    n_samples: Optional[int],
    *,
    seed: int,
    progress: Optional[bool],
) -> Counted:
    """Count the fitting set of `loader` into `coverage`."""
    subset = fitting_loader(loader, n_samples, seed)
    stream = batches(bar(subset, "NAC fit", progress))
    first = next(stream, None)
    if first is None:
        raise NACError("the loader yielded no samples: there is nothing to fit on.")
    n_classes = classify(net, first.data[:1]).shape[1]
    quota = Quota(n_samples if subset is loader else None, n_classes)
    by_class: Counter[int] = Counter()
    for batch in chain([first], stream):
        check_labels(batch.label, n_classes)
        taken = quota.take(batch)
        if taken.data.shape[0]:
            coverage.update(probe(taken.data).layers)
            by_class.update([] if taken.label is None else taken.label.tolist())
        if quota.full:
            break
    return Counted(dict(sorted(by_class.items())), n_classes, n_samples)


def check_labels(labels: Optional[Tensor], n_classes: int) -> None:
    """Refuse labels that are not classes of the network."""
    if labels is None or not labels.numel():
        return
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= n_classes:
        hint = (
            "-1 marks out-of-distribution samples in OpenOOD; fit on in-distribution data only."
            if least < 0
            else "Is this the data set the network was trained on?"
        )
        raise NACError(
            f"labels must be in 0..{n_classes - 1}, the network's classes; found "
            f"{least if least < 0 else most}. {hint}"
        )


class Quota:
    """Takes the first `n_samples // n_classes` samples of each class from a stream of batches.

    For loaders that cannot be indexed. Without labels it takes the first `n_samples`.
    """

    def __init__(self, n_samples: Optional[int], n_classes: int) -> None:
        if n_samples is not None and n_samples < n_classes:
            raise too_few(n_samples, n_classes)
        self._left = n_samples
        self._each = None if n_samples is None else n_samples // n_classes
        self._taken = torch.zeros(n_classes, dtype=torch.int64)

    @property
    def full(self) -> bool:
        """Whether nothing more will be taken."""
        if self._left is None or self._each is None:
            return False
        return self._left <= 0 or bool((self._taken >= self._each).all())

    def take(self, batch: Batch) -> Batch:
        """The part of a batch that counts."""
        if self._left is None or self._each is None:
            return batch
        if batch.label is None:
            rows = torch.arange(min(batch.data.shape[0], self._left))
        else:
            rows = self._by_class(batch.label.tolist())
        self._left -= len(rows)
        label = None if batch.label is None else batch.label[rows]
        return Batch(batch.data[rows.to(batch.data.device)], label)

    def _by_class(self, labels: list[int]) -> Tensor:
        rows = []
        for row, label in enumerate(labels):
            if self._taken[label] < (self._each or 0):
                rows.append(row)
                self._taken[label] += 1
        return torch.tensor(rows, dtype=torch.int64)
