"""Compares neuron states: the output, its gradient, their product, and parts of the product.

With logits `g(z) = W z + b`, the gradient of the KL divergence with respect to the head's input z
is `(p - u) W`, so the paper's state is `z * ((p - u) W)`. The paper does not say how parts are left
out. Here:

* without `p - u`, the gradient is that of the predicted class's logit: the row of W for it (the
  sum over all classes would be the same for every sample);
* without the gradient, `z` is multiplied by the predicted class's `p - u`, a number per sample;
* `p - u` alone is a vector with an entry per class; classes take the place of neurons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.analysis import tabulate
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.scoring import Metrics, TestScores
from nac_openood.benchmark.run.results import GROUP_WORDS
from nac_openood.core.coverage import states_of
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.metrics import joined_auroc
from nac_openood.core.reading import Reading, logits_in
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.run import PAPER_SPACE, search
from nac_openood.tables import Densities, Density

#: The forms of the state as the paper writes them, by their names in this package.
STATE_FORMS = {
    "output": "output z",
    "gradient": "gradient dKL/dz",
    "output*gradient": "z times dKL/dz",
}
#: The paper's space, with all of its values of alpha: forms differ in scale.
_SWEEP = {
    "n_bins": PAPER_SPACE["n_bins"],
    "full_count": PAPER_SPACE["full_count"],
    "steepness": (*PAPER_SPACE["steepness"], *PAPER_SPACE["steepness_deepest"]),
}
#: Values of alpha to show.
_SHOWN_STEEPNESS = (1.0, 10.0, 100.0, 1000.0, 3000.0)
_ALL = "all layers"
#: The argument of the sigmoid, `[samples, neurons]`, by the paper's name of the combination; from z
#: `[samples, D]`, the head's weight `[classes, D]`, p - u `[samples, classes]` and the prediction.
PARTS: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "z": lambda z, weight, pu, predicted: z,
    "dg": lambda z, weight, pu, predicted: weight[predicted],
    "p-u": lambda z, weight, pu, predicted: pu,
    "z*dg": lambda z, weight, pu, predicted: z * weight[predicted],
    "dg*(p-u)": lambda z, weight, pu, predicted: pu @ weight,
    "z*(p-u)": lambda z, weight, pu, predicted: z * pu.gather(1, predicted[:, None]),
    "z*dg*(p-u)": lambda z, weight, pu, predicted: z * (pu @ weight),
}
#: The only layer of readings that hold a combination of parts.
_PART_LAYER = "state"

Settings = Mapping[str, Mapping[str, LayerConfig]]


def states(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of three forms of the state, and of seven combinations of its parts."""
    fitting, group = data.fitting, data.main_group
    settings = {
        form: {
            name: chosen_settings(fitting.fit, fitting.id_val, fitting.ood_val, name, form, options)
            for name in data.layers
        }
        for form in STATE_FORMS
    }
    scores = TestScores(data)
    figures = _densities(data, options, settings, scores)
    found: dict[tuple[str, str], Metrics] = {}
    for form, used in settings.items():
        for name in data.layers:
            found[form, name] = scores.metrics({name: used[name]})
        found[form, _ALL] = scores.metrics(used)
    where = (*data.layers, _ALL)
    rows = [
        ([name, title, _described(settings[form].get(name))], found[form, name], "")
        for name in where
        for form, title in STATE_FORMS.items()
    ]
    heads = ["Layer", "State", "alpha, M, O*"]
    ours = range(len(STATE_FORMS) - 1, len(rows), len(STATE_FORMS))  # output*gradient
    tables = [
        tabulate.metric_table(
            "Output, gradient and their product", heads, data.groups, rows, ours=list(ours)
        )
    ]
    fprs = {form: found[form, _ALL][group]["FPR@95"] for form in STATE_FORMS}
    listed = ", ".join(f"{fprs[form]:.2f} % with {title}" for form, title in STATE_FORMS.items())
    best = STATE_FORMS[min(fprs, key=fprs.__getitem__)]
    sentence = f"With {_ALL}, {GROUP_WORDS[group]} FPR@95 is {listed}: {best} is best."
    notes = [
        tabulate.FPR_NOTE,
        "The settings of each form were chosen on validation data, out of the paper's space.",
    ]
    try:
        parts = _part_metrics(data, options)
    except NACError as error:
        notes.append(f"The parts of the state cannot be separated here: {error}")
    else:
        paper = tabulate.paper_rows(data, options.against, "Table 16", "state")
        tables.append(tabulate.metric_table(
            f"Parts of the state at {data.head_input}: z, dg (gradient of the logits), p-u",
            ["Parts", "alpha, M, O*"], data.groups,
            [([name, _described(used)], line, name) for name, (used, line) in parts.items()],
            paper=paper, ours=[len(parts) - 1],
        ))  # fmt: skip
        found.update({(name, data.head_input): line for name, (_, line) in parts.items()})
        notes += paper.notes
        aurocs = {name: line[group]["AUROC"] for name, (_, line) in parts.items()}
        top, whole = max(aurocs, key=aurocs.__getitem__), list(parts)[-1]
        sentence += " At the head's input, the combination with the highest AUROC is "
        if top == whole:
            sentence += f"that of all three parts, {top} ({aurocs[top]:.2f} %)."
        else:
            sentence += f"{top} ({aurocs[top]:.2f} %); all three parts give {aurocs[whole]:.2f} %."
    bars = tabulate.metric_bars(
        "FPR@95", f"{data.groups[group]} FPR@95 by state and layer", list(STATE_FORMS.values()),
        [(name, [found[form, name][group]["FPR@95"] for form in STATE_FORMS]) for name in where],
    )  # fmt: skip
    return Finding(
        "states", "What the neuron state is made of", sentence, tables, [*figures, bars],
        tabulate.records_of(found, "state", "layers"),
        {"settings": {f: {n: c.to_dict() for n, c in s.items()} for f, s in settings.items()}},
        notes,
    )  # fmt: skip


