"""The settings of one layer, checked when they are made, and the forms of the neuron state."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Callable, Collection, Iterable, Mapping, Optional, Type, TypeVar, Union

import torch
from torch import Tensor

from nac_openood.core.reading import LAYOUTS
from nac_openood.errors import NACError

#: The authors' names, which are accepted, too.
_REFERENCE_KEYS = {"M": "n_bins", "O": "full_count", "sig_alpha": "steepness", "method": "state"}
_REFERENCE_STATES = {
    "sigmoid(o*g_kl)": "output*gradient",
    "sigmoid(o)": "output",
    "sigmoid(g_kl)": "gradient",
}
#: A histogram has this many counters per neuron at most, and counts in int32.
_MAX_BINS, _MAX_COUNT = 10**6, 2**31 - 1
#: The range of the steepness. Far outside of it, products overflow in float32 and states become
#: NaN, or products are rounded to 0.
_STEEPEST = 1e30
_SMALLEST = 1 / _STEEPEST

#: Fewer than four edges leave no bin at all.
MIN_BINS = 4

_S = TypeVar("_S", bound="_Settings")


@dataclass(frozen=True)
class State:
    """A form of the neuron state.

    Args:
        squashed: what the sigmoid is taken of, `(activation, gradient) -> [batch, neurons]`.
        uses_gradient: whether it uses the gradient, which costs a backward pass.
    """

    squashed: Callable[[Tensor, Any], Tensor]
    uses_gradient: bool

    def __call__(self, activation: Tensor, gradient: Optional[Tensor], steepness: float) -> Tensor:
        """States `[batch, neurons]`."""
        return sigmoid(steepness * self.squashed(activation, gradient))


#: The sigmoid of this is 0.95, a good value for a typical state.
TYPICAL = 2.94


def sigmoid(x: Tensor) -> Tensor:
    """The sigmoid, to the same bits on every device.

    `torch.sigmoid` rounds differently on CPUs and GPUs, and even inside one tensor, so a state near
    an edge would be counted in another bin. Here every step is correctly rounded: the exponential
    by way of double precision, sum and quotient by IEEE 754.
    """
    if x.dtype != torch.float32 or x.device.type == "mps":
        return torch.sigmoid(x)
    return 1 / (-x).double().exp_().float().add_(1)


#: The paper's state, an activation weighted by its influence on the decision, and its ablations.
STATES: Mapping[str, State] = {
    "output*gradient": State(lambda activation, gradient: activation * gradient, True),
    "output": State(lambda activation, gradient: activation, False),
    "gradient": State(lambda activation, gradient: gradient, True),
}


class _Settings:
    """Converts settings from and to mappings; an unknown name, perhaps a typo, is an error."""

    @classmethod
    def from_dict(cls: Type[_S], settings: Mapping[str, Any]) -> _S:
        """Make settings from a mapping; the authors' names are accepted, too."""
        return cls(**cls.renamed(settings))

    @classmethod
    def renamed(cls, settings: Mapping[str, Any], what: str = "layer setting") -> dict[str, Any]:
        """The settings under the names of this class."""
        if not isinstance(settings, Mapping):
            raise NACError(f"expected a mapping of {what}s, got {settings!r}.")
        ours = {_REFERENCE_KEYS.get(key, key): value for key, value in settings.items()}
        if len(ours) < len(settings):
            raise NACError(f"a {what} has two spellings in {list(settings)}: use one of them.")
        refuse_unknown(ours, {field.name for field in dataclasses.fields(cls)}, what)  # type: ignore[arg-type]
        return ours

    def to_dict(self) -> dict[str, Any]:
        """The mapping that `from_dict` reads; `layout` and `head_input` only if they were set."""
        settings = dataclasses.asdict(self)  # type: ignore[call-overload]
        rare = ("layout", "head_input")
        return {name: value for name, value in settings.items() if name not in rare or value}


