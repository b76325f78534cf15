"""Loads a fitted detector with its network and transform, and scores image or text files with it.

The detector's file records which network, classes and transform it was fitted with, so that it is
not used with others by mistake. Code that the file names is run only if the user names it as well.
Files are scored one batch at a time, so memory does not grow with their number.
"""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import torch
from PIL import Image
from torch.utils.data import DataLoader

from nac_openood.core.pvalues import PValues
from nac_openood.detector.batches import shard_numbers
from nac_openood.detector.config import AUTO
from nac_openood.detector.decisions import select
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.drift import Drift, DriftMonitor, dataset_drift
from nac_openood.detector.outcomes import ALPHA
from nac_openood.detector.store import SHAPE, StoredDetector
from nac_openood.distributed import all_gather, map_shared, world
from nac_openood.errors import NACError, first_line, why_unreadable
from nac_openood.files import PathLike, digest_of
from nac_openood.network.inputs import sample_shape
from nac_openood.sources import transforms
from nac_openood.sources.images import ImageError, Transform, rgb_image, sample_names
from nac_openood.sources.networks import kind_of, network_of
from nac_openood.sources.samples import collate_texts

#: The note of a detector's file with the name of the checkpoint.
CHECKPOINT = "checkpoint"


class Pipeline(NamedTuple):
    """A detector that is ready to score images.

    Args:
        detector: with its network.
        transform: turns an RGB image into the network's input.
    """

    detector: NACDetector
    transform: Transform

    def gray_input(self) -> torch.Tensor:
        """A gray image, as large as those of the fit, as a batch of one."""
        shape = self.detector.notes_.get(SHAPE, "").split(" x ")
        size = (int(shape[-1]), int(shape[-2])) if len(shape) == 3 else (256, 256)
        return self.transform(Image.new("RGB", size, (128, 128, 128)))[None]


def load_fitted(
    path: PathLike,
    *,
    arch: Optional[str] = None,
    weights: Optional[str] = None,
    transform: Optional[str] = None,
    prepare: Callable[[torch.nn.Module], torch.nn.Module] = lambda net: net,
) -> Pipeline:
    """Load a detector with its network and transform.

    Args:
        path: a file that `NACDetector.save` wrote.
        arch: the network, as in `networks.kind_of`; None takes the name in the file, unless that
            is code or a file of the user's.
        weights: a checkpoint file or `torchvision:NAME`; None for networks that come with weights.
        transform: as in `transforms.chosen_transform`; None takes the one in the file.
        prepare: what to do with the network before it is used, e.g. move it to a device.

    Raises:
        NACError: the network or the transform is not the one that the detector was fitted with, or
            the file does not say which it was.
    """
    notes = StoredDetector.load(path).notes
    if arch is None:
        arch = notes.get("arch")
        if arch is None:
            raise NACError(f"{path} does not say which network it belongs to: pass `arch`.")
        if not kind_of(arch).by_name:
            raise NACError(f"{path} names {arch}, which is loaded only if you pass `arch={arch}`.")
    checkpoint = notes.get(CHECKPOINT)
    if weights is None and checkpoint and arch == notes.get("arch"):
        raise NACError(
            f"{path} was fitted on {arch} with the weights of {checkpoint}: pass them, too, "
            f"`weights={checkpoint}`."
        )
    stored: Any = notes.get("transform")
    if transform is None and stored is None:
        raise NACError(f"{path} does not say how images become tensors: pass `transform`.")
    if transform is None and stored != AUTO:
        chosen = transforms.restored_transform(stored)
    else:
        chosen = transforms.chosen_transform(transform, arch, weights)
    if notes.get("transform_identity", chosen.identity) != chosen.identity:
        raise NACError(
            f"{path} was fitted with a different transform ({stored!r}) from "
            f"this one ({chosen}): its scores would be wrong. Leave out `transform`, or fit again."
        )
    net = prepare(network_of(arch, int(notes.get("n_classes", "0")), weights))
    return Pipeline(NACDetector.load(path, net), chosen.transform)


class InputError(NACError):
    """The network cannot take an input, which has another shape than what it was fitted on."""


