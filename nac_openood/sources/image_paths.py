"""Scores image or text files one batch at a time, so memory does not grow with their number."""

from __future__ import annotations

import hashlib
import math
import os
from functools import partial
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch
from torch.utils.data import DataLoader

from nac_openood.detector.batches import shard_numbers
from nac_openood.detector.outcomes import ALPHA
from nac_openood.distributed import all_gather, map_shared, world
from nac_openood.errors import NACError
from nac_openood.sources.fitted import Deployed
from nac_openood.sources.images import ImageError, Transform, files_in, image_names, rgb_image
from nac_openood.sources.samples import without_padding
from nac_openood.sources.transforms import takes_text


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
    """

    path: str
    label: str = ""
    confidence: float = float("nan")
    score: float = float("nan")
    p_value: float = float("nan")
    is_out: bool = False
    problem: str = ""

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
    deployed: Deployed, x: Any, paths: Sequence[str], *, alpha: float
) -> list[Prediction]:
    """Score images `[batch, ...]` in one pass over the network; one result per path."""
    verdicts = deployed.detector.judge(x)
    columns = (*verdicts, verdicts.out(alpha))
    return [
        Prediction(path, deployed.class_name(number), *rest)
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
        if not os.path.isdir(path):  # noqa: PTH112, unlike pathlib's it never raises
            found.append(path)  # a missing file is reported when it is read
            continue
        names = files_in(Path(path), {".txt"}) if texts else image_names(path)
        if not names:
            raise NACError(f"{path} holds no texts: expected files such as a.txt in it.")
        found += [str(Path(path) / name) for name in names]
    if not found:
        raise NACError(f"expected at least one {'text' if texts else 'image'}, got none.")
    return found


def judge_images(
    deployed: Deployed,
    paths: Sequence[str],
    *,
    alpha: float = ALPHA,
    batch_size: int = 100,
    workers: int = 0,
) -> Iterator[Prediction]:
    """Score images in order; those that cannot be read have a `problem`.

    Args:
        deployed: detector and transform.
        paths: of the images.
        alpha: p-values at or below it are out-of-distribution.
        batch_size: images per batch.
        workers: number of processes that load images.

    Raises:
        NACError: the processes of a distributed run have different paths.
    """
    digest = hashlib.sha256(repr(list(paths)).encode()).hexdigest()
    if len(set(all_gather("list of files", digest))) > 1:
        raise NACError("the processes have different `paths`: expected the same in all of them.")
    numbers = shard_numbers(math.ceil(len(paths) / batch_size))
    plan = [list(range(len(paths))[n * batch_size : (n + 1) * batch_size]) for n in numbers]
    read = partial(_read, deployed.transform)
    loader: Any = DataLoader(paths, batch_sampler=plan, num_workers=workers, collate_fn=read)  # type: ignore[arg-type]

    def own_batches() -> Iterator[list[_File]]:
        for number, files in zip(numbers, loader):
            if world().owns(number):
                yield files
            elif any(not file.problem for file in files):
                # the first batch decides how the network is run, in every process
                deployed.detector.prepare(_batch(files))

    def judge(files: list[_File]) -> list[Prediction]:
        names = [file.path for file in files if not file.problem]
        good = iter(judge_batch(deployed, _batch(files), names, alpha=alpha) if names else ())
        return [Prediction(f.path, problem=f.problem) if f.problem else next(good) for f in files]

    for predictions in map_shared("score", own_batches(), judge):
        yield from predictions


def stacked(tensors: Sequence[Any], first: str) -> Any:
    """Stack images `[channels, height, width]` of one size into a batch; texts by name.

    Args:
        tensors: what the transform returned.
        first: name of the first one, for errors.
    """
    if isinstance(tensors[0], Mapping):
        named = {name: stacked([each[name] for each in tensors], first) for name in tensors[0]}
        return without_padding(named)
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len(shapes) > 1:
        raise NACError(
            f"the transform returns images of different sizes, {list(shapes[0])} and "
            f"{list(shapes[1])}, in the batch that begins with {first}. Let it make them equal, "
            "e.g. with `crop`, or `resize: [height, width]`."
        )
    return torch.stack(list(tensors))


class _File(NamedTuple):
    """A file with the network's input, or the reason why it cannot be read."""

    path: str
    content: Any = None
    problem: str = ""


def _batch(files: Sequence[_File]) -> Any:
    good = [file for file in files if not file.problem]
    return stacked([file.content for file in good], good[0].path)


def _read(transform: Transform, paths: Sequence[str]) -> list[_File]:
    is_text, files = takes_text(transform), []
    for path in paths:
        content: Any
        try:
            content = Path(path).read_text(encoding="utf-8") if is_text else rgb_image(Path(path))
        except FileNotFoundError:
            files.append(_File(path, problem="missing"))
        except (OSError, UnicodeDecodeError, ImageError) as error:
            files.append(_File(path, problem=str(error)))
        else:
            files.append(_File(path, transform(content)))
    return files
