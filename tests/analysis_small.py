"""A small part of the embedded benchmark, read once for analyses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nac_openood.analysis.api import prepare
from nac_openood.analysis.data import AnalysisData
from nac_openood.core.layer_config import LayerConfig
from nac_openood.demo.embedded import EmbeddedImages, embedded_sets
from nac_openood.demo.trained import trained
from nac_openood.detector.config import NACConfig

CONFIG = NACConfig(
    layers={
        "avgpool": LayerConfig(n_bins=50, full_count=20, steepness=100),
        "layer3": LayerConfig(n_bins=50, full_count=20, steepness=1),
        "layer2": LayerConfig(n_bins=50, full_count=20, steepness=0.01),
        "layer1": LayerConfig(n_bins=50, full_count=20, steepness=0.001),
    },
    n_samples=160,
)


def every(data: Any, step: int) -> EmbeddedImages:
    """Every `step`-th image."""
    rows = np.arange(0, len(data), step)
    return EmbeddedImages(
        data.pixels[rows], data.labels[rows], [data.names[i] for i in rows],
        [data.sources[i] for i in rows],
    )  # fmt: skip


def small_sets(*, wrong_labels: int = 0) -> Any:
    """About 100 images of each set; some validation and test labels may be made wrong."""
    sets = embedded_sets(lambda text: None)
    kept = {
        "train": every(sets.train, 4), "id_val": every(sets.id_val, 1),
        "test": every(sets.test, 1), "ood_val": every(sets.ood_val, 4),
        "near": {"digits_8_9": every(sets.near["digits_8_9"], 3)},
        "far": {"textures": every(sets.far["textures"], 3)}, "shifted": {},
    }  # fmt: skip
    for name in ("id_val", "test"):
        labels = kept[name].labels
        labels[:wrong_labels] = (labels[:wrong_labels] + 1) % sets.n_classes
    return replace(sets, **kept)


def small_data(out: Path, cache: Path, **options: Any) -> AnalysisData:
    net = trained("resnet_embedded", cache=cache, progress=False)
    return prepare(
        net, small_sets(**options), out, arch="resnet_embedded", config=CONFIG, progress=False
    )
