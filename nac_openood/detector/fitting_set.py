"""Which samples of a loader a rule is fitted on: all of them, or as many of each class."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Iterable, Iterator, Optional

import torch
from torch import Tensor, nn

from nac_openood.core.layer_config import whole_number
from nac_openood.detector.batches import Batch, check_labels
from nac_openood.detector.dealing import dealt
from nac_openood.detector.subset import fitting_loader, too_few
from nac_openood.distributed import all_gather
from nac_openood.errors import NACError
from nac_openood.network.probe import count_classes


@dataclass
class FittingSet:
    """The samples of a loader to fit on, batch by batch, and how many there were of each class.

    Args:
        net: the network, whose classes labels must be.
        loader: batches, as in `NACDetector.fit`.
        n_samples: size of the class-balanced subset; None takes everything.
        seed: random seed of the draw.
        title: title of the progress bar.
        progress: whether to show one; None shows it on a terminal.
    """

    net: nn.Module
    loader: Iterable[Any]
    n_samples: Optional[int]
    seed: int
    title: str
    progress: Optional[bool]
    by_class: Counter[int] = field(default_factory=Counter, init=False)
    _n_classes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.n_samples is not None:
            self.n_samples = whole_number("n_samples", self.n_samples, 1)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of this process, and perhaps others; see `dealing.dealt`."""
        subset = fitting_loader(self.loader, self.n_samples, self.seed)
        stream = dealt(subset, self.title, self.progress)
        first = next(stream, None)
        if first is None:
            raise NACError("the loader yielded no samples: there is nothing to fit on.")
        self._n_classes = count_classes(self.net, first.data)
        quota = Quota(self.n_samples if subset is self.loader else None, self._n_classes)
        for batch in chain([first], stream):
            check_labels(batch.label, self._n_classes)
            taken = quota.take(batch)
            if taken.size:
                if taken.mine and taken.label is not None:
                    self.by_class.update(taken.label.tolist())
                yield taken
            if quota.full:
                break

    def class_counts(self) -> dict[int, int]:
        """How many samples there were of each class, in all processes."""
        total: Counter[int] = Counter()
        for counts in all_gather("class counts", self.by_class):
            total.update(counts)
        self.by_class = total
        return dict(sorted(total.items()))

    def warn_if_uneven(self) -> None:
        """Warn when classes are missing, or have fewer samples than their share."""
        if not self.by_class:
            return
        notes, found = [], len(self.by_class)
        if found < self._n_classes:
            missing = self._n_classes - found
            notes.append(f"{missing} of the network's {self._n_classes} classes are missing")
        share = self.n_samples // found if self.n_samples is not None else 0
        short = sum(count < share for count in self.by_class.values())
        if short:
            notes.append(f"{short} classes have fewer than {share} samples")
        if notes:
            warnings.warn(
                f"the fitting set is uneven: {' and '.join(notes)}. Coverage of those classes will "
                "be low; pass more data, or ignore this warning if that is intended.",
                UserWarning,
                stacklevel=3,
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
        self._batches = self._samples = 0

    @property
    def full(self) -> bool:
        """Whether nothing more will be taken."""
        if self._left is None or self._each is None:
            return False
        return self._left <= 0 or bool((self._taken >= self._each).all())

    def take(self, batch: Batch) -> Batch:
        """The part of a batch that counts, numbered among what was taken."""
        if self._left is None or self._each is None:
            return batch
        if batch.label is None:
            rows = torch.arange(min(batch.size, self._left))
        else:
            rows = self._by_class(batch.label.tolist())
        taken = batch.rows(rows)._replace(number=self._batches, start=self._samples)
        self._left -= len(rows)
        self._samples += len(rows)
        self._batches += bool(len(rows))
        return taken

    def _by_class(self, labels: list[int]) -> Tensor:
        rows = []
        for row, label in enumerate(labels):
            if self._taken[label] < (self._each or 0):
                rows.append(row)
                self._taken[label] += 1
        return torch.tensor(rows, dtype=torch.int64)
