"""One pass over the network, shared by all methods that look at penultimate features only."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Optional

from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from nac_openood.bench.head import head_of, with_features
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
) -> Features:
    """The features in `path`, where they were made with the same, or those of a pass over `net`.

    Args:
        path: a safetensors file, written batch by batch, whole or not at all.
        net: the classifier.
        loader: batches of images, in order.
        made_with: JSON values that tell whether the file is still good.
        title: of the progress bar.
        progress: None shows one on a terminal.
    """
    kept = _read(path, made_with)
    if kept is not None:
        return kept
    files.make_folder(path.parent)
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


class FeatureBatches(DataLoader[Any]):
    """Batches `{'data', 'label'}` of features, as large as the images' were, in order.

    Attributes:
        passes: how often somebody went through them.
        seconds: that the pass over the network took.
    """

    passes: int

    def __init__(self, features: Features, batch_size: int) -> None:
        if features.feature is None:
            raise NACError(features.headless)
        rows = _Rows(features.feature, features.label)
        sampler = BatchSampler(SequentialSampler(rows), batch_size, drop_last=False)
        super().__init__(rows, batch_size=None, sampler=sampler)
        self.passes, self.seconds = 0, features.seconds

    def __iter__(self) -> Any:
        self.passes += 1
        return super().__iter__()


class _Rows(Dataset[dict[str, Tensor]]):
    """Takes a whole batch's indices at once: no copy a row."""

    def __init__(self, feature: Tensor, label: Tensor) -> None:
        self.feature, self.labels = feature, label

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: Any) -> dict[str, Tensor]:
        return {"data": self.feature[indices], "label": self.labels[indices]}


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
