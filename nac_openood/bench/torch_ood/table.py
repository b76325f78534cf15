"""The methods by OpenOOD's names: which detector, and OpenOOD's hyperparameters.

Defaults and sweeps are those of OpenOOD's `configs/postprocessors/*.yml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from nac_openood.bench.sweep import grid
from nac_openood.bench.torch_ood import on_features, on_logits, on_networks
from nac_openood.bench.torch_ood.adapter import Adapter
from nac_openood.bench.torch_ood.gram import Gram


@dataclass(frozen=True)
class Row:
    """A method.

    Args:
        adapter: makes and feeds the detector.
        defaults: hyperparameters without a search.
        sweep: values by hyperparameter, in OpenOOD's order; none where OpenOOD does not search.
    """

    adapter: type[Adapter]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def points(self) -> list[dict[str, Any]]:
        """The points of the sweep in OpenOOD's order: the first hyperparameter changes fastest."""
        return grid(self.sweep)


METHODS: Mapping[str, Row] = {
    "openmax": Row(on_logits.OpenMax),
    "msp": Row(on_logits.MSP),
    "temp_scaling": Row(on_logits.TempScaling),
    "odin": Row(
        on_networks.ODIN,
        {"temperature": 1000, "noise": 0.0014},
        {"temperature": (1, 10, 100, 1000), "noise": (0.0014, 0.0028)},
    ),
    "mds": Row(on_features.MDS),
    "mds_ensemble": Row(on_networks.MDSEnsemble, {"noise": 0.0014}),
    "rmds": Row(on_features.RMDS),
    "gram": Row(Gram, {"powers": [1, 2, 3, 4, 5]}),
    "ebo": Row(on_logits.EBO, {"temperature": 1}),
    "gradnorm": Row(on_features.GradNorm),
    "react": Row(on_features.ReAct, {"percentile": 90}, {"percentile": (85, 90, 95, 99)}),
    "mls": Row(on_logits.MLS),
    "klm": Row(on_logits.KLM),
    "vim": Row(on_features.ViM, {"dim": 256}, {"dim": (256, 1000)}),
    "knn": Row(on_features.KNN, {"K": 50}, {"K": (50, 100, 200, 500, 1000)}),
    "dice": Row(on_features.DICE, {"p": 90}),
    "rankfeat": Row(on_networks.RankFeat, {"temperature": 1}),
    "ash": Row(
        on_features.ASH, {"percentile": 90}, {"percentile": (65, 70, 75, 80, 85, 90, 95)}
    ),
    "she": Row(on_features.SHE),
    "gen": Row(
        on_logits.GEN,
        {"gamma": 0.1, "M": 100},
        {"gamma": (0.01, 0.1, 0.5, 1, 2, 5, 10), "M": (10, 50, 100, 200, 500, 1000)},
    ),
}  # fmt: skip
