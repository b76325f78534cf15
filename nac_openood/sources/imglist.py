"""OpenOOD's benchmarks on disk: list files, images and test transforms."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

from nac_openood.errors import NACError
from nac_openood.sources.images import Transform
from nac_openood.sources.readers import listed_images, unlabelled_samples
from nac_openood.sources.samples import SampleList
from nac_openood.sources.sets import NO_OOD, Datasets, named_sets
from nac_openood.sources.transforms import IMAGENET_MEAN, IMAGENET_STD, ImageSettings


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

    def images(self, data_root: Union[str, Path], part: str, transform: Transform) -> SampleList:
        """The images of a list, e.g. `train_cifar10`."""
        root = Path(data_root)
        path = root / "benchmark_imglist" / self.name / f"{part}.txt"
        return listed_images(path, root / self.folder, transform)


_SMALL, _LARGE = "images_classic", "images_largescale"
_SMALL_FAR = ("mnist", "svhn", "texture", "places365")
#: OOD validation set, sizes, normalization and OOD sets of OpenOOD's ImageNet benchmarks.
_IMAGENET = (
    "openimage_o", 256, 224, IMAGENET_MEAN, IMAGENET_STD,
    ("ssb_hard", "ninco"), ("inaturalist", "textures", "openimage_o"),
)  # fmt: skip

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
            "imagenet200", 200, _LARGE, *_IMAGENET,
            {f"imagenet_{kind}": f"test_imagenet200_{kind}" for kind in ("v2", "c", "r")},
        ),
        Benchmark(
            "imagenet", 1000, _LARGE, *_IMAGENET,
            {f"imagenet_{kind}": f"test_imagenet_{kind}" for kind in ("v2", "c", "r", "es")},
        ),
        # `demo.embedded_files.write_openood` writes it
        Benchmark(
            "embedded", 8, "images_embedded", "flower", 32, 32, (0.303,) * 3, (0.325,) * 3,
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

    def ood_sets(prefix: str, entries: Sequence[str]) -> dict[str, Any]:
        def read(name: str, folder: str) -> Any:
            return unlabelled_samples(folder, transform) if folder else listed(f"{prefix}_{name}")

        return named_sets(entries, read)

    near, far = (benchmark.near if near is None else near), (benchmark.far if far is None else far)
    ood_val = ood_val or benchmark.ood_val
    validation = {} if ood_val == NO_OOD else ood_sets("val", [ood_val])
    return Datasets(
        benchmark.name,
        benchmark.n_classes,
        train=listed(f"train_{benchmark.name}"),
        id_val=listed(f"val_{benchmark.name}"),
        test=listed(f"test_{benchmark.name}") if needs_test else None,
        ood_val=next(iter(validation.values()), None),
        near=ood_sets("test", near) if needs_test else {},
        far=ood_sets("test", far) if needs_test else {},
        shifted={n: listed(part) for n, part in benchmark.shifted.items()} if full_spectrum else {},
        std=benchmark.std,
    )
