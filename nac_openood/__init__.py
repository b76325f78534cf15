"""Neuron Activation Coverage: know when a network's answer cannot be trusted.

Everything here is imported when it is first used, so that `import nac_openood` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nac_openood.__about__ import __version__
from nac_openood.lazy import lazy_names

if TYPE_CHECKING:
    from nac_openood.adapters.lightning import DetectorCallback
    from nac_openood.adapters.pytorch_ood import PyTorchOODFeatures, PyTorchOODNetwork
    from nac_openood.adapters.scikit_learn import NACOutlierDetector
    from nac_openood.benchmark.api import compare
    from nac_openood.core.coverage import Coverage
    from nac_openood.core.layer_config import IntegralConfig, LayerConfig
    from nac_openood.core.ranking import threshold_at
    from nac_openood.core.reading import Reading
    from nac_openood.detector.config import NACConfig, read_config
    from nac_openood.detector.detector import NACDetector
    from nac_openood.detector.outcomes import Explanation, Scores
    from nac_openood.detector.readings import Readings
    from nac_openood.detector.store import FitSummary
    from nac_openood.errors import FileError, NACError, NotFittedError, ProbeError
    from nac_openood.evaluation.integral import coverage_integral
    from nac_openood.evaluation.rank import rank_checkpoints
    from nac_openood.evaluation.ranking import Ranking
    from nac_openood.plugin.postprocessor import NACPostprocessor
    from nac_openood.plugin.register import register, unregister
    from nac_openood.search.advice import Advice
    from nac_openood.search.advise import advise
    from nac_openood.training.entropy import NACEntropy

#: Where each public name lives.
_HOMES = {
    "Advice": "search.advice",
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
    "threshold_at": "core.ranking",
    "unregister": "plugin.register",
}


_get, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    try:
        return _get(name)
    except ImportError as error:
        if name != "NACPostprocessor":
            raise
        from nac_openood.plugin.source import import_failure

        raise ImportError(f"NACPostprocessor needs OpenOOD. {import_failure(error)}") from error


__all__ = [
    "Advice",
    "Coverage",
    "DetectorCallback",
    "Explanation",
    "FileError",
    "FitSummary",
    "IntegralConfig",
    "LayerConfig",
    "NACConfig",
    "NACDetector",
    "NACEntropy",
    "NACError",
    "NACOutlierDetector",
    "NACPostprocessor",
    "NotFittedError",
    "ProbeError",
    "PyTorchOODFeatures",
    "PyTorchOODNetwork",
    "Ranking",
    "Reading",
    "Readings",
    "Scores",
    "__version__",
    "advise",
    "compare",
    "coverage_integral",
    "rank_checkpoints",
    "read_config",
    "register",
    "threshold_at",
    "unregister",
]
