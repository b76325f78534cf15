"""The parts of the neuron state at the head's input: z, the gradient of the logits, and p - u.

With logits `g(z) = W z + b`, the gradient of the KL divergence is `(p - u) W`, so the paper's state
is `z * ((p - u) W)`. The paper does not say how it leaves parts out. Here:

* without `p - u`, the gradient is that of the predicted class's logit: the row of W for it (the
  sum over all classes would be the same for every sample);
* without the gradient, `z` is multiplied by the predicted class's `p - u`, a number per sample;
* `p - u` alone is a vector with an entry per class, which take the place of neurons.
"""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple

import torch
from torch import Tensor

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import Metrics, TestScores
from nac_openood.analysis.state_forms import chosen_settings
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.reading import Reading, logits_in
from nac_openood.detector.readings import Readings

_LAYER = "state"


class _Given(NamedTuple):
    """What the parts are made of.

    Args:
        z: `[samples, D]`.
        weight: of the head, `[classes, D]`.
        deviation: p - u, `[samples, classes]`.
        prediction: int64 `[samples]`.
    """

    z: Tensor
    weight: Tensor
    deviation: Tensor
    prediction: Tensor

    @property
    def gradient(self) -> Tensor:
        """Of the predicted class's logit, `[samples, D]`."""
        return self.weight[self.prediction]

    @property
    def confidence(self) -> Tensor:
        """The deviation p - u of the predicted class, `[samples, 1]`."""
        return self.deviation.gather(1, self.prediction[:, None])


#: What the sigmoid is taken of, by the paper's name of the combination.
PARTS: Mapping[str, Callable[[_Given], Tensor]] = {
    "z": lambda given: given.z,
    "dg": lambda given: given.gradient,
    "p-u": lambda given: given.deviation,
    "z*dg": lambda given: given.z * given.gradient,
    "dg*(p-u)": lambda given: given.deviation @ given.weight,
    "z*(p-u)": lambda given: given.z * given.confidence,
    "z*dg*(p-u)": lambda given: given.z * (given.deviation @ given.weight),
}


def part_metrics(data: AnalysisData, options: Options) -> dict[str, tuple[LayerConfig, Metrics]]:
    """The chosen settings and the metrics of all seven combinations of the parts.

    Raises:
        NACError: if the network has no linear head, or its input was not read.
    """
    weight = torch.from_numpy(data.bench.head.get_fc()[0])
    layer = data.head_input
    found: dict[str, tuple[LayerConfig, Metrics]] = {}
    for name in PARTS:
        sets = {n: _readings(r, layer, weight, name) for n, r in data.scored.items()}
        fit, id_val, ood_val = (
            _readings(readings, layer, weight, name)
            for readings in (data.fitting.fit, data.fitting.id_val, data.fitting.ood_val)
        )
        best = chosen_settings(fit, id_val, ood_val, _LAYER, "output", options)
        found[name] = best, TestScores(data, fit, sets).metrics({_LAYER: best})
    return found


def _readings(readings: Readings, layer: str, weight: Tensor, name: str) -> Readings:
    """Readings whose only activation is a combination of the parts."""
    logits = logits_in(readings)
    deviation = logits.float().softmax(dim=1) - 1 / logits.shape[1]
    given = _Given(
        readings[layer].activation.float(), weight.float(), deviation, readings.prediction
    )
    return Readings({_LAYER: Reading(PARTS[name](given))}, readings.prediction, readings.label)
