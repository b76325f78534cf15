"""One pass over the network, shared by all methods that need penultimate features only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional

import torch
from torch import Tensor, nn

from nac_openood import files, tensor_files
from nac_openood.benchmark.methods.table import Absent
from nac_openood.benchmark.run.meter import Meter, Timing
from nac_openood.core.restoring import stored_tensor
from nac_openood.detector.batches import Batch, load_batches
from nac_openood.distributed import from_main, map_shared
from nac_openood.errors import FileError, NACError
from nac_openood.network.head import head_of, with_features
from nac_openood.network.probe import classify
from nac_openood.tensor_files import TensorWriter

_KIND, _VERSION = "nac_openood features", 2


class Features(NamedTuple):
    """What the network makes of a dataset, mapped from a file.

    Args:
        feature: penultimate features `[samples, D]`; None if the network has no linear head.
        prediction: int64 `[samples]`.
        label: int64 `[samples]`, -1 where there is none.
        timing: how long the pass took.
        headless: why there are no features, or "".
    """

    feature: Optional[Tensor]
    prediction: Tensor
    label: Tensor
    timing: Timing
    headless: str


def features_of(
    path: Path,
    net: nn.Module,
    loader: Iterable[Any],
    n_samples: int,
    made_with: Mapping[str, Any],
    *,
    title: str,
    progress: Optional[bool] = None,
    before: Callable[[], None] = lambda: None,
) -> Features:
    """The features in `path` if they were made with the same, else those of a pass over `net`.

    Args:
        path: a safetensors file, written as a whole or not at all.
        net: the classifier.
        loader: batches of all samples, in order.
        n_samples: number of samples.
        made_with: JSON values that features depend on; equal ones mean that the file is valid.
        title: name of the dataset in the progress bar.
        progress: None shows a progress bar on a terminal.
        before: called before a pass.
    """
    kept: Optional[Features] = None

    def missing() -> bool:
        nonlocal kept
        kept = _read(path, n_samples, made_with)
        return kept is None

    if not from_main(f"features {title}", missing):
        # of several processes, only the first one has looked
        return _read_again(path, n_samples, made_with) if kept is None else kept
    files.make_folder(path.parent)
    before()
    with TensorWriter(path) as spool:
        timing, headless = _run(spool, net, loader, f"features {title}", progress)
        about = {"made_with": dict(made_with), "timing": timing, "headless": headless}
        spool.finish(_KIND, _VERSION, about)
    return _read_again(path, n_samples, made_with)


def _read_again(path: Path, n_samples: int, made_with: Mapping[str, Any]) -> Features:
    found = _read(path, n_samples, made_with)
    if found is None:
        raise FileError(
            f"{path} was written but cannot be read back: expected {n_samples} samples. Check the "
            "disk, and that the dataset yields one item per index."
        )
    return found


def _run(
    spool: TensorWriter, net: nn.Module, loader: Iterable[Any], title: str, progress: Optional[bool]
) -> tuple[Timing, str]:
    """Write what the network makes of every batch; return the time, and why it has no head."""
    head: Optional[nn.Linear] = None
    headless: Optional[str] = None
    device = next((p.device for p in net.parameters()), None)

    def loaded() -> Iterator[tuple[Batch, Meter]]:
        nonlocal head, headless
        stream = load_batches(loader, title, progress)
        while True:
            with Meter(device, memory=False) as loading:
                each = next(stream, None)
            if each is None:
                return
            if headless is None:
                head, headless = _head(net, each.data)
            if each.in_shard:
                yield each, loading

    def work(item: tuple[Batch, Meter]) -> tuple[dict[str, Tensor], float, float]:
        batch, loading = item
        with Meter(device, memory=False) as running:
            rows = {name: rows.cpu() for name, rows in _rows(net, batch.data, head).items()}
        waited = loading.waited + running.waited
        return {**rows, "label": batch.labels()}, loading.seconds + running.seconds, waited

    times: list[tuple[float, float]] = []
    idle = 0.0
    for rows, seconds, waited in map_shared("features", loaded(), work):
        # writing to disk is not part of the pass: a method that runs alone writes nothing
        spool.add(rows)
        times.append((len(rows["prediction"]), seconds))
        idle += waited
    return Timing(times, 0.0, idle), headless or ""


class FeatureBatches:
    """A loader of features: batches `{'data', 'label'}` as large as those of the samples.

    Args:
        features: returns the features; called when the first batch is asked for.
        n_samples: number of samples.
        batch_size: samples per batch.

    Attributes:
        timing: time of the pass over the network, once batches were asked for.
    """

    def __init__(self, features: Callable[[], Features], n_samples: int, batch_size: int) -> None:
        self._features, self._n, self.batch_size = features, n_samples, batch_size
        self.timing = Timing()

    def __len__(self) -> int:
        return math.ceil(self._n / self.batch_size)

    @property
    def dataset(self) -> range:
        """Something with as many entries as there are samples."""
        return range(self._n)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        found = self._features()
        if found.feature is None:
            raise Absent(found.headless)
        self.timing = found.timing
        for row in range(0, self._n, self.batch_size):
            rows = slice(row, row + self.batch_size)
            # copies: a method may write into its input, and a mapped file is read-only
            yield {"data": found.feature[rows].clone(), "label": found.label[rows].clone()}


def _head(net: nn.Module, x: Any) -> tuple[Optional[nn.Linear], str]:
    try:
        return head_of(net, x)[1], ""
    except NACError as error:
        return None, str(error)


def _rows(net: nn.Module, x: Any, head: Optional[nn.Linear]) -> dict[str, Tensor]:
    if head is None:
        return {"prediction": classify(net, x).argmax(dim=1)}
    found = with_features(net, x, head)
    return {"prediction": found.logits.argmax(dim=1), "feature": found.features}


def _read(path: Path, n_samples: int, made_with: Mapping[str, Any]) -> Optional[Features]:
    """The features in a file; None if it is missing, damaged, or of other data or code."""
    try:
        tensors, about = tensor_files.read_tensors(path, _KIND, _VERSION)
        prediction = stored_tensor(tensors, "prediction", torch.int64, 1)
        label = stored_tensor(tensors, "label", torch.int64, 1)
        feature, headless = tensors.get("feature"), str(about["headless"])
        if feature is not None:
            stored_tensor(tensors, "feature", feature.dtype, 2)
        found = Features(feature, prediction, label, Timing.read(about["timing"]), headless)
    except (KeyError, TypeError, ValueError):  # NACError is a ValueError
        return None
    same = about.get("made_with") == dict(made_with)
    whole = all(rows.shape[:1] == (n_samples,) for rows in tensors.values())
    usable = bool(headless) if feature is None else feature.is_floating_point()
    return found if same and whole and usable else None
