"""Neuron Activation Coverage: know when a network's answer cannot be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nac_openood.__about__ import __version__
from nac_openood.config import LayerConfig, NACConfig, read_config
from nac_openood.core.coverage import Coverage
from nac_openood.core.probe import Reading
from nac_openood.core.readings import Readings
from nac_openood.detector import NACDetector, Scores
from nac_openood.errors import FileError, NACError, NotFittedError, ProbeError
from nac_openood.store import FitSummary
from nac_openood.thresholds import threshold_at

if TYPE_CHECKING:
    from nac_openood.plugin.postprocessor import NACPostprocessor


def register(compat: bool = False) -> bool:
    """Make OpenOOD know the postprocessor 'nac'; see `nac_openood.plugin.register`."""
    from nac_openood.plugin.register import register as enter

    return enter(compat=compat)


def unregister() -> None:
    """Undo `register`."""
    from nac_openood.plugin.register import unregister as leave

    leave()


def __getattr__(name: str) -> Any:
    """`NACPostprocessor`, imported when it is asked for: it needs OpenOOD."""
    if name == "NACPostprocessor":
        try:
            from nac_openood.plugin.postprocessor import NACPostprocessor
        except ImportError as error:
            raise ImportError(
                f"NACPostprocessor needs OpenOOD, but: {error}. `nac-openood doctor` tells what is "
                "missing and the command that mends it."
            ) from error
        return NACPostprocessor
    raise AttributeError(f"module 'nac_openood' has no attribute '{name}'")


__all__ = [
    "Coverage",
    "FileError",
    "FitSummary",
    "LayerConfig",
    "NACConfig",
    "NACDetector",
    "NACError",
    "NACPostprocessor",
    "NotFittedError",
    "ProbeError",
    "Reading",
    "Readings",
    "Scores",
    "__version__",
    "read_config",
    "register",
    "threshold_at",
    "unregister",
]
