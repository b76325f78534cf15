"""Every candidate of a layer, scored once.

A layer's readings are turned into states once for each state and steepness, and binned once for
each number of bins; `full_count` only decides where counts are cut off, and the weight only
multiplies what comes out.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Mapping, Sequence, Tuple

import torch
from torch import Tensor

from nac_openood.core.coverage import layer_score, states_of
from nac_openood.core.histogram import Histogram
from nac_openood.core.layer_config import STATES, LayerConfig
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError

_Key = Tuple[str, float, int, int]


@dataclass(frozen=True)
class SearchData:
    """The readings a search works on, by role, in the order of the columns of every table.

    Args:
        fit: readings of the fitting subset; counted, not scored.
        scored: readings of "ID validation", "OOD validation" and, where given, "held-out training".
    """

    fit: Readings
    scored: Mapping[str, Readings]

    def check(self, points: Mapping[str, Sequence[LayerConfig]]) -> None:
        """Raise where a set is empty, or lacks what the candidates of a layer look at."""
        for role, readings in {"fitting": self.fit, **self.scored}.items():
            if not readings.n_samples:
                raise NACError(f"the {role} set is empty: the search needs at least one sample.")
            for name, options in points.items():
                _check_layer(role, name, readings, self.fit)
                if readings[name].gradient is None:
                    _refuse_gradients(role, name, options)
            readings.check_finite(role, points)
            if role != "OOD validation":
                readings.check_labels(role)


@dataclass(frozen=True)
class LayerTable:
    """The scores of one layer's candidates; those that differ only in weight share a row.

    Args:
        name: name of the layer.
        points: the candidates.
        row: int64 `[points]`, the row of each.
        scores: float64 `[rows, samples]`, in [0, 1], before weighing.
    """

    name: str
    points: Sequence[LayerConfig]
    row: Tensor
    scores: Tensor


def score_layer(name: str, points: Sequence[LayerConfig], samples: SearchData) -> LayerTable:
    """Score all candidates of a layer as a detector fitted with each would."""
    groups: dict[tuple[str, float], list[LayerConfig]] = {}
    for point in points:
        groups.setdefault((point.state, point.steepness), []).append(point)

    def work(group: list[LayerConfig]) -> dict[_Key, Tensor]:
        return _score_group(name, group, samples)

    rows: dict[_Key, Tensor] = {}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for found in pool.map(work, groups.values()):
            rows.update(found)
    keys = list(dict.fromkeys(map(_key, points)))  # in the order of their first points
    scores = torch.stack([rows[key] for key in keys])
    row = torch.tensor([keys.index(_key(point)) for point in points], device=scores.device)
    return LayerTable(name, points, row, scores)


def _key(point: LayerConfig) -> _Key:
    """What the scores depend on."""
    return point.state, point.steepness, point.n_bins, point.full_count


def _score_group(
    name: str, group: Sequence[LayerConfig], samples: SearchData
) -> dict[_Key, Tensor]:
    """Scores float64 `[samples]` of candidates that have their states in common."""
    histograms = _count(name, group, samples.fit)
    parts: dict[_Key, list[Tensor]] = {_key(point): [] for point in group}
    device = samples.fit[name].activation.device
    for readings in samples.scored.values():
        for batch in readings.batches():
            states = states_of(batch[name], group[0]).to(device)
            hits = {m: histogram.hits(states) for m, histogram in histograms.items()}
            for (*_, n_bins, full_count), part in parts.items():
                covered = hits[n_bins].clamp(max=full_count).sum(dim=0, dtype=torch.int64)
                part.append(layer_score(covered, full_count, states.shape[1]))
    return {key: torch.cat(part) for key, part in parts.items()}


def _count(name: str, group: Sequence[LayerConfig], fit: Readings) -> dict[int, Histogram]:
    """The fitting set counted once for each number of bins."""
    activation = fit[name].activation
    histograms = {
        m: Histogram.empty(activation.shape[1], m, activation.device)
        for m in sorted({point.n_bins for point in group})
    }
    for batch in fit.batches():
        states = states_of(batch[name], group[0])
        for histogram in histograms.values():
            histogram.update(states)
    return histograms


def _check_layer(role: str, name: str, readings: Readings, fit: Readings) -> None:
    if name not in readings:
        raise NACError(
            f"the {role} readings have no layer '{name}', only {sorted(readings)}. "
            "Read all datasets with the same layers."
        )
    width, expected = readings[name].activation.shape[1], fit[name].activation.shape[1]
    if width != expected:
        raise NACError(
            f"layer '{name}': the {role} readings have {width} neurons, those of the fitting set "
            f"{expected}. Read all datasets with the same network."
        )


def _refuse_gradients(role: str, name: str, options: Sequence[LayerConfig]) -> None:
    wanting = sorted({point.state for point in options if STATES[point.state].uses_gradient})
    if wanting:
        raise NACError(
            f"layer '{name}': states {wanting} need gradients, but the {role} readings have "
            "none. Read the network again with one of these states."
        )