class Prediction(NamedTuple):
    """The predicted class and the score of one image, as `nac-openood score` prints them.

    Args:
        path: of the image.
        label: name of the network's class.
        confidence: the softmax probability of that class.
        score: higher = more in-distribution; NaN where readings were NaN or Inf.
        p_value: how unusual the score is.
        is_out: whether it counts as out-of-distribution.
        problem: why the image cannot be read, which leaves the other fields empty; "" if it can.
        number: of the class; several may have the same name.
    """

    path: str
    label: str = ""
    confidence: float = float("nan")
    score: float = float("nan")
    p_value: float = float("nan")
    is_out: bool = False
    problem: str = ""
    number: int = -1

    @property
    def decision(self) -> str:
        """`in` or `out`."""
        return "out" if self.is_out else "in"

    def fields(self) -> dict[str, Any]:
        """The columns of `nac-openood score`, by name and in order."""
        values = (*self[:5], self.decision)
        return dict(zip(("path", "class", "confidence", "score", "p_value", "decision"), values))

    def json_fields(self) -> dict[str, Any]:
        """The same with None for NaN and infinity, which JSON does not have."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self.fields().items()
        }


def judge_batch(
    pipeline: Pipeline, x: Any, paths: Sequence[str], *, alpha: float
) -> list[Prediction]:
    """Score images `[batch, ...]` in one pass over the network; one result per path.

    Raises:
        InputError: the network fails on images of another shape than it was fitted on.
    """
    detector = pipeline.detector
    try:
        verdicts, names = detector.judge(x), dict(enumerate(detector.classes_))
    except Exception as error:  # the user's network may raise anything
        fitted, found = detector.notes_.get(SHAPE), sample_shape(x)
        if fitted is None or fitted == found:
            raise
        raise InputError(
            f"the network cannot take an input of shape {found} ({first_line(error)}). The "
            f"detector was fitted on shape {fitted}: let the transform make such inputs, e.g. by "
            "`resize` and `crop`, or fit again."
        ) from error
    columns = (*verdicts, verdicts.out(alpha))
    return [
        Prediction(path, names.get(number, str(number)), *rest)._replace(number=number)
        for path, number, *rest in zip(paths, *(column.tolist() for column in columns))
    ]


def expand(paths: Iterable[str], *, texts: bool = False) -> list[str]:
    """List the images in files and folders; those of a folder are sorted by path.

    Args:
        paths: files and folders.
        texts: whether to list text files of folders instead.

    Raises:
        NACError: a folder has no images, or there are no paths.
    """
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112, unlike pathlib's it never raises
            found += [str(Path(path) / name) for name in sample_names(path, texts=texts)]
        else:
            found.append(path)  # a missing file is reported when it is read
    if not found:
        raise NACError(f"expected at least one {'text' if texts else 'image'}, got none.")
    return found


def judge_images(
    pipeline: Pipeline,
    paths: Sequence[str],
    *,
    alpha: float = ALPHA,
    batch_size: int = 100,
    workers: int = 0,
    monitor: Optional[DriftMonitor] = None,
) -> Iterator[Prediction]:
    """Score images in order; those that cannot be read have a `problem`.

    Args:
        pipeline: detector and transform.
        paths: of the images.
        alpha: p-values at or below it are out-of-distribution.
        batch_size: images per batch.
        workers: number of processes that load images.
        monitor: gets the scores, in order.

    Raises:
        NACError: the processes of a distributed run have different paths.
    """
    if len(set(all_gather("list of files", digest_of(list(paths))))) > 1:
        raise NACError("the processes have different `paths`: expected the same in all of them.")
    numbers = shard_numbers(math.ceil(len(paths) / batch_size))
    plan = [list(range(len(paths))[n * batch_size : (n + 1) * batch_size]) for n in numbers]
    read = partial(_read, pipeline.transform)
    loader: Any = DataLoader(paths, batch_sampler=plan, num_workers=workers, collate_fn=read)  # type: ignore[arg-type]

    def own_batches() -> Iterator[Any]:
        for number, (files, inputs) in zip(numbers, loader):
            if world().owns(number):
                yield files, inputs
            elif inputs:
                # the first batch decides how the network is run, in every process
                pipeline.detector.prepare(stacked(inputs))

    def judge(batch: Any) -> list[Prediction]:
        files, inputs = batch
        names = [file.path for file in files if not file.problem]
        good = iter(_judge_each(pipeline, inputs, names, alpha) if names else ())
        return [file if file.problem else next(good) for file in files]

    for predictions in map_shared("score", own_batches(), judge):
        if monitor is not None:
            monitor.update_scores([each.score for each in predictions if not each.problem])
        yield from predictions


def selected(answers: Iterable[Prediction], fdr: float, pvalues: PValues) -> list[Prediction]:
    """Predictions with the decisions of `NACDetector.select` in place of those of each image."""
    found = list(answers)
    out = iter(select([each.p_value for each in found if not each.problem], fdr, pvalues).out)
    return [each if each.problem else each._replace(is_out=bool(next(out))) for each in found]


def drift_of(detector: NACDetector, found: Sequence[Prediction], *, seed: int = 0) -> Drift:
    """Test whether files are like the calibration data; see `NACDetector.drift`."""
    score = torch.tensor([each.score for each in found], dtype=torch.float64)
    classes = torch.tensor([each.number for each in found])
    return dataset_drift(detector._p_values(), score, classes, seed=seed)


def _judge_each(
    pipeline: Pipeline, inputs: list[Any], names: list[str], alpha: float
) -> list[Prediction]:
    """Score a batch; if the network cannot take it, each image alone, so that others are scored."""
    try:
        return judge_batch(pipeline, stacked(inputs), names, alpha=alpha)
    except InputError as error:
        if len(names) == 1:
            return [Prediction(names[0], problem=str(error).rstrip("."))]
        each = (_judge_each(pipeline, [x], [name], alpha) for x, name in zip(inputs, names))
        return [prediction for (prediction,) in each]


def _read(transform: Transform, paths: Sequence[str]) -> tuple[list[Prediction], list[Any]]:
    """One empty prediction per file, with its `problem`; inputs for the files without problems."""
    is_text, files, inputs = transforms.takes_text(transform), [], []
    for path in paths:
        try:
            content: Any = Path(path).read_text("utf-8") if is_text else rgb_image(Path(path))
        except (OSError, UnicodeDecodeError, ImageError) as error:
            files.append(Prediction(path, problem=why_unreadable(error)))
        else:
            files.append(Prediction(path))
            inputs.append(transform(content))
    return files, inputs


def stacked(tensors: Sequence[Any]) -> Any:
    """Stack images `[channels, height, width]` of one size into a batch; texts by name."""
    if isinstance(tensors[0], Mapping):
        return collate_texts(tensors)
    others = {type(tensor).__name__ for tensor in tensors if not isinstance(tensor, torch.Tensor)}
    if others:
        raise NACError(f"the transform returned a {others.pop()}, expected a tensor.")
    if len({tensor.shape for tensor in tensors}) > 1:
        raise InputError("the transform returns images of different sizes: add e.g. a `crop`.")
    return torch.stack(list(tensors))
