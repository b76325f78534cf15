"""Files judged one batch at a time, images or texts: memory does not grow with their number."""

from __future__ import annotations

import hashlib
import math
import os
from functools import partial
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch
from torch.utils.data import DataLoader

from nac_openood.detector.dealing import needed
from nac_openood.detector.verdicts import ALPHA
from nac_openood.distributed import all_gather, map_shared, world
from nac_openood.errors import NACError
from nac_openood.sources.fitted import Deployed
from nac_openood.sources.images import Transform, image_names, open_image
from nac_openood.sources.judged import Judged, judge_batch
from nac_openood.sources.listing import files_in
from nac_openood.sources.texts import takes_text, without_padding

_TEXTS = ".txt"


def expand(given: Iterable[str], *, texts: bool = False) -> list[str]:
    """The images in the given files and folders; those of a folder in order of their paths.

    Args:
        given: files and folders.
        texts: whether to look for text files in folders instead.

    Raises:
        NACError: a folder has no images, or nothing was given.
    """
    found: list[str] = []
    for entry in given:
        path = Path(entry)
        if not os.path.isdir(entry):  # noqa: PTH112, unlike pathlib's it never raises
            found.append(entry)  # a missing file is told about when it is its turn
            continue
        inside = _text_files(path) if texts else image_names(path)
        found += [str(path / name) for name in inside]
    if not found:
        raise NACError(f"expected at least one {'text' if texts else 'image'}, got none.")
    return found


def _text_files(folder: Path) -> list[str]:
    names = files_in(folder, {_TEXTS})
    if not names:
        raise NACError(f"{folder} holds no texts: expected files such as a{_TEXTS} in it.")
    return names


def judge_images(
    deployed: Deployed,
    paths: Sequence[str],
    *,
    alpha: float = ALPHA,
    batch_size: int = 100,
    workers: int = 0,
) -> Iterator[Judged]:
    """Judge images in order; those that cannot be read have a `problem`.

    Args:
        deployed: detector and transform.
        paths: of the images.
        alpha: p-values at or below it are out-of-distribution.
        batch_size: images per batch.
        workers: number of processes that load images.

    Raises:
        NACError: processes that work together were given different paths.
    """
    listed = hashlib.sha256(repr(list(paths)).encode()).hexdigest()
    if len(set(all_gather("list of files", listed))) > 1:
        raise NACError("the processes have different `paths`: expected the same in all of them.")
    numbers = needed(math.ceil(len(paths) / batch_size))
    plan = [list(range(len(paths))[n * batch_size : (n + 1) * batch_size]) for n in numbers]
    made = partial(_rows, deployed.transform)
    loader: Any = DataLoader(paths, batch_sampler=plan, num_workers=workers, collate_fn=made)  # type: ignore[arg-type]

    def own() -> Iterator[list[_Row]]:
        for number, batch in zip(numbers, loader):
            if world().owns(number):
                yield batch
            else:
                _begin_with(deployed, batch)

    for judged in map_shared("score", own(), lambda batch: _judge(deployed, batch, alpha)):
        yield from judged


def _judge(deployed: Deployed, batch: list[_Row], alpha: float) -> list[Judged]:
    rows = [row for row in batch if not row.problem]
    paths = [row.path for row in rows]
    said = iter(judge_batch(deployed, _input(rows), paths, alpha=alpha) if rows else ())
    return [Judged(row.path, problem=row.problem) if row.problem else next(said) for row in batch]


def _begin_with(deployed: Deployed, batch: list[_Row]) -> None:
    """See the first batch, by which the process that judges it finds out how to run the network."""
    rows = [row for row in batch if not row.problem]
    if rows:
        deployed.detector.prepare(_input(rows))


def _input(rows: Sequence[_Row]) -> Any:
    return stacked([row.content for row in rows], rows[0].path)


def stacked(tensors: Sequence[Any], first: str) -> Any:
    """Images `[channels, height, width]` as a batch, if they have one size; texts by name."""
    if isinstance(tensors[0], Mapping):
        named = {name: stacked([each[name] for each in tensors], first) for name in tensors[0]}
        return without_padding(named)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise NACError(
            f"the transform leaves images of different sizes, {list(one)} and {list(other)} in the "
            f"batch that begins with {first}. Let it make them equal, e.g. with `crop`, or "
            "`resize: [height, width]`."
        )
    return torch.stack(list(tensors))


class _Row(NamedTuple):
    """A file and what the network is given of it, or the reason why there is nothing."""

    path: str
    content: Any = None
    problem: str = ""


def _rows(transform: Transform, paths: Sequence[str]) -> list[_Row]:
    read = _text if takes_text(transform) else _image
    return [read(transform, path) for path in paths]


def _image(transform: Transform, path: str) -> _Row:
    found = open_image(Path(path))
    if isinstance(found, str):
        return _Row(path, problem=found)
    return _Row(path, transform(found))


def _text(transform: Transform, path: str) -> _Row:
    try:
        text: Any = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return _Row(path, problem="missing")
    except (OSError, UnicodeDecodeError) as error:
        return _Row(path, problem=str(error))
    return _Row(path, transform(text))
