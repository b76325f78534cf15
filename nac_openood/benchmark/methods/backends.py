"""Chooses the implementation of a method: this package's, OpenOOD's or pytorch-ood's."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

from nac_openood.__about__ import __version__
from nac_openood.benchmark.methods import AUTO_BACKEND, BACKENDS, OPENOOD, OWN, PYTORCH_OOD
from nac_openood.benchmark.methods.scorer import FunctionScorer, MethodInputs, MethodSetup, Scorer
from nac_openood.benchmark.methods.table import NAC, Absent, Method
from nac_openood.core.rule import rule_named, stored_layers
from nac_openood.detector.batches import Say
from nac_openood.detector.config import NACConfig, preset_or_auto
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import NACError
from nac_openood.files import digest_of
from nac_openood.search import SurrogateLoader
from nac_openood.search.recipe import HELD_OUT, set_up
from nac_openood.sources.checkpoints import Checkpoint


@dataclass(eq=False)
class NACScorer:
    """A rule, set up as in the plugin and in `search`.

    Args:
        config: settings and sweep; None takes the shipped ones for the data and the network, or
            automatic layers where nothing is shipped.
        strategy: of the search; "grid" walks the sweep as the authors do.
        layers: which of the settings' layers to use; None takes all.
        rule: name of a rule; see `nac_openood.core.RULES`.
    """

    config: Optional[NACConfig] = None
    strategy: str = "grid"
    layers: Optional[Sequence[str]] = None
    rule: str = "nac"

    def __post_init__(self) -> None:
        self.implementation = f"nac_openood {__version__}"
        self.settings: Mapping[str, Any] = {
            "rule": self.rule,
            "config": None if self.config is None else self.config.to_dict(),
            "strategy": self.strategy,
            "layers": self.layers,
            "held_out": HELD_OUT,
        }
        kind = rule_named(self.rule)
        if kind.__module__.partition(".")[0] != "nac_openood":  # our version does not cover it
            self.implementation = kind.__module__
            self.settings = {**self.settings, "code": _source_hash(kind)}

    def setup(
        self, inputs: MethodInputs, chosen: Optional[Mapping[str, Any]] = None
    ) -> MethodSetup:
        """Fit and search with one pass over the network; see `Scorer`."""
        config = self.config or preset_or_auto(inputs.net, inputs.id_name, self.rule)
        config = replace(self._with_layers(config), search=inputs.search)
        if chosen is not None:  # by an earlier search
            layers = stored_layers(chosen, rule_named(config.rule).layer_settings)
            config = replace(config, layers=layers, search=False, sweep={})
        # `set_up` makes the same surrogates itself, and records that in the result
        surrogates = isinstance(inputs.ood_val, SurrogateLoader)
        self._detector, found, advice = set_up(
            inputs.net, config, inputs.train, inputs.id_val,
            None if surrogates else inputs.ood_val,
            strategy=self.strategy, seed=inputs.seed, progress=inputs.progress,
        )  # fmt: skip
        layers = {name: used.to_dict() for name, used in self._detector.layers.items()}
        report: Optional[dict[str, Any]] = None
        if found is not None:
            report = {
                "strategy": found.strategy, **found.best.numbers(), "objective": found.objective,
                "surrogate": found.surrogate, "points": found.evaluated,
                "guard_threshold": found.guard_limit, "seconds": round(found.seconds, 3),
            }  # fmt: skip
        advised = () if advice is None else (advice.to_dict(), advice.seconds)
        return MethodSetup({"layers": layers, "n_samples": config.n_samples}, report, *advised)

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score a dataset, with scores by layer; see `Scorer`."""
        return self._detector.score_loader(loader)

    def _with_layers(self, config: NACConfig) -> NACConfig:
        """The settings of the chosen layers."""
        names, known = self.layers, config.layers
        if names is None:
            return config
        if not known:  # automatic
            known = dict.fromkeys(names, rule_named(config.rule).layer_settings())
        unknown = [name for name in names if name not in known]
        if unknown:
            raise NACError(f"NAC's settings have no layers {unknown}, only {list(known)}.")
        sweep = {name: lists for name, lists in config.sweep.items() if name in names}
        return replace(config, layers={name: known[name] for name in names}, sweep=sweep)


