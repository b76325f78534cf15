"""The datasets of an OOD benchmark from data of one's own: folders, lists, or Python code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

from torch.utils.data import DataLoader, Subset

from nac_openood.core.layer_config import refuse_unknown
from nac_openood.detector.subset import loader_like
from nac_openood.errors import NACError
from nac_openood.sources.code import call_code, is_code, load_code
from nac_openood.sources.domains import split_indices
from nac_openood.sources.images import FileImages, Transform
from nac_openood.sources.labelled import class_names, labelled_samples, unlabelled_samples
from nac_openood.sources.samples import Rows, Samples
from nac_openood.sources.sets import NO_OOD, Datasets, check_names

PathOrText = Union[str, Path]
#: What a user's code may return under which name.
_ROLES = ("train", "val", "test", "near", "far", "ood_val")


def own_sets(
    train: PathOrText,
    *,
    val: Optional[PathOrText] = None,
    test: Optional[PathOrText] = None,
    near: Sequence[str] = (),
    far: Sequence[str] = (),
    ood_val: Optional[str] = None,
    transform: Optional[Transform],
    classes: Sequence[str] = (),
    seed: int = 0,
    needs_test: bool = True,
) -> Datasets:
    """Datasets out of folders, lists and code.

    Args:
        train: training images: a folder with a subfolder for each class, a CSV file with the
            columns `path` and `label` (or `text` and `label`), or code, `package.module:function`
            or `path/to/file.py:function`, which is run. The function is given the transform if it
            takes an argument, and returns a dataset, or a dict of datasets for several of `train`,
            `val`, `test`, `ood_val`, `near` and `far` (the last two by name).
        val: the same for ID validation images; None holds out 20 % of `train`.
        test: the same for ID test images.
        near: near-OOD sets, each as `NAME=FOLDER`, `NAME=FILE.csv` or `NAME=CODE`; their labels do
            not matter.
        far: the same for far-OOD sets.
        ood_val: OOD validation set in the same form; None or "none" makes surrogates of ID
            validation images.
        transform: turns an image into a tensor; None if only code is given that needs none.
        classes: names of the network's classes in the order of its logits, where they are known;
            labels follow them if the data has such names.
        seed: random seed of the splits.
        needs_test: whether to hold out test images where none are given.
    """
    reader = _Reader(transform, tuple(classes))
    found = reader.several(train)
    for role, given in (("val", val), ("test", test)):
        if given is not None:
            found[role] = reader.labelled(role, given)
    for number, role in enumerate(("val", "test")):
        if role not in found and (role == "val" or needs_test):
            found["train"], found[role] = _split(found["train"], seed + number)
    near_sets, far_sets = (
        {**found.get(role, {}), **reader.named(role, entries)}
        for role, entries in (("near", near), ("far", far))
    )
    outside = found.get("ood_val")
    if ood_val not in (None, NO_OOD):
        outside = next(iter(reader.named("ood_val", [str(ood_val)]).values()))
    return Datasets(
        _title(str(train)), _count(found["train"]), found["train"], found["val"],
        found.get("test"), outside, near_sets, far_sets,
    )  # fmt: skip


def needs_transform(*given: Any, **more: Any) -> bool:
    """Whether any of these arguments of `own_sets` is not code; code may need no transform."""
    entries: list[str] = []
    for value in (*given, *more.values()):
        many = [value] if isinstance(value, (str, Path)) else list(value or ())
        entries += [str(entry).partition("=")[2] or str(entry) for entry in many]
    return any(not is_code(entry) and entry != NO_OOD for entry in entries)


def classes_of(data: Any) -> tuple[str, ...]:
    """The names of a dataset's classes, which torchvision's datasets know too; else empty."""
    while isinstance(data, (Subset, DataLoader)):
        data = data.dataset
    return tuple(map(str, getattr(data, "classes", ())))


class _Reader:
    """Reads whatever was given; all sets share their classes with the training set."""

    def __init__(self, transform: Optional[Transform], classes: tuple[str, ...]) -> None:
        self.transform, self.classes = transform, classes

    def several(self, train: PathOrText) -> dict[str, Any]:
        """The training set and, if code returns several, the others, by role."""
        if not is_code(str(train)):
            names = class_names(train)
            if names and not set(names) <= set(self.classes):
                self.classes = names
            return {"train": self.labelled("train", train)}
        made = self.coded("train", str(train))
        if not isinstance(made, Mapping):
            made = {"train": made}
        refuse_unknown(made, _ROLES, "set of images")
        if "train" not in made:
            raise NACError(f"`train`: {train} returned {sorted(made)} without 'train'.")
        self.classes = classes_of(made["train"])
        return dict(made)

    def labelled(self, role: str, given: PathOrText) -> Any:
        if is_code(str(given)):
            return self.coded(role, str(given))
        images = labelled_samples(given, self._needed(), self.classes or None)
        if len(images.classes) < 2:
            raise NACError(f"{images.origin} has one class only: expected at least two.")
        self.classes = self.classes or images.classes
        return images

    def named(self, role: str, entries: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for entry in entries:
            name, _, given = entry.partition("=")
            if not name or not given:
                raise NACError(
                    f"expected NAME=FOLDER for a set of images of your own, got '{entry}': there "
                    "are no lists to look a name up in."
                )
            check_names([*found, name])
            if is_code(given):
                found[name] = self.coded(role, given)
            else:
                found[name] = unlabelled_samples(given, self._needed())
        return found

    def coded(self, role: str, text: str) -> Any:
        """What the user's function returns."""
        what = f"`{role}`"
        function = load_code(text, what)
        if not callable(function):
            return function
        known = self.transform is not None
        return call_code(function, text, what, {"transform": self.transform} if known else {})

    def _needed(self) -> Transform:
        assert self.transform is not None  # only code may do without
        return self.transform


def _split(data: Any, seed: int) -> tuple[Any, Any]:
    """The samples without 20 % of them, and those."""
    dataset = Samples("train", data).dataset
    kept, held = split_indices(len(dataset), seed)
    if isinstance(data, FileImages):
        return data.without(held.tolist()), data.without(kept.tolist())
    parts = Rows(dataset, kept), Rows(dataset, held)
    if isinstance(data, DataLoader):  # whose `collate_fn` they need
        return loader_like(data, parts[0]), loader_like(data, parts[1])
    return parts


def _title(train: str) -> str:
    """A name for the data: that of the function, file or folder; `birds` of `birds/train`."""
    if is_code(train):
        return train.rpartition(":")[2]
    path = Path(train).resolve()
    return path.parent.name if path.name == "train" and path.parent.name else path.stem


def _count(train: Any) -> int:
    """The number of classes: how many are named, or one more than the largest label."""
    names = classes_of(train)
    if names:
        return len(names)
    labels = Samples("train", train).labels
    if labels is None:
        raise NACError(
            "the training data has no labels: let the dataset yield (x, y) or {'data': x, "
            "'label': y}."
        )
    return int(labels.max()) + 1
