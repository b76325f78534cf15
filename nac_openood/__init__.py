"""Neuron Activation Coverage: know when a network's answer cannot be trusted.

Everything here is imported when it is first used, so that `import nac_openood` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nac_openood.__about__ import __version__
from nac_openood.lazy import lazy_names

if TYPE_CHECKING:
    from nac_openood.adapters.lightning import DetectorCallback as DetectorCallback
    from nac_openood.adapters.pytorch_ood import PyTorchOODFeatures as PyTorchOODFeatures
    from nac_openood.adapters.pytorch_ood import PyTorchOODNetwork as PyTorchOODNetwork
    from nac_openood.adapters.scikit_learn import NACOutlierDetector as NACOutlierDetector
    from nac_openood.benchmark.api import compare as compare
    from nac_openood.benchmark.methods.table import register_method as register_method
    from nac_openood.core.coverage import Coverage as Coverage
    from nac_openood.core.layer_config import IntegralConfig as IntegralConfig
    from nac_openood.core.layer_config import LayerConfig as LayerConfig
    from nac_openood.core.metrics import threshold_at as threshold_at
    from nac_openood.core.reading import Reading as Reading
    from nac_openood.core.rules import register_rule as register_rule
    from nac_openood.detector.config import NACConfig as NACConfig
    from nac_openood.detector.config import read_config as read_config
    from nac_openood.detector.detector import NACDetector as NACDetector
    from nac_openood.detector.outcomes import Explanation as Explanation
    from nac_openood.detector.outcomes import Scores as Scores
    from nac_openood.detector.readings import Readings as Readings
    from nac_openood.detector.store import FitSummary as FitSummary
    from nac_openood.errors import FileError as FileError
    from nac_openood.errors import NACError as NACError
    from nac_openood.errors import NotFittedError as NotFittedError
    from nac_openood.errors import ProbeError as ProbeError
    from nac_openood.evaluation.integral import coverage_integral as coverage_integral
    from nac_openood.evaluation.rank import rank_checkpoints as rank_checkpoints
    from nac_openood.evaluation.ranking import Ranking as Ranking
    from nac_openood.plugin.postprocessor import NACPostprocessor as NACPostprocessor
    from nac_openood.plugin.register import register as register
    from nac_openood.plugin.register import unregister as unregister
    from nac_openood.search.advise import Advice as Advice
    from nac_openood.search.advise import advise as advise
    from nac_openood.training.entropy import NACEntropy as NACEntropy

#: Where each public name lives.
_HOMES = {
    "Advice": "search.advise",
    "Coverage": "core.coverage",
    "DetectorCallback": "adapters.lightning",
    "Explanation": "detector.outcomes",
    "FileError": "errors",
    "FitSummary": "detector.store",
    "IntegralConfig": "core.layer_config",
    "LayerConfig": "core.layer_config",
    "NACConfig": "detector.config",
    "NACDetector": "detector.detector",
    "NACEntropy": "training.entropy",
    "NACError": "errors",
    "NACOutlierDetector": "adapters.scikit_learn",
    "NACPostprocessor": "plugin.postprocessor",
    "NotFittedError": "errors",
    "ProbeError": "errors",
    "PyTorchOODFeatures": "adapters.pytorch_ood",
    "PyTorchOODNetwork": "adapters.pytorch_ood",
    "Ranking": "evaluation.ranking",
    "Reading": "core.reading",
    "Readings": "detector.readings",
    "Scores": "detector.outcomes",
    "advise": "search.advise",
    "compare": "benchmark.api",
    "coverage_integral": "evaluation.integral",
    "rank_checkpoints": "evaluation.rank",
    "read_config": "detector.config",
    "register": "plugin.register",
    "register_method": "benchmark.methods.table",
    "register_rule": "core.rules",
    "threshold_at": "core.metrics",
    "unregister": "plugin.register",
}
__all__ = ["__version__", *_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