def _source_hash(kind: type) -> str:
    """A hash of the module that defines a class, or of its methods where that is a notebook."""
    methods: list[Any] = [value for value in vars(kind).values() if inspect.isfunction(value)]
    for parts in ([sys.modules[kind.__module__]], methods):
        with suppress(OSError, TypeError):  # it is not in a file
            return digest_of("".join(map(inspect.getsource, parts)))
    return ""


def usable_backends(name: str, say: Say = lambda text: None) -> tuple[str, ...]:
    """The backends that may be used here, the preferred one first.

    Args:
        name: one of `BACKENDS`; "auto" prefers OpenOOD where it is installed.
        say: function that is called with a message if no baseline can run.

    Raises:
        NACError: the name is unknown, or that of a backend that is not installed.
    """
    from nac_openood.benchmark.methods.pytorch_ood import detectors
    from nac_openood.plugin.source import has_openood, openood_ready

    if name not in BACKENDS:
        raise NACError(f"`backend` must be one of {', '.join(BACKENDS)}; got {name!r}.")
    if name == OPENOOD:
        with openood_ready():
            return (OPENOOD,)
    if name == AUTO_BACKEND and has_openood():
        return (OPENOOD, PYTORCH_OOD)
    try:
        detectors()
    except Absent as error:
        if name != AUTO_BACKEND:
            raise
        say(f"no baselines, NAC alone: OpenOOD is not installed, and {error}")
    return (PYTORCH_OOD,)


def scorers(
    rows: Sequence[Method],
    backend: str,
    *,
    nac: Mapping[str, Any] = {},
    opengan: Union[str, Path, None] = None,
    say: Say = lambda text: None,
) -> Callable[[Method, Checkpoint], Scorer]:
    """Return a function that makes the scorer of a method for a checkpoint.

    Args:
        rows: the methods; backends are imported only if one of them needs it.
        backend: one of `BACKENDS`; see `usable_backends`.
        nac: options of `NACScorer` for reference NAC.
        opengan: OpenGAN's trained discriminator; None takes `best_DNet.ckpt` in the folder of the
            checkpoint.
        say: function that is called with a message if no baseline can run.
    """
    baselines = [row for row in rows if not (row.rule or row.scorer or row.backends == (OWN,))]
    backends = usable_backends(backend, say) if baselines else ()

    def make(method: Method, checkpoint: Checkpoint) -> Scorer:
        if method.scorer is not None:
            return method.scorer()
        if method.rule is not None:
            return NACScorer(rule=method.rule, **(nac if method.name == NAC else {}))
        usable = next((name for name in (*backends, OWN) if name in method.backends), None)
        if usable is None:
            instead = f"backend={method.backends[0]!r}" if method.backends else "scorer"
            raise Absent(f"{method.title} is not in {' or '.join(backends)}: pass `{instead}`.")
        if usable == OWN:
            from nac_openood.benchmark.methods import features, gradients

            functions = {**vars(features), **vars(gradients)}
            title = f"nac_openood {__version__}"
            return FunctionScorer(method, title, functions[f"fit_{method.name}"])
        if usable == PYTORCH_OOD:
            from nac_openood.benchmark.methods import pytorch_ood

            pytorch_ood.detectors()  # raises if it is not installed
            title = f"pytorch-ood {metadata.version('pytorch-ood')}"
            function = vars(pytorch_ood)[f"fit_{method.name}"]
            return FunctionScorer(method, title, function, sign=-1)
        from nac_openood.benchmark.methods.openood import OpenGANScorer, OpenOODScorer

        if method.name != "opengan":
            return OpenOODScorer(method)
        beside = Path(checkpoint.path).parent / "best_DNet.ckpt"
        return OpenGANScorer(method, Path(opengan or beside))

    return make
