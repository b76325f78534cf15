"""The datasets of an OOD benchmark by role, and how to read them from folders, lists and code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

import numpy as np
from torch.utils.data import DataLoader, Subset

from nac_openood.core.layer_config import refuse_unknown
from nac_openood.detector.batches import loader_like
from nac_openood.errors import NACError
from nac_openood.files import PathLike
from nac_openood.sources import readers
from nac_openood.sources.code import call_code, is_code
from nac_openood.sources.images import Transform
from nac_openood.sources.samples import SampleList, Samples, base_dataset
from nac_openood.sources.transforms import IMAGENET_MEAN, IMAGENET_STD, ImageSettings

#: Names that no OOD set may have: those of other sets, and of means.
RESERVED = ("test", "train", "id_val", "ood_val", "nearood", "farood")
#: The name that means that there is no OOD validation data.
NO_OOD = "none"
#: The keys of a dict that a user's code may return.
_ROLES = ("train", "val", "test", "near", "far", "ood_val")


@dataclass(frozen=True)
class Datasets:
    """What a comparison needs: map-style datasets or `DataLoader`s, as `Samples` takes them.

    Args:
        id_name: name of the in-distribution data.
        n_classes: number of its classes.
        train: training data, without augmentation.
        id_val: ID validation data.
        test: ID test data.
        ood_val: OOD validation data; None makes surrogates from `id_val`.
        near: near-OOD test sets by name.
        far: far-OOD test sets by name.
        shifted: covariate-shifted ID test sets (OpenOOD's csid) by name, for full-spectrum
            detection.
        std: standard deviation per channel by which images were normalized.
    """

    id_name: str
    n_classes: int
    train: Any
    id_val: Any
    test: Any
    ood_val: Optional[Any] = None
    near: Mapping[str, Any] = field(default_factory=dict)
    far: Mapping[str, Any] = field(default_factory=dict)
    shifted: Mapping[str, Any] = field(default_factory=dict)
    std: Any = None

    def __post_init__(self) -> None:
        for role in ("near", "far", "shifted"):
            check_mapping(role, getattr(self, role), "names", "svhn")
        check_names([*self.shifted, *self.near, *self.far])

    def roles(self) -> dict[str, str]:
        """The role of every set that is scored; the ID test set, called "test", comes first."""
        roles = {"test": "id", **dict.fromkeys(self.shifted, "csid")}
        return {**roles, **dict.fromkeys(self.near, "near"), **dict.fromkeys(self.far, "far")}

    def scored(self) -> dict[str, Any]:
        """The sets that are scored, in the order of `roles`."""
        return {"test": self.test, **self.shifted, **self.near, **self.far}


def own_sets(
    train: PathLike,
    *,
    val: Optional[PathLike] = None,
    test: Optional[PathLike] = None,
    near: Sequence[str] = (),
    far: Sequence[str] = (),
    ood_val: Optional[str] = None,
    transform: Optional[Transform],
    classes: Sequence[str] = (),
    seed: int = 0,
    needs_test: bool = True,
    on_held_out: Callable[[str], None] = lambda role: None,
) -> Datasets:
    """Read datasets from folders, lists and code.

    Args:
        train: training images: a folder with a subfolder for each class, a CSV file with the
            columns `path` and `label` (or `text` and `label`), or code, `package.module:function`
            or `path/to/file.py:function`, which is run. The function receives the transform if it
            takes an argument, and returns a dataset, or a dict of datasets for several of `train`,
            `val`, `test`, `ood_val`, `near` and `far` (the last two by name).
        val: the same for ID validation images; None holds out 20 % of `train`.
        test: the same for ID test images.
        near: near-OOD sets, each as `NAME=FOLDER`, `NAME=FILE.csv` or `NAME=CODE`; their labels do
            not matter.
        far: the same for far-OOD sets.
        ood_val: OOD validation set in the same form; None or "none" makes surrogates of ID
            validation images.
        transform: turns an image into a tensor; None if all data comes from code.
        classes: names of the network's classes in the order of its logits, where they are known;
            labels follow them if the data has such names.
        seed: random seed of the splits.
        needs_test: whether to hold out test images if `test` is None.
        on_held_out: called with "val" or "test" where training samples take their place.
    """

    def labelled(role: str, path: Any, known: Optional[tuple[str, ...]] = None) -> Any:
        if is_code(str(path)):
            return _run_code(role, str(path), transform)
        return readers.labelled_samples(path, transform, known, classes)

    made = labelled("train", train)
    found = dict(made) if isinstance(made, Mapping) else {"train": made}
    refuse_unknown(found, _ROLES, "set of images")
    if "train" not in found:
        raise NACError(f"`train`: {train} returned {sorted(found)} without 'train'.")
    names, n_classes = classes_of(found["train"]) or None, _count_classes(found["train"])
    for number, (role, path) in enumerate((("val", val), ("test", test))):
        if path is not None:
            found[role] = labelled(role, path, names)
            names = names or classes_of(found[role]) or None
        elif role not in found and (role == "val" or needs_test):
            found["train"], found[role] = _split(found["train"], seed + number)
            on_held_out(role)
    if ood_val not in (None, NO_OOD):
        (found["ood_val"],) = _ood_sets("ood_val", [str(ood_val)], transform).values()
    return Datasets(
        _title(str(train)), n_classes, found["train"], found["val"],
        found.get("test"), found.get("ood_val"),
        {**found.get("near", {}), **_ood_sets("near", near, transform)},
        {**found.get("far", {}), **_ood_sets("far", far, transform)},
    )  # fmt: skip


def _ood_sets(
    role: str, entries: Sequence[str], transform: Any, listed: Optional[Callable[..., Any]] = None
) -> dict[str, Any]:
    """Read OOD sets that are written as `NAME=FOLDER`, or as `NAME` if `listed` reads such sets."""
    bare = [entry for entry in entries if "=" not in entry and (listed is None or "/" in entry)]
    if bare:
        raise NACError(f"expected NAME=FOLDER for your own set of images, got '{bare[0]}'.")
    paths = dict(entry.partition("=")[::2] for entry in entries)
    check_names([entry.partition("=")[0] for entry in entries])
    found: dict[str, Any] = {}
    for name, path in paths.items():
        if is_code(path):
            found[name] = _run_code(role, path, transform)
        elif path:
            found[name] = readers.unlabelled_samples(path, transform)
        elif listed is not None:
            found[name] = listed(name)
        else:
            raise NACError(f"expected NAME=FOLDER for your own set of images, got '{name}'.")
    return found


def needs_transform(*data: Any) -> bool:
    """Whether any of these arguments of `own_sets` is not code; code may need no transform."""
    lists = ([str(value)] if isinstance(value, (str, Path)) else value or () for value in data)
    names = [entry.partition("=")[2] or entry for found in lists for entry in found]
    return any(not is_code(name) and name != NO_OOD for name in names)


def classes_of(data: Any) -> tuple[str, ...]:
    """The names of a dataset's classes, which torchvision's datasets have too; else empty."""
    return tuple(map(str, getattr(base_dataset(data), "classes", ())))


def _run_code(role: str, text: str, transform: Optional[Transform]) -> Any:
    """The dataset that a user's code names or returns."""
    return call_code(text, f"`{role}`", {} if transform is None else {"transform": transform})


def _split(data: Any, seed: int) -> tuple[Any, Any]:
    """Hold out 20 % of the samples."""
    dataset = Samples("train", data).dataset
    train, held_out = readers.split_indices(len(dataset), seed)
    if isinstance(data, SampleList):
        return data.without(held_out.tolist()), data.without(train.tolist())
    parts = (Subset(dataset, np.sort(rows).tolist()) for rows in (train, held_out))
    # the loader's `collate_fn` may be needed
    first, second = (loader_like(data, p) if isinstance(data, DataLoader) else p for p in parts)
    return first, second


def _title(train: str) -> str:
    """A name for the data: that of the function, file or folder; `birds` of `birds/train`."""
    if is_code(train):
        return train.rpartition(":")[2]
    path = Path(train).resolve()
    return path.parent.name if path.name == "train" and path.parent.name else path.stem


def _count_classes(train: Any) -> int:
    """How many classes are named, or one more than the largest label."""
    if classes_of(train):
        return len(classes_of(train))
    labels = Samples("train", train).labels
    if labels is None:
        raise NACError("the training data has no labels: let the dataset yield (x, y).")
    return int(labels.max()) + 1


def check_names(names: Sequence[str]) -> None:
    """Check that names of test sets are distinct, not reserved, and can be names of files."""
    check_file_names("a dataset", names)
    wrong = sorted({name for name in names if names.count(name) > 1 or name in RESERVED})
    if wrong:
        others = f"a different name for each OOD set, and none of {', '.join(RESERVED)}"
        raise NACError(f"expected {others}; got {', '.join(wrong)}")


def check_mapping(role: str, value: Any, what: str, example: str) -> None:
    """Check that an argument is a mapping, of datasets by name."""
    if not isinstance(value, Mapping):
        raise NACError(f"`{role}` must map {what} to datasets, as in {{'{example}': dataset}}.")


def check_file_names(what: str, names: Iterable[str]) -> None:
    """Check that files can have these names on all systems."""
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"(?!\.)[^/\\\0\n\r\ud800-\udfff]+", name):
            raise NACError(f"the name of {what} must be one that a file can have; got {name!r}.")


