"""Fit and score with Ray Data, for data that is too large for one machine; needs `ray[data]`.

A dataset's blocks go to a pool of actors, each with its own detector. Detectors that were fitted on
a block are returned as files and merged; predictions for a block become rows of a new dataset. Ray
repeats the blocks of a lost node.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional

import numpy as np
import pyarrow as pa
from PIL import Image
from ray.data import ActorPoolStrategy, Dataset

from nac_openood.detector.detector import NACDetector
from nac_openood.detector.outcomes import ALPHA, checked_alpha
from nac_openood.errors import NACError
from nac_openood.sources.fitted import Pipeline, Prediction, judge_batch, stacked
from nac_openood.sources.images import ImageError, rgb_image

#: Makes a detector with its network and transform; called once in every actor.
Load = Callable[[], Pipeline]
_Columns = Mapping[str, np.ndarray]

_FIELDS = pa.schema(
    [(name, pa.string() if isinstance(value, str) else pa.float64())
     for name, value in Prediction("").fields().items()]
)  # fmt: skip


def fit_dataset(
    dataset: Dataset,
    load: Load,
    *,
    column: str = "image",
    label: Optional[str] = None,
    batch_size: int = 100,
    workers: int = 2,
    **options: Any,
) -> NACDetector:
    """Fit a detector on all rows of a dataset; calibrate it afterwards.

    Each block returns one set of counts, so larger blocks mean less data to send. The counts equal
    those of `fit` on the same batches, and are the same in every run with the same blocks.

    Args:
        dataset: rows of training data, e.g. of `ray.data.read_images`.
        load: makes an unfitted detector and the transform of its inputs.
        column: an image as bytes or uint8 array, or anything else that the transform takes.
        label: column of the class, a whole number; None if there is none.
        batch_size: samples per pass over the network.
        workers: largest number of actors.
        options: of `ray.data.Dataset.map_batches`, e.g. `num_gpus=1`.
    """
    states = _mapped(dataset, _Fit, (load, column, batch_size, label), workers, options)
    made = load().detector
    fitted: Optional[NACDetector] = None
    for state in states.iter_rows():
        shard = _from_bytes(state["detector"], made)
        fitted = shard if fitted is None else fitted.merge(shard)
    if fitted is None:
        raise NACError("the dataset has no rows: there is nothing to fit on.")
    fitted.classes_, fitted.notes_ = made.classes_, dict(made.notes_)
    return fitted


def score_dataset(
    dataset: Dataset,
    load: Load,
    *,
    column: str = "image",
    path: str = "path",
    alpha: float = ALPHA,
    unreadable: str = "raise",
    batch_size: int = 100,
    workers: int = 2,
    **options: Any,
) -> Dataset:
    """Score all rows of a dataset, lazily: when the result is used, e.g. by `write_parquet`.

    Args:
        dataset: rows to score.
        load: makes a calibrated detector and the transform of its inputs, e.g. a partial
            `nac_openood.sources.fitted.load_fitted`.
        column: an image as bytes or uint8 array, or anything else that the transform takes.
        path: column that identifies a row.
        alpha: p-values at or below it are out-of-distribution.
        unreadable: what to do with bytes that are not an image: "raise" an error, or "null" to
            leave everything but the path empty.
        batch_size: samples per pass over the network.
        workers: largest number of actors.
        options: of `ray.data.Dataset.map_batches`, e.g. `num_gpus=1`.

    Returns:
        A dataset with the columns of `nac-openood score`. Its order may differ.
    """
    checked_alpha(alpha)
    if unreadable not in ("raise", "null"):
        raise NACError(f"`unreadable` must be 'raise' or 'null', got {unreadable!r}.")
    arguments = (load, column, batch_size, path, alpha, unreadable == "null")
    return _mapped(dataset, _Score, arguments, workers, options)


def _mapped(
    dataset: Dataset, actor: type, arguments: tuple[Any, ...], workers: int, options: dict[str, Any]
) -> Dataset:
    """Map whole blocks: batches across blocks would depend on their order of arrival."""
    pool = ActorPoolStrategy(min_size=1, max_size=workers)
    return dataset.map_batches(
        actor, fn_constructor_args=arguments, batch_size=None, batch_format="numpy",
        **{"compute": pool, **options},
    )  # fmt: skip


class _Actor:
    """Works on blocks of rows, in batches for a network."""

    def __init__(self, load: Load, column: str, batch_size: int, *options: Any) -> None:
        self.pipeline, self.column, self.batch_size = load(), column, batch_size
        self.options = options

    def batches(self, block: _Columns) -> Iterator[_Columns]:
        """The block in slices of the batch size."""
        for start in range(0, len(block[self.column]), self.batch_size):
            yield {key: column[start : start + self.batch_size] for key, column in block.items()}

    def input(self, value: Any) -> Any:
        """The input of the network for one row."""
        if isinstance(value, bytes):
            value = rgb_image(io.BytesIO(value))
        elif isinstance(value, np.ndarray):
            value = value.copy()  # Ray's arrays are read-only
            if value.dtype == np.uint8 and value.ndim in (2, 3):
                value = Image.fromarray(value).convert("RGB")
        return self.pipeline.transform(value)


class _Fit(_Actor):
    """Fits a detector on each block."""

    def __call__(self, block: _Columns) -> dict[str, list[Any]]:
        detector, (label,) = self.pipeline.detector, self.options
        detector.rule_ = detector.fit_summary_ = None
        for batch in self.batches(block):
            x = stacked(list(map(self.input, batch[self.column])))
            detector.partial_fit(x if label is None else (x, batch[label].copy()))
        if detector.rule_ is None:  # an empty block
            return {"detector": []}
        with tempfile.TemporaryDirectory() as folder:
            detector.save(path := Path(folder) / "detector")
            return {"detector": [path.read_bytes()]}


def _from_bytes(content: bytes, made: NACDetector) -> NACDetector:
    """The detector that an actor saved, with the network of `made`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "detector"
        path.write_bytes(content)
        return NACDetector.load(path, made.net, fast=made.fast)


class _Score(_Actor):
    """Scores blocks."""

    def __call__(self, block: _Columns) -> pa.Table:
        rows = [row for batch in self.batches(block) for row in self.predictions(batch)]
        return pa.Table.from_pylist(rows, schema=_FIELDS)

    def predictions(self, batch: _Columns) -> Iterator[dict[str, Any]]:
        """The rows of the result; those that cannot be read come first."""
        path, alpha, leave_empty = self.options
        names, inputs = [], []
        for name, value in zip(map(str, batch[path].tolist()), batch[self.column]):
            try:
                inputs.append(self.input(value))
                names.append(name)
            except ImageError as error:
                if not leave_empty:
                    raise NACError(
                        f"cannot read {name} ({error}). Replace it, or pass `unreadable='null'`."
                    ) from error
                yield {"path": name}
        if inputs:
            for row in judge_batch(self.pipeline, stacked(inputs), names, alpha=alpha):
                yield row.fields()
