"""OpenOOD's benchmarks on disk: list files, images and test transforms."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Union

from nac_openood.errors import NACError
from nac_openood.files import is_file, read_text
from nac_openood.sources.image_settings import IMAGENET_MEAN, IMAGENET_STD, ImageSettings
from nac_openood.sources.images import FileImages, Transform


@dataclass(frozen=True)
class Benchmark:
    """An in-distribution dataset of OpenOOD, its OOD sets, and how its images become tensors.

    Args:
        name: OpenOOD's name of the in-distribution data.
        n_classes: number of its classes.
        folder: folder of the images in the data root.
        ood_val: list of the OOD validation images, without `val_`.
        resize: length of the shorter side before the crop.
        crop: side of the square that the network sees.
        mean: mean per channel.
        std: standard deviation per channel.
        near: names of the near-OOD test sets, whose lists are called `test_NAME`.
        far: the same for the far-OOD test sets.
        shifted: lists of the covariate-shifted ID sets (OpenOOD's csid) by name.
    """

    name: str
    n_classes: int
    folder: str
    ood_val: str
    resize: int
    crop: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    shifted: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> ImageSettings:
        """What OpenOOD's test transform does."""
        return ImageSettings(resize=self.resize, crop=self.crop, mean=self.mean, std=self.std)

    def transform(self) -> Transform:
        """OpenOOD's test transform."""
        return self.settings().transform()

    def images(self, data_root: Union[str, Path], part: str, transform: Transform) -> ListedImages:
        """The images of a list, e.g. `train_cifar10`."""
        root = Path(data_root)
        path = root / "benchmark_imglist" / self.name / f"{part}.txt"
        return ListedImages(path, root / self.folder, transform)


_IMAGENET = IMAGENET_MEAN, IMAGENET_STD
_SMALL, _LARGE = "images_classic", "images_largescale"
_SMALL_FAR = ("mnist", "svhn", "texture", "places365")
_LARGE_OOD = (("ssb_hard", "ninco"), ("inaturalist", "textures", "openimage_o"))


def _imagenet_shifts(name: str, *kinds: str) -> dict[str, str]:
    return {f"imagenet_{kind}": f"test_{name}_{kind}" for kind in kinds}


#: OpenOOD's benchmarks by name, and the embedded one.
BENCHMARKS: Mapping[str, Benchmark] = {
    row.name: row
    for row in (
        Benchmark(
            "cifar10", 10, _SMALL, "tin", 32, 32,
            (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616),
            ("cifar100", "tin"), _SMALL_FAR, {"cifar10c": "test_cifar10c"},
        ),
        Benchmark(
            "cifar100", 100, _SMALL, "tin", 32, 32,
            (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761),
            ("cifar10", "tin"), _SMALL_FAR,
        ),
        Benchmark(
            "imagenet200", 200, _LARGE, "openimage_o", 256, 224, *_IMAGENET, *_LARGE_OOD,
            _imagenet_shifts("imagenet200", "v2", "c", "r"),
        ),
        Benchmark(
            "imagenet", 1000, _LARGE, "openimage_o", 256, 224, *_IMAGENET, *_LARGE_OOD,
            _imagenet_shifts("imagenet", "v2", "c", "r", "es"),
        ),
        # written by `demo.embedded_files.write_openood`
        Benchmark(
            "embedded", 8, "images_embedded", "flower", 32, 32,
            (0.303, 0.303, 0.303), (0.325, 0.325, 0.325), ("digits_8_9", "mnist_8_9"),
            ("photos", "portrait", "terrain", "textures", "scenes"),
            {"mnist_0_7": "test_mnist_0_7"},
        ),
    )
}  # fmt: skip


class ListedImages(FileImages):
    """The images of a list file with lines `path label`.

    Args:
        list_file: the list, which is read at once; images are read when they are asked for.
        image_root: folder that the paths are relative to.
        transform: turns an RGB image into a tensor.
    """

    def __init__(self, list_file: Path, image_root: Path, transform: Transform) -> None:
        if not is_file(list_file):
            others = sorted(path.stem for path in list_file.parent.glob("*.txt"))
            if others:  # the layout is right, the name is not
                raise NACError(
                    f"there is no list {list_file}; the lists in that folder are "
                    f"{', '.join(others)}. For a folder of images write NAME=FOLDER."
                )
            raise NACError(
                f"there is no list {list_file}. Expected OpenOOD's layout: a `data_root` with "
                "benchmark_imglist/ and the images. OpenOOD's scripts/download fetches both."
            )
        lines = read_text(list_file, f"the list {list_file}").splitlines()
        entries = [line.strip().partition(" ") for line in lines if line.strip()]
        if not entries:
            raise NACError(f"the list {list_file} is empty.")
        for number, line in enumerate(lines, start=1):
            if line.strip() and not _is_entry(line.strip()):
                raise NACError(f"{list_file}, line {number}: expected 'path label', got {line!r}.")
        names, labels = [path for path, _, _ in entries], [int(label) for _, _, label in entries]
        super().__init__(names, labels, image_root, transform, str(list_file))


def _is_entry(line: str) -> bool:
    _, _, label = line.partition(" ")
    return re.fullmatch("-?[0-9]{1,9}", label) is not None


def benchmark_named(name: str) -> Benchmark:
    """The benchmark of that name, or an error that lists the known ones."""
    if name not in BENCHMARKS:
        raise NACError(f"unknown benchmark '{name}'; expected one of {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]