def _described(used: Optional[LayerConfig]) -> str:
    return "" if used is None else f"{used.steepness:g}, {used.n_bins}, {used.full_count}"


def chosen_settings(
    fit: Readings, id_val: Readings, ood_val: Readings, layer: str, state: str, options: Options
) -> LayerConfig:
    """Search the settings of a layer for one form of the state, by AUROC on validation data.

    Settings that suit one form of the state do not suit another, so each has its own search.
    """
    found = search(
        fit, id_val, ood_val, layers={layer: LayerConfig(state=state)}, sweep={layer: _SWEEP},
        strategy="grid", guard=None, seed=options.seed, progress=options.progress,
    )  # fmt: skip
    return found.layers[layer]


def _densities(
    data: AnalysisData, options: Options, settings: Settings, scores: TestScores
) -> list[Densities]:
    """Distributions of ID and OOD test samples, a row per form: states of a neuron, coverage."""
    layer, ood_set = data.layers[0], data.ood_set(options.ood_set)
    width = data.fitting.fit[layer].activation.shape[1]
    neuron = options.neuron
    if neuron is None:
        neuron = separating_neuron(data, layer, settings["output*gradient"][layer])
    if not 0 <= neuron < width:
        raise NACError(
            f"`neuron` must be in 0..{width - 1}, since layer '{layer}' has {width} neurons; got "
            f"{neuron}."
        )
    steepness = tuple(options.steepness or _SHOWN_STEEPNESS)
    neurons, coverage = [], []
    for form, title in STATE_FORMS.items():
        points = [replace(settings[form][layer], steepness=value) for value in steepness]
        scores.prepare({layer: points})
        panels = []
        for point in points:
            inside, outside = (
                _states(data.scored[name], layer, point, neuron).double().numpy()
                for name in ("test", ood_set)
            )
            panels.append(Density.of(inside, outside, note=_fpr(scores, {layer: point}, ood_set)))
        neurons.append((title, panels))
        panels = []
        for chosen in (*({name: settings[form][name]} for name in data.layers), settings[form]):
            found, note = scores.scores(chosen), _fpr(scores, chosen, ood_set)
            panels.append(Density.of(found["test"], found[ood_set], note=note))
        coverage.append((title, panels))
    legend = (f"ID test ({data.id_name})", ood_set)
    return [
        Densities(
            "neuron",
            f"States of neuron {neuron} of {layer}, by steepness alpha; FPR@95 of all of its "
            "neurons", "state (sigmoid of alpha times the form)",
            [f"alpha {value:g}" for value in steepness], neurons, *legend,
        ),
        Densities(
            "coverage", "Coverage of test samples, by layer",
            "mean coverage of a sample's neurons (its score)", [*data.layers, _ALL], coverage,
            *legend,
        ),
    ]  # fmt: skip


def _fpr(scores: TestScores, layers: Mapping[str, LayerConfig], name: str) -> str:
    return f"FPR@95 {scores.metrics(layers)[name]['FPR@95']:.1f} %"


def _states(readings: Readings, layer: str, config: LayerConfig, neurons: Any) -> Tensor:
    """The states of one neuron of a layer `[samples]`, or of a slice `[samples, neurons]`."""
    return torch.cat([states_of(part[layer], config)[:, neurons] for part in readings.batches()])


def separating_neuron(data: AnalysisData, layer: str, config: LayerConfig) -> int:
    """The neuron whose state separates ID and OOD validation data best."""
    inside, outside = (
        _states(readings, layer, config, slice(None))
        for readings in (data.fitting.id_val, data.fitting.ood_val)
    )
    values = joined_auroc(torch.cat([inside, outside]).t().double().contiguous(), len(inside))
    return int((values - 0.5).abs().argmax())


def part_readings(readings: Readings, layer: str, weight: Tensor, part: str) -> Readings:
    """Readings whose only layer holds a combination of the parts.

    Args:
        readings: with logits and the activations of `layer`.
        layer: the head's input.
        weight: of the head, `[classes, D]`.
        part: a key of `PARTS`.
    """
    logits, prediction = logits_in(readings), readings.prediction
    deviation = logits.float().softmax(dim=1) - 1 / logits.shape[1]
    z = readings[layer].activation.float()
    value = PARTS[part](z, weight.float(), deviation, prediction)
    return Readings({_PART_LAYER: Reading(value)}, prediction, readings.label)


def _part_metrics(data: AnalysisData, options: Options) -> dict[str, tuple[LayerConfig, Metrics]]:
    """The chosen settings and the metrics of all combinations of the parts.

    Raises:
        NACError: if the network has no linear head, or its input was not read.
    """
    weight, layer = torch.from_numpy(data.run.head.get_fc()[0]), data.head_input
    fitting = (data.fitting.fit, data.fitting.id_val, data.fitting.ood_val)
    found: dict[str, tuple[LayerConfig, Metrics]] = {}
    for part in PARTS:
        fit, id_val, ood_val = (part_readings(read, layer, weight, part) for read in fitting)
        best = chosen_settings(fit, id_val, ood_val, _PART_LAYER, "output", options)
        scored = {n: part_readings(read, layer, weight, part) for n, read in data.scored.items()}
        found[part] = best, TestScores(data, fit, scored).metrics({_PART_LAYER: best})
    return found
