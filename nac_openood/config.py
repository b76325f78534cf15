"""Settings as frozen dataclasses, and YAML in OpenOOD's shape in and out of them.

The spellings of the authors' YAML (`M`, `O`, `sig_alpha`, `method`, `layer_kwargs`, `valid_num`)
are read too. An unknown key is an error: a typo must not silently become a default.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import yaml

from nac_openood.core.bins import MIN_BINS
from nac_openood.core.layouts import LAYOUTS
from nac_openood.core.states import STATES
from nac_openood.errors import NACError

_REFERENCE_KEYS = {"M": "n_bins", "O": "full_count", "sig_alpha": "steepness", "method": "state"}
_REFERENCE_STATES = {
    "sigmoid(o*g_kl)": "output*gradient",
    "sigmoid(o)": "output",
    "sigmoid(g_kl)": "gradient",
}


@dataclass(frozen=True)
class LayerConfig:
    """Settings of one layer.

    Args:
        n_bins: the paper's M. An odd number counts as the even one below it.
        full_count: the paper's O*: how many samples fill a bin completely.
        steepness: the paper's alpha, of the sigmoid.
        state: one of `nac_openood.core.states.STATES`.
        weight: of the layer in the mean over layers.
        layout: one of `nac_openood.core.layouts.LAYOUTS`; None takes the architecture table's,
            or for a module of your own goes by the number of dimensions.
    """

    n_bins: int = 50
    full_count: int = 50
    steepness: float = 100.0
    state: str = "output*gradient"
    weight: float = 1.0
    layout: Optional[str] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_bins", _whole("n_bins", self.n_bins, MIN_BINS))
        object.__setattr__(self, "full_count", _whole("full_count", self.full_count, 1))
        object.__setattr__(self, "steepness", _number("steepness", self.steepness))
        object.__setattr__(self, "weight", _number("weight", self.weight))
        if self.steepness == 0:
            raise NACError("steepness must be above 0, got 0: every state would be 0.5.")
        object.__setattr__(self, "state", _REFERENCE_STATES.get(self.state, self.state))
        if self.state not in STATES:
            raise NACError(f"state must be one of {list(STATES)}, got {self.state!r}.")
        if self.layout is not None and self.layout not in LAYOUTS:
            raise NACError(f"layout must be one of {list(LAYOUTS)} or None, got {self.layout!r}.")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> LayerConfig:
        """Read a mapping, in our spelling or the authors'."""
        return cls(**_known(cls, settings, "layer setting"))

    def to_dict(self) -> dict[str, Any]:
        """The mapping that `from_dict` reads back; `layout` only where one was set."""
        settings = dataclasses.asdict(self)
        if self.layout is None:
            del settings["layout"]
        return settings


@dataclass(frozen=True)
class NACConfig:
    """Everything a run needs: the layers, the size of the fitting set and what to search over.

    Args:
        layers: settings by layer name.
        n_samples: size of the class-balanced fitting set; None takes all samples.
        search: whether to search hyperparameters (OpenOOD's `APS_mode`).
        sweep: layer -> setting -> the values to try.
        search_in: inside OpenOOD, who searches: `setup` (ours, seconds) or `openood` (its sweep).
        fast: see `NACDetector`.
    """

    layers: Mapping[str, LayerConfig]
    n_samples: Optional[int] = 1000
    search: bool = False
    sweep: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    search_in: str = "setup"
    fast: bool = False

    def __post_init__(self) -> None:
        if self.search_in not in ("setup", "openood"):
            raise NACError(f"search_in must be 'setup' or 'openood', got {self.search_in!r}.")
        if self.n_samples is not None:
            object.__setattr__(self, "n_samples", _whole("n_samples", self.n_samples, 1))
        for layer, lists in self.sweep.items():
            if layer not in self.layers:
                raise NACError(
                    f"the sweep names layer '{layer}', which is not among {list(self.layers)}."
                )
            for key, values in lists.items():
                for value in values:  # each value must make a valid setting
                    dataclasses.replace(self.layers[layer], **{key: value})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NACConfig:
        """Read an OpenOOD postprocessor document, ours or the authors'."""
        root = document.get("postprocessor", document)
        if not isinstance(root, Mapping):
            raise NACError("expected a mapping 'postprocessor:' with 'postprocessor_args:' in it.")
        _refuse_unknown(
            root, {"name", "APS_mode", "postprocessor_args", "postprocessor_sweep", "layer_kwargs"}
        )
        args = dict(root.get("postprocessor_args") or {})
        theirs = {"valid_num", "layer_names", "test_method"}
        _refuse_unknown(args, {"layers", "n_samples", "search_in", "fast", *theirs})
        layers = dict(args.get("layers") or root.get("layer_kwargs") or {})
        chosen = [n for n in args.get("layer_names") or layers if n in layers]
        if not chosen:
            raise NACError("no layers in the config: give 'postprocessor_args: layers: ...'.")
        sweep = {
            name: _known(LayerConfig, lists, "sweep setting")
            for name, lists in (root.get("postprocessor_sweep") or {}).items()
            if name in chosen
        }
        return cls(
            layers={name: LayerConfig.from_dict(layers[name]) for name in chosen},
            n_samples=args.get("n_samples", args.get("valid_num", 1000)),
            search=bool(root.get("APS_mode", False)),
            sweep=sweep,
            search_in=args.get("search_in", "setup"),
            fast=bool(args.get("fast", False)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The document that `from_dict` and OpenOOD read."""
        sweep = {name: {k: list(v) for k, v in lists.items()} for name, lists in self.sweep.items()}
        layers = {name: config.to_dict() for name, config in self.layers.items()}
        return {
            "postprocessor": {
                "name": "nac",
                "APS_mode": self.search,
                "postprocessor_args": {
                    "n_samples": self.n_samples,
                    "search_in": self.search_in,
                    "fast": self.fast,
                    "layers": layers,
                },
                "postprocessor_sweep": sweep,
            }
        }


def read_config(path: Union[str, Path]) -> NACConfig:
    """Read a YAML file.

    Raises:
        NACError: naming the file, where it is missing or says something unknown.
    """
    path = Path(path)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(document, Mapping):
            raise NACError("expected a YAML mapping.")
        return NACConfig.from_dict(document)
    except FileNotFoundError:
        raise NACError(f"there is no config file {path}.") from None
    except (NACError, yaml.YAMLError) as error:
        raise NACError(f"{path}: {error}") from error


def _known(cls: type, settings: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Rename reference spellings and refuse keys the dataclass does not have."""
    if not isinstance(settings, Mapping):
        raise NACError(f"expected a mapping of {what}s, got {settings!r}.")
    names = {f.name for f in dataclasses.fields(cls)}
    renamed = {_REFERENCE_KEYS.get(key, key): value for key, value in settings.items()}
    _refuse_unknown(renamed, names, what)
    return renamed


def _refuse_unknown(given: Mapping[str, Any], known: set[str], what: str = "key") -> None:
    unknown = sorted(set(map(str, given)) - known)
    if unknown:
        raise NACError(f"unknown {what} {unknown}; known are {sorted(known)}.")


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise NACError(f"{name} must be a whole number, got {value!r}.")
    if value < least:
        raise NACError(f"{name} must be at least {least}, got {value!r}.")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NACError(f"{name} must be a number, got {value!r}.")
    if not math.isfinite(value) or value < 0:
        raise NACError(f"{name} must be finite and not negative, got {value!r}.")
    return float(value)
