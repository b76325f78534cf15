"""What to try: the paper's search space as data, and lists of settings turned into candidates."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Mapping, Sequence

from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.config import Sweep, check_sweep
from nac_openood.errors import NACError

#: The paper's space. States of deep layers vary in a smaller range and want a steeper sigmoid.
#: Full weight comes first: of equally good candidates the first one wins.
PAPER_SPACE: Mapping[str, tuple[Any, ...]] = {
    "n_bins": (50, 500, 1000),
    "full_count": (5, 10, 50, 100, 500, 5000),
    "steepness_deepest": (50.0, 100.0, 300.0, 1000.0, 3000.0),
    "steepness": (0.001, 0.005, 0.01, 0.1, 1.0, 10.0),
    "weight": (1.0, 0.8, 0.6, 0.4, 0.2),
}


def paper_space(
    layers: Sequence[str], *, weights: bool = True
) -> dict[str, dict[str, tuple[Any, ...]]]:
    """The paper's space as a sweep.

    The deepest layer takes the steep list and the others take the gentle one. The second deepest
    takes both, because the paper's own settings for it (ResNet `layer3`) come from either.

    Args:
        layers: layer names, deepest first.
        weights: whether to search the weights too; without them layers count alike.
    """
    gentle, steep = PAPER_SPACE["steepness"], PAPER_SPACE["steepness_deepest"]
    by_depth = [steep, gentle + steep]
    return {
        name: {
            "n_bins": PAPER_SPACE["n_bins"],
            "full_count": PAPER_SPACE["full_count"],
            "steepness": by_depth[depth] if depth < len(by_depth) else gentle,
            **({"weight": PAPER_SPACE["weight"]} if weights else {}),
        }
        for depth, name in enumerate(layers)
    }


def layer_candidates(
    layers: Mapping[str, LayerConfig], sweep: Sweep, *, leave_out: bool = False
) -> dict[str, tuple[LayerConfig, ...]]:
    """Every layer's candidates, in the order of OpenOOD's sweep: the first list changes fastest.

    Args:
        layers: the settings that are not searched, by layer name.
        sweep: the lists; a layer without lists has one candidate, as it is.
        leave_out: whether to add, last, a candidate of weight 0: the layer left out.
    """
    if not layers:
        raise NACError("no layers to search: pass e.g. {'avgpool': LayerConfig(), ...}.")
    check_sweep(layers, sweep)
    found = {
        name: tuple(
            dataclasses.replace(base, **point) for point in grid_points(sweep.get(name, {}))
        )
        for name, base in layers.items()
    }
    if leave_out and len(layers) > 1:
        found = {
            name: (*points, dataclasses.replace(points[0], weight=0.0))
            for name, points in found.items()
        }
    if all(point.weight == 0 for points in found.values() for point in points):
        raise NACError(
            "all layer weights are zero in every candidate, so there would be no score. "
            "Give at least one layer a weight above 0."
        )
    return found


def grid_points(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of values, in OpenOOD's order: the first name changes fastest."""
    names = list(lists)
    turned = itertools.product(*(lists[name] for name in reversed(names)))
    return [dict(zip(names, reversed(values))) for values in turned]
