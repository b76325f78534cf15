"""pytorch-ood itself: whether it is installed, its version, and its errors."""

from __future__ import annotations

import importlib
import warnings
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Iterator

from nac_openood.benchmark.methods.table import Absent
from nac_openood.errors import NACError


def detectors() -> Any:
    """The module `pytorch_ood.detector`.

    Raises:
        Absent: pytorch-ood is not installed; the message tells how to install it.
    """
    try:
        return importlib.import_module("pytorch_ood.detector")
    except ImportError as error:
        raise Absent(
            f"the baselines need pytorch-ood, which cannot be imported ({error}). Install it: "
            "pip install 'nac-openood[baselines]'."
        ) from error


def version() -> str:
    """The installed version, e.g. "0.4.0"."""
    try:
        return metadata.version("pytorch-ood")
    except metadata.PackageNotFoundError:
        return "of unknown version"


@contextmanager
def theirs(method: str, doing: str) -> Iterator[None]:
    """Wrap calls of pytorch-ood: errors name the method, and known warnings are ignored."""
    try:
        with warnings.catch_warnings():
            # SciPy, on the way to OpenMax's Weibull fit, tries parameters that overflow
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="scipy")
            yield
    except NACError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise NACError(
            f"{method}: pytorch-ood {version()} failed while {doing} ({what}). Leave {method} "
            "out of `methods`, or use OpenOOD's: `backend='openood'`."
        ) from error
