"""Distributions of the states of single neurons and of coverage, ID against OOD."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

import numpy as np
import torch
from torch import Tensor

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import TestScores
from nac_openood.analysis.state_forms import STATE_FORMS
from nac_openood.core.coverage import states_of
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.ranking import joined_auroc
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.tables import Densities, Density

#: Values of alpha to show.
SHOWN_STEEPNESS = (1.0, 10.0, 100.0, 1000.0, 3000.0)

Settings = Mapping[str, Mapping[str, LayerConfig]]


def telling_neuron(data: AnalysisData, layer: str, config: LayerConfig) -> int:
    """The neuron whose state tells ID from OOD validation data best."""
    both = [
        torch.cat([states_of(part[layer], config) for part in readings.batches()])
        for readings in (data.fitting.id_val, data.fitting.ood_val)
    ]
    values = joined_auroc(torch.cat(both).t().double().contiguous(), len(both[0]))
    return int((values - 0.5).abs().argmax())


def neuron_figure(
    data: AnalysisData, options: Options, settings: Settings, scores: TestScores
) -> Densities:
    """States of one neuron of the deepest layer: a row per form, a column per steepness."""
    layer, outside = data.layers[0], data.ood_set(options.ood_set)
    width = data.fitting.fit[layer].activation.shape[1]
    neuron = options.neuron
    if neuron is None:
        neuron = telling_neuron(data, layer, settings["output*gradient"][layer])
    if not 0 <= neuron < width:
        raise NACError(
            f"`neuron` must be in 0..{width - 1}, since layer '{layer}' has {width} neurons; got "
            f"{neuron}."
        )
    values = tuple(options.steepness or SHOWN_STEEPNESS)
    rows = []
    for form, title in STATE_FORMS.items():
        points = [replace(settings[form][layer], steepness=value) for value in values]
        scores.prepare({layer: points})
        panels = []
        for point in points:
            inside, out = (_states(data.scored[n], layer, point, neuron) for n in ("test", outside))
            fpr = scores.metrics({layer: point})[outside]["FPR@95"]
            panels.append(Density.of(inside, out, note=f"FPR@95 {fpr:.1f} %"))
        rows.append((title, panels))
    return Densities(
        "neuron",
        f"States of neuron {neuron} of {layer}, by steepness alpha; FPR@95 of all of its neurons",
        "state (sigmoid of alpha times the form)", [f"alpha {value:g}" for value in values], rows,
        f"ID test ({data.id_name})", outside,
    )  # fmt: skip


def coverage_figure(
    data: AnalysisData, options: Options, settings: Settings, scores: TestScores
) -> Densities:
    """Mean coverage over neurons: a row per form, a column per layer and one for all layers."""
    outside = data.ood_set(options.ood_set)
    rows = []
    for form, title in STATE_FORMS.items():
        columns = [{layer: settings[form][layer]} for layer in data.layers]
        panels = []
        for chosen in (*columns, settings[form]):
            found = scores.scores(chosen)
            fpr = scores.metrics(chosen)[outside]["FPR@95"]
            panels.append(Density.of(found["test"], found[outside], note=f"FPR@95 {fpr:.1f} %"))
        rows.append((title, panels))
    return Densities(
        "coverage", "Coverage of test samples, by layer",
        "mean coverage of a sample's neurons (its score)", [*data.layers, "all layers"], rows,
        f"ID test ({data.id_name})", outside,
    )  # fmt: skip


def _states(readings: Readings, layer: str, config: LayerConfig, neuron: int) -> np.ndarray:
    """States of one neuron, `[samples]`."""
    parts: list[Tensor] = [states_of(part[layer], config)[:, neuron] for part in readings.batches()]
    return torch.cat(parts).double().numpy()
