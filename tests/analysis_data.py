"""A few of the embedded images, and the readings that tests of analyses work on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nac_openood.analysis import analyze
from nac_openood.analysis.data import AnalysisData, Options, prepare_analysis
from nac_openood.analysis.finding import Finding
from nac_openood.core.layer_config import LayerConfig
from nac_openood.demo.embedded import EmbeddedImages, embedded_sets
from nac_openood.demo.trained import trained
from nac_openood.detector.config import NACConfig
from nac_openood.errors import NACError
from nac_openood.sources.sets import Datasets

ARCH = "resnet_embedded"
#: Four layers, whose settings are not searched.
FOUR_LAYERS = NACConfig(
    layers={
        "avgpool": LayerConfig(50, 20, 100.0),
        "layer3": LayerConfig(50, 20, 1.0),
        "layer2": LayerConfig(50, 20, 0.01),
        "layer1": LayerConfig(50, 20, 0.001),
    },
    n_samples=160,
)
#: Three layers and a search.
CONFIG = NACConfig(
    layers={
        "avgpool": LayerConfig(50, 5, 50.0),
        "layer3": LayerConfig(50, 10, 0.01),
        "layer2": LayerConfig(50, 10, 1.0),
    },
    n_samples=160,
    search=True,
    sweep={"avgpool": {"full_count": [5, 50], "steepness": [50.0, 100.0]}},
)


def some(images: EmbeddedImages, step: int) -> EmbeddedImages:
    """Every `step`-th image."""
    rows = np.arange(0, len(images), step)
    names = [images.names[i] for i in rows]
    return EmbeddedImages(images.pixels[rows], images.labels[rows], names)


def few_sets() -> Datasets:
    """A training set of 250 images, and small test sets."""
    sets = embedded_sets()
    return replace(
        sets, train=some(sets.train, 4), test=some(sets.test, 2),
        near={"digits_8_9": some(sets.near["digits_8_9"], 5)},
        far={name: some(sets.far[name], 4) for name in ("photos", "portrait")}, shifted={},
    )  # fmt: skip


def even_sets() -> Datasets:
    """About 100 images of each set; some validation and test labels are wrong."""
    sets = embedded_sets()
    kept = {"id_val": some(sets.id_val, 1), "test": some(sets.test, 1)}
    for images in kept.values():
        images.labels[:12] = (images.labels[:12] + 1) % sets.n_classes
    return replace(
        sets, train=some(sets.train, 4), ood_val=some(sets.ood_val, 4), **kept,
        near={"digits_8_9": some(sets.near["digits_8_9"], 3)},
        far={"textures": some(sets.far["textures"], 3)}, shifted={},
    )  # fmt: skip


def small_net(cache: Path) -> Any:
    """The embedded benchmark's ResNet."""
    return trained(ARCH, cache=cache)


def prepared(net: Any, out: Path, **options: Any) -> AnalysisData:
    """Readings of `few_sets`, or what was read before."""
    arguments = {"sets": few_sets(), "arch": ARCH, "config": CONFIG, "progress": False, **options}
    return prepare_analysis(net, arguments.pop("sets"), out, **arguments)


def finding(data: AnalysisData, kind: str, **options: Any) -> Finding:
    """What a study finds; its error is raised."""
    ((name, found),) = analyze(data, [kind], Options(**{"progress": False, **options}))
    assert name == kind
    if isinstance(found, NACError):
        raise found
    return found
