"""Our own rules as methods: set up by the recipe that the plugin and `search` follow too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Mapping, Optional, Sequence

from nac_openood.__about__ import __version__
from nac_openood.benchmark.methods.scorer import MethodInputs, MethodSetup
from nac_openood.core.rules import rule_named
from nac_openood.detector.config import NACConfig
from nac_openood.detector.outcomes import Scores
from nac_openood.detector.presets import preset_or_auto
from nac_openood.errors import NACError
from nac_openood.search import SearchResult, SurrogateLoader
from nac_openood.search.recipe import HELD_OUT, set_up


class NACScorer:
    """`NACDetector` with a search over the settings' sweep.

    Args:
        config: settings and sweep; None takes the shipped ones for the data and the network, or
            automatic layers where nothing is shipped.
        strategy: of the search; "grid" walks the sweep as the authors do.
        layers: which of the settings' layers to use; None takes all.
        rule: one of `nac_openood.core.rules.RULES`.
    """

    implementation = f"nac_openood {__version__}"

    def __init__(
        self,
        config: Optional[NACConfig] = None,
        strategy: str = "grid",
        layers: Optional[Sequence[str]] = None,
        rule: str = "nac",
    ) -> None:
        self.config, self.strategy, self.layers, self.rule = config, strategy, layers, rule
        self.settings: Mapping[str, Any] = {
            "rule": rule,
            "config": None if config is None else config.to_dict(),
            "strategy": strategy,
            "layers": None if layers is None else list(layers),
            "held_out": HELD_OUT,
        }

    def setup(
        self, inputs: MethodInputs, chosen: Optional[Mapping[str, Any]] = None
    ) -> MethodSetup:
        """Read the network once, search without it; see `Scorer`."""
        config = self.config or preset_or_auto(inputs.net, inputs.id_name, self.rule)
        config = replace(_only(self.layers, config), search=inputs.search)
        if chosen is not None:
            # what an earlier search chose, with nothing left to search
            kind = rule_named(config.rule).layer_settings
            layers = {name: kind.from_dict(used) for name, used in chosen["layers"].items()}
            config = replace(config, layers=layers, search=False, sweep={})
        # the recipe makes the same surrogates itself, and labels the result
        surrogates = isinstance(inputs.ood_val, SurrogateLoader)
        self._detector, found, advice = set_up(
            inputs.net, config, inputs.train, inputs.id_val, None if surrogates else inputs.ood_val,
            strategy=self.strategy, seed=inputs.seed, progress=inputs.progress,
        )  # fmt: skip
        layers = {name: used.to_dict() for name, used in self._detector.layers.items()}
        used = {"layers": layers, "n_samples": config.n_samples}
        return MethodSetup(
            used,
            None if found is None else _search_note(found),
            None if advice is None else advice.to_dict(),
            0.0 if advice is None else advice.seconds,
        )

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score a dataset, with scores by layer; see `Scorer`."""
        return self._detector.score_loader(loader)


def _only(names: Optional[Sequence[str]], config: NACConfig) -> NACConfig:
    """The settings of some layers."""
    if names is None:
        return config
    if not config.layers:  # automatic, unless somebody names them
        kind = rule_named(config.rule).layer_settings
        return replace(config, layers={name: kind() for name in names})
    unknown = [name for name in names if name not in config.layers]
    if unknown:
        raise NACError(f"NAC's settings have no layers {unknown}, only {list(config.layers)}.")
    sweep = {name: lists for name, lists in config.sweep.items() if name in names}
    return replace(config, layers={name: config.layers[name] for name in names}, sweep=sweep)


def _search_note(found: SearchResult) -> dict[str, Any]:
    return {
        "strategy": found.strategy,
        "objective": found.objective,
        "auroc": found.best.auroc,
        "fpr95": found.best.fpr95,
        "fpr95_in": found.best.fpr95_in,
        "guard": found.best.guard,
        "guard_threshold": found.guard_limit,
        "surrogate": found.surrogate,
        "points": found.evaluated,
        "seconds": round(found.seconds, 3),
    }
