"""What is to be said about a detector: how it compares, what is wrong, what to use instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from nac_openood.core.coverage import Coverage
from nac_openood.core.metrics import Interval
from nac_openood.core.plus import NACPlus

#: A detector loses if the 99 % interval of the difference in AUROC lies above this.
MARGIN = 0.01
#: How far behind the best alternative NAC+ may be to be named in its place.
_CLOSE = 0.01

NAC_TITLE, NAC_PLUS_TITLE = Coverage.title, NACPlus.title
#: What the samples are that a detector has to tell from ID data.
REAL, SURROGATE = "OOD validation data", "surrogates, not real OOD data"


@dataclass(frozen=True)
class Compared:
    """A method on the compared samples, in fractions.

    Args:
        auroc: with its 99 % interval.
        ahead: how much higher its AUROC is than the detector's; None for the detector itself.
    """

    auroc: Interval
    ahead: Optional[Interval] = None


@dataclass(frozen=True)
class Advice:
    """How a detector compares with simpler methods, and what to change.

    Args:
        method: the title of the detector, e.g. "NAC".
        against: what it has to tell from ID data, e.g. "surrogates, not real OOD data".
        n_id: number of ID samples that were compared.
        n_ood: number of OOD samples or surrogates.
        table: the detector and the alternatives by title, best first; empty if nothing could be
            compared.
        warnings: what is wrong and what to do about it.
        notes: what could not be compared, and why.
        seconds: how long it took.
    """

    method: str
    against: str
    n_id: int = 0
    n_ood: int = 0
    table: Mapping[str, Compared] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(compare=False, default=0.0)

    def __str__(self) -> str:
        lines = []
        if self.table:
            lines = [
                f"{self.method} on {self.against}: {self.n_id} ID and {self.n_ood} OOD samples",
                f"{'':9}{'AUROC':>7}  {'99 % interval':16}difference (99 % interval)",
                *(_line(title, row) for title, row in self.table.items()),
            ]
            if not self.warnings:
                lines.append("No method is clearly more than 1 point ahead.")
        lines += [f"Warning: {text}." for text in self.warnings]
        return "\n".join([*lines, *(f"Note: {text}." for text in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; AUROCs are fractions."""
        return {
            "against": self.against,
            "samples": [self.n_id, self.n_ood],
            "auroc": {title: row.auroc.value for title, row in self.table.items()},
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def losing(
    title: str, table: Mapping[str, Compared], against: str, *, searched: bool
) -> Optional[str]:
    """A warning if something is ahead of the detector by more than chance explains.

    Args:
        title: the title of the detector.
        table: it and the alternatives, best first.
        against: what the OOD samples are.
        searched: whether the detector's settings were searched.
    """
    ahead = {t: row.ahead for t, row in table.items() if row.ahead and row.ahead.low > MARGIN}
    if not ahead:
        return None
    best, by = next(iter(ahead.items()))
    plus = ahead.get(NAC_PLUS_TITLE)
    use = NAC_PLUS_TITLE if plus is not None and by.value - plus.value <= _CLOSE else best
    instead = f"rule='{NACPlus.name}'" if use == NAC_PLUS_TITLE else use
    if use != best:
        instead += f" ({_percent(table[use].auroc.value)})"
    if title == NAC_TITLE and not searched:
        instead += ", or search the settings"
    return (
        f"on {against}, {title} has AUROC {_percent(table[title].auroc.value)}, {best} "
        f"{_percent(table[best].auroc.value)} (99 % interval of the difference: "
        f"{_percent(by.low)} to {_percent(by.high)} points): use {instead}"
    )


def _line(title: str, row: Compared) -> str:
    mine = row.ahead is None
    between = f"{_percent(row.auroc.low)} to {_percent(row.auroc.high)}"
    text = f"{'> ' if mine else '  '}{title:7}{_percent(row.auroc.value):>7}  {between:16}"
    if row.ahead is None:
        return text.rstrip()
    value, low, high = (f"{100 * number:+.1f}" for number in row.ahead)
    return f"{text}{value} ({low} to {high})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"
