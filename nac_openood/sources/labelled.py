"""Samples with labels: a folder per class, or a CSV file of paths or texts and labels."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Iterable, Optional, Sequence, Union

from nac_openood.errors import NACError, some, why_unreadable
from nac_openood.files import is_file
from nac_openood.sources.domains import by_class, names_by_class
from nac_openood.sources.images import FileImages, Transform, folder_images
from nac_openood.sources.texts import LabelledTexts

#: More than any dataset has; a mistyped label must not make a list of so many names.
_MOST_CLASSES = 10**6
_PATH, _TEXT, _LABEL = "path", "text", "label"
#: What there is to read.
Listed = Union[FileImages, LabelledTexts]


def labelled_samples(
    given: Union[str, Path], transform: Transform, classes: Optional[Sequence[str]] = None
) -> Listed:
    """The images of a folder or a list, with their labels and the names of their classes.

    Args:
        given: a folder with a subfolder for each class, or a CSV file with the columns `path` and
            `label`, or `text` and `label`. Its paths are relative to its own folder. Its labels are
            names of classes, or the numbers of classes if all of them are whole numbers.
        transform: turns an RGB image into a tensor.
        classes: names of the classes in the order of their labels; None takes those that occur,
            in alphabetical order, as torchvision's `ImageFolder` does.

    Raises:
        NACError: there are no images, or a label is none of `classes`.
    """
    path = Path(given)
    if path.suffix.lower() == ".csv":
        return _listed(path, transform, classes)
    found = names_by_class(path)
    known = tuple(found if classes is None else classes)
    _refuse_unknown(f"the folder {path}", found, known)
    return FileImages(*by_class(found, known), path, transform, f"the folder {path}", known)


def unlabelled_samples(given: Union[str, Path], transform: Transform) -> Listed:
    """The images of a folder and its subfolders, or of a CSV file with a column path or text."""
    path = Path(given)
    if path.suffix.lower() != ".csv":
        return folder_images(path, transform)
    column, samples, _ = _columns(path, labelled=False)
    return _made(path, column, samples, [-1] * len(samples), transform, ())


def class_names(given: Union[str, Path]) -> tuple[str, ...]:
    """The names of the classes that occur in a folder or list, in alphabetical order.

    They are empty for a list of numbers.
    """
    path = Path(given)
    if path.suffix.lower() != ".csv":
        return tuple(names_by_class(path))
    _, _, labels = _columns(path, labelled=True)
    return () if _are_numbers(labels) else tuple(sorted(set(labels)))


def _listed(path: Path, transform: Transform, classes: Optional[Sequence[str]]) -> Listed:
    column, samples, labels = _columns(path, labelled=True)
    occurring = tuple(sorted(set(labels)))
    by_number = _are_numbers(labels) and not set(occurring) <= set(classes or ())
    if by_number:
        numbers = [int(label) for label in labels]
        if max(numbers) >= _MOST_CLASSES:
            raise NACError(f"{path}: label {max(numbers)} is no class: expected a smaller number.")
        known = tuple(classes or map(str, range(max(numbers) + 1)))
        wrong = sorted({number for number in numbers if not 0 <= number < len(known)})
        if wrong:
            raise NACError(
                f"{path}: label {wrong[0]} is no class; there are {len(known)} classes: expected "
                f"0 to {len(known) - 1}."
            )
    else:
        known = occurring if classes is None else tuple(classes)
        _refuse_unknown(str(path), occurring, known)
        place = {name: number for number, name in enumerate(known)}
        numbers = [place[label] for label in labels]
    return _made(path, column, samples, numbers, transform, known)


def _made(
    path: Path,
    column: str,
    samples: Sequence[str],
    labels: Sequence[int],
    transform: Transform,
    classes: Sequence[str],
) -> Listed:
    if column == _TEXT:
        return LabelledTexts(samples, labels, transform, str(path), classes)
    return FileImages(samples, labels, path.parent, transform, str(path), classes)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, with their numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            return [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError) as error:
        raise NACError(f"the list {path} cannot be read: {why_unreadable(error)}.") from error
    except csv.Error as error:
        raise NACError(f"the list {path} is no CSV file: {error}.") from error


def _columns(path: Path, *, labelled: bool) -> tuple[str, list[str], list[str]]:
    """Which column of a CSV file has the samples, these, and their labels if they are wanted."""
    if not is_file(path):
        raise NACError(f"there is no list {path}.")
    lines = _lines(path)
    header = lines[0][1] if lines else []
    content = _TEXT if _TEXT in header and _PATH not in header else _PATH
    columns = [content, _LABEL] if labelled else [content]
    if any(header.count(name) != 1 for name in columns):
        got = ", ".join(header) or "nothing"
        raise NACError(f"{path}: expected a first line with {' and '.join(columns)}, got {got}.")
    rows = []
    for number, line in lines[1:]:
        row = {name: entry.strip() for name, entry in zip(header, line)}
        if not all(row.get(name) for name in columns):
            raise NACError(f"{path}, line {number}: {' or '.join(columns)} is empty.")
        if len(line) != len(header):
            raise NACError(
                f"{path}, line {number}: expected {len(header)} entries, got {len(line)}. Put "
                "entries that have commas in double quotes."
            )
        rows.append(row)
    if not rows:
        raise NACError(f"the list {path} is empty.")
    return content, [row[content] for row in rows], [row[_LABEL] for row in rows if labelled]


def _are_numbers(labels: Sequence[str]) -> bool:
    return all(re.fullmatch("-?[0-9]{1,18}", label) for label in labels)


def _refuse_unknown(origin: str, found: Iterable[str], known: Sequence[str]) -> None:
    unknown = [name for name in found if name not in set(known)]
    if unknown:
        raise NACError(
            f"{origin} has samples of class {some(unknown)}, which is none of the {len(known)} "
            f"classes: {some(known)}. Take these out, or rename the class."
        )
