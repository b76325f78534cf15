"""Forms of the neuron state, each with settings of its own, chosen on validation data."""

from __future__ import annotations

from typing import Mapping

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.options import Options
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.readings import Readings
from nac_openood.search.run import search
from nac_openood.search.space import PAPER_SPACE

#: The forms as the paper writes them, by their names in this package.
STATE_FORMS = {
    "output": "output z",
    "gradient": "gradient dKL/dz",
    "output*gradient": "z times dKL/dz",
}
#: The paper's space, with all of its values of alpha: readings of different forms have different
#: scales.
_SWEEP = {
    "n_bins": PAPER_SPACE["n_bins"],
    "full_count": PAPER_SPACE["full_count"],
    "steepness": (*PAPER_SPACE["steepness"], *PAPER_SPACE["steepness_deepest"]),
}


def chosen_settings(
    fit: Readings, id_val: Readings, ood_val: Readings, layer: str, state: str, options: Options
) -> LayerConfig:
    """The settings with the best AUROC on validation data out of the paper's space.

    Every form of the state is given the same chance: the settings that suit one do not suit
    another, whose values have another scale.

    Args:
        fit: readings to fit on.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD validation samples.
        layer: the only layer to look at.
        state: one of `nac_openood.core.states.STATES`.
        options: for the seed and the progress bar.
    """
    found = search(
        fit, id_val, ood_val, layers={layer: LayerConfig(state=state)}, sweep={layer: _SWEEP},
        strategy="grid", guard=None, seed=options.seed, progress=options.progress,
    )  # fmt: skip
    return found.layers[layer]


def settings_by_form(
    data: AnalysisData, options: Options
) -> Mapping[str, Mapping[str, LayerConfig]]:
    """The chosen settings by form and layer."""
    given = data.fitting
    return {
        form: {
            layer: chosen_settings(given.fit, given.id_val, given.ood_val, layer, form, options)
            for layer in data.layers
        }
        for form in STATE_FORMS
    }