@dataclass(frozen=True)
class LayoutConfig(_Settings):
    """Settings of a layer for rules without hyperparameters per layer.

    Args:
        layout: one of `nac_openood.core.reading.LAYOUTS`; None uses the architecture table or, for
            other modules, the number of dimensions. Of tokens, those that the logits depend on
            are read: all, the class token, or the last one.
        head_input: whether this is the input of the head, which NAC+ compares with the logits.
    """

    layout: Optional[str] = None
    head_input: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.head_input, bool):
            raise NACError(f"head_input must be true or false, got {self.head_input!r}.")
        if self.layout is not None and self.layout not in list(LAYOUTS):
            raise NACError(f"layout must be one of {list(LAYOUTS)} or None, got {self.layout!r}.")


@dataclass(frozen=True)
class LayerConfig(_Settings):
    """Settings of one layer of reference NAC.

    Args:
        n_bins: the paper's M. An odd number counts as the even one below it.
        full_count: the paper's O*: how many samples fill a bin completely.
        steepness: the paper's alpha, the steepness of the sigmoid.
        state: one of `nac_openood.core.layer_config.STATES`.
        weight: weight of the layer in the mean over layers; 0 leaves it out.
        layout: as in `LayoutConfig`.
    """

    n_bins: int = 50
    full_count: int = 50
    steepness: float = 100.0
    state: str = "output*gradient"
    weight: float = 1.0
    layout: Optional[str] = None

    def __post_init__(self) -> None:
        _check_counting(self, MIN_BINS)
        object.__setattr__(self, "weight", finite_number("weight", self.weight, 1e6))
        object.__setattr__(self, "state", _REFERENCE_STATES.get(self.state, self.state))
        if self.state not in STATES:
            raise NACError(f"state must be one of {list(STATES)}, got {self.state!r}.")


@dataclass(frozen=True)
class IntegralConfig(_Settings):
    """Settings of NAC-ME, the coverage of a whole network at one layer; the authors' defaults.

    Args:
        n_bins: the paper's M, as it is, odd numbers included: M edges make M - 1 bins.
        full_count: the paper's O*: how many samples fill a bin completely.
        steepness: the paper's alpha, the steepness of the sigmoid.
        layout: as in `LayoutConfig`.
    """

    n_bins: int = 50
    full_count: int = 500
    steepness: float = 0.1
    layout: Optional[str] = None

    def __post_init__(self) -> None:
        _check_counting(self, 2)


def _check_counting(config: Union[LayerConfig, IntegralConfig], fewest_bins: int) -> None:
    """Check the settings that both kinds of coverage share, and convert them to int and float."""
    n_bins = whole_number("n_bins", config.n_bins, fewest_bins, _MAX_BINS)
    object.__setattr__(config, "n_bins", n_bins)
    object.__setattr__(config, "full_count", whole_number("full_count", config.full_count, 1))
    steepness = finite_number("steepness", config.steepness, _STEEPEST)
    if steepness < _SMALLEST:
        raise NACError(f"steepness must be above 0, got {steepness}: every state would be 0.5.")
    object.__setattr__(config, "steepness", steepness)
    LayoutConfig(config.layout)  # checks the layout


def refuse_unknown(values: Iterable[str], names: Collection[str], what: str = "key") -> None:
    """Raise if `values` has keys that are not in `names`."""
    unknown = sorted(set(map(str, values)) - set(names))
    if unknown:
        raise NACError(f"unknown {what} {unknown}; expected one of {sorted(names)}.")


def whole_number(name: str, value: Any, least: int, most: int = _MAX_COUNT) -> int:
    """`value` as an int, or an error that names the setting."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or value != value // 1:  # NaN, too
        raise NACError(f"{name} must be a whole number, got {value!r}.")
    if value < least:
        raise NACError(f"{name} must be at least {least}, got {value!r}.")
    if value > most:
        raise NACError(f"{name} must be at most {most:,}, got {value!r}.")
    return int(value)


def finite_number(name: str, value: Any, most: float = 1e300) -> float:
    """`value` as a float from 0 to `most`, or an error that names the setting."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise NACError(f"{name} must be finite and not negative, got {value!r}.")
    if value > most:
        raise NACError(f"{name} must be at most {most:g}, got {value!r}.")
    return float(value)
