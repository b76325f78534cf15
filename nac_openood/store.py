"""A fitted detector as a file: counts as tensors, everything else as JSON beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Mapping, Optional

import torch
from torch import nn

from nac_openood.__about__ import __version__
from nac_openood.config import LayerConfig
from nac_openood.core import files
from nac_openood.core.bins import count_bins
from nac_openood.core.coverage import Coverage
from nac_openood.core.fingerprint import difference, fingerprint
from nac_openood.core.histogram import Histogram
from nac_openood.errors import FileError

_KIND, _VERSION = "nac_openood detector", 1


@dataclass(frozen=True)
class FitSummary:
    """What a detector was fitted on: samples, and how many of each class (empty if unlabeled)."""

    n_samples: int
    class_counts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitted:
    """What a file holds."""

    coverage: Coverage
    summary: FitSummary
    threshold: Optional[float]


def save(path: files.PathLike, fitted: Fitted, net: nn.Module) -> None:
    """Write `fitted` with the fingerprint of `net`."""
    histograms = fitted.coverage.histograms
    about = {
        "nac_openood": __version__,
        "torch": str(torch.__version__),
        "layers": {name: config.to_dict() for name, config in fitted.coverage.layers.items()},
        "n_samples": {name: histogram.n_samples for name, histogram in histograms.items()},
        "network": fingerprint(net),
        "summary": asdict(fitted.summary),
        "threshold": fitted.threshold,
    }
    tensors = {f"counts/{name}": histogram.counts for name, histogram in histograms.items()}
    files.write(path, _KIND, _VERSION, tensors, about)


def load(path: files.PathLike, net: nn.Module) -> Fitted:
    """Read what `save` wrote, if `net` is the network it was fitted on."""
    tensors, about = files.read(path, _KIND, _VERSION)
    try:
        differs = difference(about["network"], net)
        if differs:
            raise FileError(
                f"{path} was fitted on another network: {differs}. Load the network it was fitted "
                "on, or fit again."
            )
        coverage = Coverage({n: LayerConfig.from_dict(c) for n, c in about["layers"].items()})
        for name, config in coverage.layers.items():
            counts = tensors[f"counts/{name}"].clone()
            n_samples = about["n_samples"][name]
            _check_counts(path, name, counts, config, n_samples)
            coverage.histograms[name] = Histogram(counts, n_bins=config.n_bins, n_samples=n_samples)
        counted = {int(k): v for k, v in about["summary"]["class_counts"].items()}
        summary = FitSummary(about["summary"]["n_samples"], counted)
        return Fitted(coverage, summary, about["threshold"])
    except KeyError as error:
        raise FileError(f"{path} is damaged: {error} is missing.") from error


def refuse_other_layers(
    path: files.PathLike, coverage: Coverage, wanted: Mapping[str, LayerConfig]
) -> None:
    """Raise if a file was fitted with other layers or settings than `wanted`."""
    if coverage.layers == dict(wanted):
        return
    names = set(coverage.layers) ^ set(wanted)
    if names:
        what = f"layers {list(coverage.layers)}, not {list(wanted)}"
    else:
        name = next(n for n in wanted if wanted[n] != coverage.layers[n])
        what = f"layer '{name}' as {coverage.layers[name]}, not {wanted[name]}"
    raise FileError(f"{path} was fitted with {what}. Fit again, or load it without layers=.")


def _check_counts(
    path: files.PathLike, name: str, counts: torch.Tensor, config: LayerConfig, n_samples: int
) -> None:
    """Every neuron must have been counted once for each sample, or the file is not whole."""
    whole = (
        counts.ndim == 2
        and counts.dtype == torch.int32
        and counts.shape[1] == count_bins(config.n_bins)
        and bool((counts.sum(dim=1) == n_samples).all())
    )
    if not whole:
        raise FileError(f"{path} is damaged: the counts of layer '{name}' do not add up.")
