"""One pass over the network, shared by all methods that look at penultimate features only."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional

from torch import Tensor, nn

from nac_openood.bench.head import head_of, with_features
from nac_openood.bench.methods import Absent
from nac_openood.core import files
from nac_openood.core.network import classify
from nac_openood.core.spool import Spool
from nac_openood.data import batches
from nac_openood.errors import FileError, NACError
from nac_openood.progress import bar

_KIND, _VERSION = "nac_openood features", 1


class Features(NamedTuple):
    """A data set as the head sees it, mapped from a file.

    Args:
        feature: `[samples, D]`; None where the network has no linear head.
        prediction: int64 `[samples]`.
        label: int64 `[samples]`.
        seconds: that the pass took.
        headless: why there are no features, or "".
    """

    feature: Optional[Tensor]
    prediction: Tensor
    label: Tensor
    seconds: float
    headless: str


def features_of(
    path: Path,
    net: nn.Module,
    loader: Iterable[Any],
    made_with: Mapping[str, Any],
    *,
    title: str,
    progress: Optional[bool] = None,
    before: Callable[[], None] = lambda: None,
) -> Features:
    """The features in `path`, where they were made with the same, or those of a pass over `net`.

    Args:
        path: a safetensors file, written batch by batch, whole or not at all.
        net: the classifier.
        loader: batches of images, in order.
        made_with: JSON values that tell whether the file is still good.
        title: of the progress bar.
        progress: None shows one on a terminal.
        before: is called where there will be a pass, ahead of the clock.
    """
    kept = _read(path, made_with)
    if kept is not None:
        return kept
    files.make_folder(path.parent)
    before()
    start = time.perf_counter()
    head: Optional[nn.Linear] = None
    headless = ""
    with Spool(path) as spool:
        for batch in batches(bar(loader, f"features {title}", progress)):
            if head is None and not headless:
                head, headless = _head(net, batch.data)
            rows = _rows(net, batch.data, head)
            spool.add({**rows, "label": batch.labels()})
        seconds = time.perf_counter() - start
        about = {"made_with": dict(made_with), "seconds": seconds, "headless": headless}
        spool.finish(_KIND, _VERSION, about)
    found = _read(path, made_with)
    if found is None:
        raise FileError(f"{path} was written and cannot be read back. Is the disk all right?")
    return found


class FeatureBatches:
    """Batches `{'data', 'label'}` of features, as large as the images' were, in order.

    The features are made or read when somebody first asks: most methods do not look at all sets.

    Args:
        features: gives them.
        n_samples: how many there will be.
        batch_size: of the images.

    Attributes:
        seconds: that the pass over the network takes, once somebody has asked; before, 0.
        waited: that of it somebody had to wait for.
    """

    def __init__(self, features: Callable[[], Features], n_samples: int, batch_size: int) -> None:
        self._features, self._n, self.batch_size = features, n_samples, batch_size
        self.seconds = self.waited = 0.0

    def __len__(self) -> int:
        return math.ceil(self._n / self.batch_size)

    @property
    def dataset(self) -> range:
        """What has as many entries as there are samples."""
        return range(self._n)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        start = time.perf_counter()
        found = self._features()
        self.waited += time.perf_counter() - start
        if found.feature is None:
            raise Absent(found.headless)
        self.seconds = found.seconds
        for row in range(0, self._n, self.batch_size):
            rows = slice(row, row + self.batch_size)
            # copies: a method may write into what it is given, and a mapped file is read-only
            yield {"data": found.feature[rows].clone(), "label": found.label[rows].clone()}


def _head(net: nn.Module, x: Tensor) -> tuple[Optional[nn.Linear], str]:
    try:
        return head_of(net, x)[1], ""
    except NACError as error:
        return None, str(error)


def _rows(net: nn.Module, x: Tensor, head: Optional[nn.Linear]) -> dict[str, Tensor]:
    if head is None:
        return {"prediction": classify(net, x).argmax(dim=1)}
    found = with_features(net, x, head)
    return {"prediction": found.logits.argmax(dim=1), "feature": found.features}


def _read(path: Path, made_with: Mapping[str, Any]) -> Optional[Features]:
    if not path.is_file():
        return None
    try:
        tensors, about = files.read(path, _KIND, _VERSION)
    except FileError:  # a damaged file is made anew
        return None
    if about["made_with"] != dict(made_with):
        return None
    return Features(
        tensors.get("feature"),
        tensors["prediction"],
        tensors["label"],
        about["seconds"],
        about["headless"],
    )
