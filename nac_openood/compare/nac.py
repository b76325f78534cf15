"""NAC as one of the methods: the settings are searched as OpenOOD searches the others'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Mapping, Optional, Sequence

from torch.utils.data import DataLoader, Subset

from nac_openood.__about__ import __version__
from nac_openood.bench.collect import split_training
from nac_openood.bench.scorer import Fit, Given, Scored
from nac_openood.config import LayerConfig, NACConfig
from nac_openood.data import dataset_labels
from nac_openood.detector import NACDetector
from nac_openood.errors import NACError
from nac_openood.plugin.settings import shipped
from nac_openood.search import SearchResult, default_guard, search

#: Other training images, on which the overfitting guard is measured.
_HELD_OUT = 1000


class NACScorer:
    """`NACDetector` with a search over the settings' sweep.

    Args:
        config: settings and sweep; None takes the shipped ones for the data and the network.
        strategy: of the search; "grid" walks the sweep as the authors do.
        layers: which of the settings' layers to use; None takes all.
    """

    needs = "network"
    implementation = f"nac_openood {__version__}"

    def __init__(
        self,
        config: Optional[NACConfig] = None,
        strategy: str = "grid",
        layers: Optional[Sequence[str]] = None,
    ) -> None:
        self.config, self.strategy, self.layers = config, strategy, layers
        self.settings: Mapping[str, Any] = {
            "config": None if config is None else config.to_dict(),
            "strategy": strategy,
            "layers": None if layers is None else list(layers),
        }

    def setup(self, given: Given, chosen: Optional[Mapping[str, Any]] = None) -> Fit:
        """Read the network once, search without it; see `Scorer`."""
        config = _only(self.layers, self.config or shipped(given.id_name, given.net))
        fit, held_out = _split(given.train, config.n_samples)
        if chosen is not None:
            layers = {n: LayerConfig.from_dict(s) for n, s in chosen["layers"].items()}
        else:
            layers = dict(config.layers)
        reader = NACDetector(given.net, layers, fast=config.fast)
        if chosen is not None or given.ood_val is None or not config.sweep:
            self._detector = reader.fit(fit, progress=given.progress)
            return Fit(self._used(config.n_samples))
        loaders = {"fit": fit, "id_val": given.id_val, "ood_val": given.ood_val}
        loaders.update({"held_out": held_out} if held_out is not None else {})
        readings = {n: reader.read_loader(v, progress=given.progress) for n, v in loaders.items()}
        # the guard is reported, not enforced: the protocol is the one that the baselines follow
        found = search(
            readings["fit"], readings["id_val"], readings["ood_val"],
            held_out=readings.get("held_out"), layers=layers, sweep=config.sweep,
            strategy=self.strategy, guard=None, seed=given.seed,
        )  # fmt: skip
        self._detector = NACDetector(given.net, found.layers, fast=config.fast)
        self._detector.fit_readings(readings["fit"])
        told = _told(found, readings)
        return Fit(self._used(config.n_samples), told)

    def score(self, loader: Iterable[Any]) -> Scored:
        """Score a data set, with scores by layer; see `Scorer`."""
        return Scored(*self._detector.score_loader(loader))

    def _used(self, n_samples: Optional[int]) -> dict[str, Any]:
        layers = {name: config.to_dict() for name, config in self._detector.configs.items()}
        return {"layers": layers, "n_samples": n_samples}


def _only(names: Optional[Sequence[str]], config: NACConfig) -> NACConfig:
    """The settings of some layers."""
    if names is None:
        return config
    unknown = [name for name in names if name not in config.layers]
    if unknown:
        raise NACError(f"NAC's settings have no layers {unknown}, only {list(config.layers)}.")
    layers = {name: config.layers[name] for name in names}
    return replace(
        config, layers=layers, sweep={n: v for n, v in config.sweep.items() if n in layers}
    )


def _split(train: Any, n_samples: Optional[int]) -> tuple[Any, Optional[Any]]:
    """Loaders of the fitting subset and of other training images, None where there are none."""
    labels = dataset_labels(train.dataset)
    if labels is None:
        raise NACError("expected training data that tells its labels, e.g. as `.labels`.")
    fit, held_out = split_training(labels, n_samples, _HELD_OUT)

    def loader(rows: Any) -> Any:
        images = Subset(train.dataset, rows.tolist())
        return DataLoader(images, batch_size=train.batch_size, num_workers=train.num_workers)

    return loader(fit), loader(held_out) if len(held_out) else None


def _told(found: SearchResult, readings: Mapping[str, Any]) -> dict[str, Any]:
    best = found.best
    limit = None
    if best.guard is not None:
        limit = default_guard(readings["held_out"].n_samples, readings["id_val"].n_samples)
    return {
        "strategy": found.strategy,
        "objective": found.objective,
        "auroc": best.auroc,
        "fpr95": best.fpr95,
        "guard": best.guard,
        "guard_threshold": limit,
        "points": found.evaluated,
        "seconds": round(found.seconds, 3),
    }
