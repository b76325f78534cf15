"""What stands in the notes beside the scores of a comparison, as it is checked when it is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from nac_openood.errors import NACError
from nac_openood.structure import from_values


@dataclass(frozen=True)
class AdviceNote:
    """`nac_openood.search.advice.Advice` as JSON values."""

    against: str
    samples: tuple[int, int]
    auroc: Mapping[str, float]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SetupNote:
    """A method's `setup.json`.

    Args:
        made_with: all that the setup depends on; `implementation` says whose code ran.
        hyperparameters: those in use.
        search: what the search reports.
        advice: how our method compares with simpler ones, as in `AdviceNote`.
        seconds: how long it took.
        peak_mb: peak memory.
    """

    made_with: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    search: Optional[Mapping[str, Any]]
    advice: Optional[Mapping[str, Any]]
    seconds: float
    peak_mb: Optional[float]

    def __post_init__(self) -> None:
        if self.advice is not None:
            from_values(AdviceNote, self.advice, "advice")
        if not isinstance(self.made_with.get("implementation"), str):
            raise NACError("'made_with' does not say whose code ran")
        if not math.isfinite(self.seconds):
            raise NACError(f"'seconds' must be finite, got {self.seconds!r}")


@dataclass(frozen=True)
class ErrorNote:
    """A method's `error.json`: "failed" or "absent", and why."""

    status: str
    error: str

    def __post_init__(self) -> None:
        if self.status not in ("failed", "absent"):
            raise NACError(f"'status' must be failed or absent, got {self.status!r}")


@dataclass(frozen=True)
class RunNote:
    """A network's `run.json`: its accuracy in percent."""

    accuracy: float
