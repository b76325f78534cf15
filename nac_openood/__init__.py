"""Neuron Activation Coverage: know when a network's answer cannot be trusted."""

from nac_openood.__about__ import __version__
from nac_openood.config import LayerConfig, NACConfig, read_config
from nac_openood.core.coverage import Coverage
from nac_openood.core.probe import Reading
from nac_openood.core.readings import Readings
from nac_openood.detector import NACDetector, Scores
from nac_openood.errors import FileError, NACError, NotFittedError, ProbeError
from nac_openood.store import FitSummary
from nac_openood.thresholds import threshold_at

__all__ = [
    "Coverage",
    "FileError",
    "FitSummary",
    "LayerConfig",
    "NACConfig",
    "NACDetector",
    "NACError",
    "NotFittedError",
    "ProbeError",
    "Reading",
    "Readings",
    "Scores",
    "__version__",
    "read_config",
    "threshold_at",
]
