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
from itertools import product
from typing import Any, Callable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from nac_openood.analysis.data import AnalysisData, BySet, Options
from nac_openood.analysis.finding import Finding, MetricStudy
from nac_openood.analysis.scores import NACScores
from nac_openood.core.coverage import states_of
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.metrics import joined_auroc
from nac_openood.core.reading import Reading, logits_in
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.run import PAPER_SPACE, search
from nac_openood.tables import Densities, Density, metric_bars, text_columns

#: The forms of the state as the paper writes them, by their names in this package.
STATE_FORMS = {"output": "output z", "gradient": "gradient dKL/dz",
               "output*gradient": "z times dKL/dz"}  # fmt: skip
#: The paper's space, with all of its values of alpha: forms differ in scale.
_SWEEP = {name: PAPER_SPACE[name] for name in ("n_bins", "full_count", "steepness")}
_SWEEP["steepness"] = (*_SWEEP["steepness"], *PAPER_SPACE["steepness_deepest"])
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


def states(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of three forms of the state, and of seven combinations of its parts."""
    fitting, study = data.fitting, MetricStudy(data, options, "state", "layers")
    sets = (fitting.fit, fitting.id_val, fitting.ood_val)
    settings = {
        form: {name: chosen_settings(sets, name, form, options) for name in data.layers}
        for form in STATE_FORMS
    }
    scores, rows = NACScores(data), []
    study.figures += _densities(data, options, settings, scores)
    for name, (form, title) in product((*data.layers, _ALL), STATE_FORMS.items()):
        used = settings[form] if name == _ALL else {name: settings[form][name]}
        study.found[form, name] = scores.metrics(used)
        rows.append(([name, title, _described(settings[form].get(name))], study.found[form, name]))
    ours = range(len(STATE_FORMS) - 1, len(rows), len(STATE_FORMS))  # output*gradient
    heads = text_columns("Layer", "State", "alpha, M, O*")
    study.table("Output, gradient and their product", heads, rows, ours=list(ours))
    fprs = study.values("FPR@95")
    title, forms = f"{study.title} FPR@95 by state and layer", list(STATE_FORMS.values())
    bars = [(name, [fprs[form, name] for form in STATE_FORMS]) for name in (*data.layers, _ALL)]
    study.figures.append(metric_bars("FPR@95", title, forms, bars))
    listed = ", ".join(f"{fprs[form, _ALL]:.2f} % with {t}" for form, t in STATE_FORMS.items())
    best = STATE_FORMS[min(STATE_FORMS, key=lambda form: fprs[form, _ALL])]
    sentence = f"With {_ALL}, {study.word} FPR@95 is {listed}: {best} is best."
    study.notes.append("Each form has settings of its own, searched on validation data.")
    try:
        sentence += _parts(study, options)
    except NACError as error:
        study.notes.append(f"The parts of the state cannot be separated here: {error}")
    chosen = {f: {n: config.to_dict() for n, config in s.items()} for f, s in settings.items()}
    title = "What the neuron state is made of"
    return study.finding("states", title, sentence, {"settings": chosen})


def _parts(study: MetricStudy, options: Options) -> str:
    """Measure all combinations of the parts, and say which is best.

    Raises:
        NACError: if the network has no linear head, or its input was not read.
    """
    data, fitting = study.data, study.data.fitting
    weight, layer = torch.from_numpy(data.run.head.get_fc()[0]), data.head_input
    rows = []
    for part in PARTS:
        sets = [
            part_readings(readings, layer, weight, part)
            for readings in (fitting.fit, fitting.id_val, fitting.ood_val, *data.scored.values())
        ]
        best = chosen_settings(sets[:3], _PART_LAYER, "output", options)
        scores = NACScores(data, sets[0], dict(zip(data.scored, sets[3:])))
        study.found[part, layer] = scores.metrics({_PART_LAYER: best})
        rows.append(([part, _described(best)], study.found[part, layer], part))
    title = f"Parts of the state at {layer}: z, dg (gradient of the logits), p-u"
    heads, paper = text_columns("Parts", "alpha, M, O*"), study.paper("Table 16", "state")
    study.table(title, heads, rows, paper=paper, ours=[len(rows) - 1])
    values = study.values()
    aurocs = {part: values[part, layer] for part in PARTS}
    top, whole = max(aurocs, key=aurocs.__getitem__), list(PARTS)[-1]
    text = " At the head's input, the combination with the highest AUROC is "
    if top == whole:
        return f"{text}that of all three parts, {top} ({aurocs[top]:.2f} %)."
    return f"{text}{top} ({aurocs[top]:.2f} %); all three parts give {aurocs[whole]:.2f} %."


def _described(used: Optional[LayerConfig]) -> str:
    return "" if used is None else f"{used.steepness:g}, {used.n_bins}, {used.full_count}"


def chosen_settings(
    sets: Sequence[Readings], layer: str, state: str, options: Options
) -> LayerConfig:
    """Search the settings of a layer for one form of the state, by AUROC on validation data.

    Settings that suit one form of the state do not suit another, so each has its own search.

    Args:
        sets: readings of the fitting subset, ID and OOD validation data.
        layer: its name.
        state: the form of the state.
        options: seed and progress.
    """
    found = search(
        *sets, layers={layer: LayerConfig(state=state)}, sweep={layer: _SWEEP},
        strategy="grid", guard=None, seed=options.seed, progress=options.progress,
    )  # fmt: skip
    return found.layers[layer]


def _densities(
    data: AnalysisData, options: Options, settings: Mapping[str, Any], scores: NACScores
) -> list[Densities]:
    """Distributions of ID and OOD test samples, a row per form: states of a neuron, coverage."""
    layer, ood_set = data.layers[0], data.ood_set(options.ood_set)
    width, neuron = data.fitting.fit[layer].activation.shape[1], options.neuron
    if neuron is None:
        neuron = separating_neuron(data, layer, settings["output*gradient"][layer])
    if not 0 <= neuron < width:
        raise NACError(f"`neuron` must be in 0..{width - 1}, the neurons of layer '{layer}'.")
    steepness = tuple(options.steepness or _SHOWN_STEEPNESS)

    def density(layers: Mapping[str, LayerConfig], values: BySet) -> Density:
        fpr = scores.metrics(layers)[ood_set]["FPR@95"]
        return Density.of(values["test"], values[ood_set], note=f"FPR@95 {fpr:.1f} %")

    neurons, coverage = [], []
    for form, title in STATE_FORMS.items():
        points = [replace(settings[form][layer], steepness=value) for value in steepness]
        scores.prepare({layer: points})
        panels = []
        for point in points:
            shown = {n: _states(data.scored[n], layer, point) for n in ("test", ood_set)}
            of_neuron = {n: state[:, neuron].double().numpy() for n, state in shown.items()}
            panels.append(density({layer: point}, of_neuron))
        neurons.append((title, panels))
        chosen = [*({name: settings[form][name]} for name in data.layers), settings[form]]
        coverage.append((title, [density(used, scores.scores(used)) for used in chosen]))
    legend = (f"ID test ({data.id_name})", ood_set)
    title = f"States of neuron {neuron} of {layer}, by alpha; FPR@95 of all neurons of the layer"
    label, alphas = "state (sigmoid of alpha times the form)", [f"alpha {a:g}" for a in steepness]
    titles = "Coverage of test samples, by layer", "mean coverage of a sample's neurons (its score)"
    return [
        Densities("neuron", title, label, alphas, neurons, *legend),
        Densities("coverage", *titles, [*data.layers, _ALL], coverage, *legend),
    ]


def _states(readings: Readings, layer: str, config: LayerConfig) -> Tensor:
    """The states of a layer `[samples, neurons]`."""
    return torch.cat([states_of(part[layer], config) for part in readings.batches()])


def separating_neuron(data: AnalysisData, layer: str, config: LayerConfig) -> int:
    """The neuron whose state separates ID and OOD validation data best."""
    states = [_states(r, layer, config) for r in (data.fitting.id_val, data.fitting.ood_val)]
    values = joined_auroc(torch.cat(states).t().double().contiguous(), len(states[0]))
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