@dataclass(frozen=True)
class Benchmark:
    """An in-distribution dataset of OpenOOD, its OOD sets, and how its images become tensors.

    Args:
        name: OpenOOD's name of the in-distribution data.
        n_classes: number of its classes.
        folder: folder of the images in the data root.
        ood_val: list of the OOD validation images, without `val_`.
        settings: what OpenOOD's test transform does.
        near: names of the near-OOD test sets, whose lists are called `test_NAME`.
        far: the same for the far-OOD test sets.
        shifted: lists of the covariate-shifted ID sets (OpenOOD's csid) by name.
    """

    name: str
    n_classes: int
    folder: str
    ood_val: str
    settings: ImageSettings
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    shifted: Mapping[str, str] = field(default_factory=dict)

    def transform(self) -> Transform:
        """OpenOOD's test transform."""
        return self.settings.transform()

    def images(self, data_root: Union[str, Path], part: str, transform: Transform) -> SampleList:
        """The images of a list, e.g. `train_cifar10`."""
        root = Path(data_root)
        path = root / "benchmark_imglist" / self.name / f"{part}.txt"
        return readers.listed_images(path, root / self.folder, transform)


_SMALL = "images_classic"
_SMALL_FAR = ("mnist", "svhn", "texture", "places365")
#: Image folder, OOD validation set, transform and OOD sets of OpenOOD's ImageNet benchmarks.
_IMAGENET = (
    "images_largescale", "openimage_o", ImageSettings(False, 256, 224, IMAGENET_MEAN, IMAGENET_STD),
    ("ssb_hard", "ninco"), ("inaturalist", "textures", "openimage_o"),
)  # fmt: skip

