"""What `nac-openood search` prints."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from nac_openood.report.words import SHOWN
from nac_openood.search import SURROGATE_LABEL, SearchResult
from nac_openood.search.advice import Advice

_SHOWN = 5


def show_result(result: SearchResult, about: Mapping[str, Any], advice: Advice) -> None:
    """The best candidates, the winner's settings layer by layer, and how it compares."""
    against = about.get("ood_val", {}).get("name", "OOD validation")
    print(f"\n{result.evaluated:,} joint points in {result.seconds:.1f} s, against {against}")
    if "accuracy" in about:
        print(f"The network is right on {about['accuracy']:.1%} of ID validation.")
    if result.surrogate:
        print(f"NOTE: {SURROGATE_LABEL}.")
    found, kept = SHOWN["FPR@95"], SHOWN["FPR@95_IN"]
    print(f"\n{'':12}{found.title:>11}{kept.title:>11}")
    print(f"{'':4}{'AUROC':>8}{found.note:>11}{kept.note:>11}{'guard':>8}  layers (weight)")
    for rank, candidate in enumerate(result.ranking[:_SHOWN], start=1):
        names = ", ".join(f"{name} ({c.weight:g})" for name, c in candidate.layers.items())
        print(
            f"{rank:>3} {candidate.auroc:8.2%}{candidate.fpr95:11.2%}{candidate.fpr95_in:11.2%}"
            f"{_share(candidate.guard):>8}  {names}"
        )
    print(f"\n{found}: {found.meaning}")
    print(f"{kept}: {kept.meaning}")
    print(f"guard: {_guard_note(result.guard, result.best.guard)}\n")
    _show_layers(result)
    print(f"\n{advice}")


def _show_layers(result: SearchResult) -> None:
    names = list(dict.fromkeys(point.layer for point in result.landscape))
    width = max(len("chosen"), *map(len, names)) + 2
    print(f"{'chosen':{width}}{'bins':>6}{'O*':>7}{'alpha':>9}{'weight':>8}  {'state'}")
    for name in names:
        if name not in result.layers:
            print(f"{name:{width}}{'left out':>13}")
            continue
        c = result.layers[name]
        row = f"{c.n_bins:>6}{c.full_count:>7}{c.steepness:>9g}{c.weight:>8g}  {c.state}"
        print(f"{name:{width}}{row}")


def _guard_note(limit: Optional[float], value: Optional[float]) -> str:
    what = "AUROC of held-out training against ID validation, good near 50%"
    if value is None:
        return f"{what}; not measured, there are no held-out samples"
    if limit is None:
        return f"{what}; nothing was excluded"
    return f"{what}; further than {limit:.1%} from it is excluded"


def _share(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.1%}"
