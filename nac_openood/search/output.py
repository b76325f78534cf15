"""A search's result as files: settings to use, and everything that was found as JSON."""

from __future__ import annotations

import platform
from importlib.metadata import version  # imports nothing of what it tells of
from pathlib import Path
from typing import Any, Mapping, Optional

import numpy as np
import torch
import yaml

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.core.layer_config import LayerConfig
from nac_openood.search.advice import Advice
from nac_openood.search.result import SearchResult
from nac_openood.search.surrogate import SURROGATE_LABEL


def write_config(path: Path, result: SearchResult, about: Mapping[str, Any]) -> None:
    """Write the winner as YAML that `read_config` and OpenOOD read, with comments on the search."""
    body = yaml.safe_dump(result.to_config().to_dict(), sort_keys=False)
    files.write_text(path, "".join(f"# {line}\n" for line in _comments(result, about)) + body)


def write_report(
    path: Path,
    result: SearchResult,
    about: Mapping[str, Any],
    settings: Mapping[str, Any],
    advice: Optional[Advice] = None,
) -> None:
    """Ranking, landscape, guard values, settings, versions and advice as JSON."""
    document = {
        "format": 1,
        "warning": SURROGATE_LABEL if result.surrogate else None,
        "settings": dict(settings),
        "data": dict(about),
        "versions": versions(),
        "evaluated": result.evaluated,
        "seconds": round(result.seconds, 3),
        "guard": result.guard,
        "advice": None if advice is None else advice.to_dict(),
        "ranking": [
            {"layers": {n: c.to_dict() for n, c in entry.layers.items()}, **_numbers(entry)}
            for entry in result.ranking
        ],
        "landscape": [
            {"layer": p.layer, **_without_weight(p.config), **_numbers(p)} for p in result.landscape
        ],
    }
    files.write_json(path, document)


def versions() -> dict[str, str]:
    """The versions of the packages that the numbers depend on."""
    return {
        "nac_openood": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "numpy": np.__version__,
        "scikit-learn": version("scikit-learn"),
        "pillow": version("pillow"),
    }


def _comments(result: SearchResult, about: Mapping[str, Any]) -> list[str]:
    best = result.best
    against = about.get("ood_val", {}).get("name", "the given OOD validation set")
    lines = [
        f"Chosen by nac_openood {__version__} search: {result.strategy}, {result.objective}, "
        f"{result.evaluated} joint points.",
        f"Validation against {against}: AUROC {best.auroc:.2%}, FPR@95 {best.fpr95:.2%} "
        f"(OOD found) and {best.fpr95_in:.2%} (ID kept), guard {_share(best.guard)} (near 50% is "
        "good).",
    ]
    if result.surrogate:
        lines.append(f"Note: {SURROGATE_LABEL}.")
    return lines


def _share(value: Optional[float]) -> str:
    return "not measured" if value is None else f"{value:.2%}"


def _numbers(entry: Any) -> dict[str, Optional[float]]:
    names = ("objective", "auroc", "fpr95", "fpr95_in", "guard")
    return {name: getattr(entry, name) for name in names if hasattr(entry, name)}


def _without_weight(config: LayerConfig) -> dict[str, Any]:
    """The settings of a layer by itself, to which its weight makes no difference."""
    return {name: value for name, value in config.to_dict().items() if name != "weight"}