#: OpenOOD's benchmarks by name, and the embedded one.
BENCHMARKS: Mapping[str, Benchmark] = {
    row.name: row
    for row in (
        Benchmark(
            "cifar10", 10, _SMALL, "tin",
            ImageSettings(False, 32, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            ("cifar100", "tin"), _SMALL_FAR, {"cifar10c": "test_cifar10c"},
        ),
        Benchmark(
            "cifar100", 100, _SMALL, "tin",
            ImageSettings(False, 32, 32, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
            ("cifar10", "tin"), _SMALL_FAR,
        ),
        Benchmark(
            "imagenet200", 200, *_IMAGENET,
            {f"imagenet_{kind}": f"test_imagenet200_{kind}" for kind in ("v2", "c", "r")},
        ),
        Benchmark(
            "imagenet", 1000, *_IMAGENET,
            {f"imagenet_{kind}": f"test_imagenet_{kind}" for kind in ("v2", "c", "r", "es")},
        ),
        # `demo.embedded.write_openood` writes it
        Benchmark(
            "embedded", 8, "images_embedded", "flower", ImageSettings(False, 32, 32, 0.303, 0.325),
            ("digits_8_9", "mnist_8_9"), ("photos", "portrait", "terrain", "textures", "scenes"),
            {"mnist_0_7": "test_mnist_0_7"},
        ),
    )
}  # fmt: skip


def benchmark_named(name: str) -> Benchmark:
    """The benchmark of that name, or an error that lists all of them."""
    if name not in BENCHMARKS:
        raise NACError(f"unknown benchmark '{name}'; expected one of {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def listed_sets(
    benchmark: Benchmark,
    data_root: Union[str, Path],
    transform: Optional[Transform] = None,
    *,
    near: Optional[Sequence[str]] = None,
    far: Optional[Sequence[str]] = None,
    full_spectrum: bool = False,
    ood_val: Optional[str] = None,
    needs_test: bool = True,
) -> Datasets:
    """The sets of a benchmark in OpenOOD's layout, and image folders of your own.

    Args:
        benchmark: which benchmark.
        data_root: OpenOOD's data folder.
        transform: turns an image into a tensor; None takes the benchmark's.
        near: near-OOD sets, `NAME` of a list `test_NAME` or `NAME=FOLDER`; None takes the
            benchmark's.
        far: the same for far-OOD sets.
        full_spectrum: add the covariate-shifted ID sets.
        ood_val: list of OOD validation images without `val_`, `NAME=FOLDER`, or "none" for
            surrogates; None takes the benchmark's.
        needs_test: whether to read the lists of test sets; they may be missing otherwise.
    """
    transform = transform or benchmark.transform()

    def listed(part: str) -> SampleList:
        return benchmark.images(data_root, part, transform)

    def ood_sets(part: str, entries: Sequence[str]) -> dict[str, Any]:
        return _ood_sets(part, entries, transform, lambda name: listed(f"{part}_{name}"))

    name, ood_val = benchmark.name, ood_val or benchmark.ood_val
    validation = {} if ood_val == NO_OOD else ood_sets("val", [ood_val])
    near, far = (benchmark.near if near is None else near), (benchmark.far if far is None else far)
    return Datasets(
        name,
        benchmark.n_classes,
        train=listed(f"train_{name}"),
        id_val=listed(f"val_{name}"),
        test=listed(f"test_{name}") if needs_test else None,
        ood_val=next(iter(validation.values()), None),
        near=ood_sets("test", near) if needs_test else {},
        far=ood_sets("test", far) if needs_test else {},
        shifted={n: listed(part) for n, part in benchmark.shifted.items()} if full_spectrum else {},
        std=benchmark.settings.std,
    )
