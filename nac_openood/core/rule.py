"""The interface of a rule: how the readings of a network become a score.

Detector, plugin, search, comparison and files use rules through this interface only, and find them
by name with `rule_named`.
"""

from __future__ import annotations

import importlib
import operator
from dataclasses import dataclass
from functools import reduce
from importlib import metadata
from typing import Any, ClassVar, Iterable, Mapping, Optional, Sequence, Type, TypeVar, cast

import torch
from torch import Tensor

from nac_openood.core import RULES
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.reading import Reading, broken_error, logits_in, not_finite, reading_in
from nac_openood.errors import NACError, NotFittedError, first_line

_BROKEN = "broken/"
_R = TypeVar("_R", bound="Type[Rule]")
#: What a shard has fitted: tensors to add up, and tensors of individual samples, by name.
Shard = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Needs:
    """What a rule needs from a pass over the network; nothing else is computed.

    Args:
        layers: layers whose activations it uses.
        gradients: layers whose gradients it uses. Without any, there is no backward pass.
        logits: whether it uses the logits.
        labels: whether fitting needs the labels of the samples.
        mean: whether activations are averaged over positions; the published settings of NAC assume
            sums.
    """

    layers: tuple[str, ...]
    gradients: frozenset[str] = frozenset()
    logits: bool = False
    labels: bool = False
    mean: bool = False


class Rule:
    """Base class of rules, which turn readings into scores; higher = more in-distribution.

    A subclass has a `name`, and implements `layer_statistics` (what to sum up over the training
    data) and `layer_score`. The rest has defaults. A rule whose formula needs more than one layer
    at a time overrides `update` and `parts` instead.

    Args:
        layers: settings by layer name, each a `layer_settings`.

    Attributes:
        state: what was fitted, by name. Merging adds these tensors up, be it over batches,
            processes or files.
    """

    #: The name by which it is chosen, also in files.
    name: ClassVar[str]
    #: Its name in tables and figures; if empty, `name`.
    title: ClassVar[str] = ""
    #: The settings of one layer: a dataclass with defaults, `layout`, `from_dict` and `to_dict`.
    layer_settings: ClassVar[Type[Any]] = LayoutConfig
    #: Whether `layers="auto"` includes the input of the head.
    reads_head_input: ClassVar[bool] = False
    #: Whether scores depend on `calibrate`.
    needs_calibration: ClassVar[bool] = False

    def __init__(self, layers: Mapping[str, Any]) -> None:
        if not layers:
            raise NACError("no layers given: name at least one, or pass `layers='auto'`.")
        self.layers = dict(layers)
        self.state: dict[str, Tensor] = {}

    @property
    def needs(self) -> Needs:
        """What must be read of the network; by default the activations of all layers."""
        return Needs(tuple(self.layers))

    @property
    def n_samples(self) -> int:
        """How many samples it was fitted on."""
        return int(self.state.get("n_samples", 0))

    @property
    def widths(self) -> Mapping[str, int]:
        """How many neurons of each layer were counted, as far as the rule knows."""
        return {}

    # -- fitting ---------------------------------------------------------------------------

    def layer_statistics(
        self, layer: str, reading: Reading, label: Optional[Tensor]
    ) -> Mapping[str, Tensor]:
        """What a batch adds to the state of a layer, by name; stored as `name/layer`."""
        raise NotImplementedError(f"{type(self).__name__} has no layer_statistics")

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Add a batch of training data.

        Args:
            readings: readings of the layers in `needs`, tensors `[batch, neurons]`.
            label: int64 `[batch]`, where `needs.labels`.
        """
        checked = self.checked(readings)
        for layer, reading in checked.items():
            for name, value in self.layer_statistics(layer, reading, label).items():
                self.add(f"{name}/{layer}", value)
        self.count_broken(readings, checked)
        self.add("n_samples", torch.tensor(len(next(iter(checked.values())).activation)))

    def add(self, name: str, value: Tensor) -> None:
        """Add to a tensor of the state, on the device of what is added."""
        before = self.state.get(name)
        self.state[name] = value if before is None else before.to(value.device) + value

    def checked(self, readings: Mapping[str, Reading]) -> dict[str, Reading]:
        """The readings of the layers; raises an error that says what is missing."""
        found, needed, widths = {}, self.needs.gradients, self.widths
        for name, config in self.layers.items():
            activation, gradient = reading_in(readings, name)
            if widths.get(name, activation.shape[1]) != activation.shape[1]:
                raise NACError(
                    f"layer '{name}' has {activation.shape[1]} neurons here, and had "
                    f"{widths[name]} in the fit. Is this the same network?"
                )
            if name in needed and gradient is None:
                raise NACError(
                    f"layer '{name}': rule '{self.name}' needs gradients with {config}, but these "
                    "readings have none. Read the network again with these settings."
                )
            found[name] = Reading(activation, gradient if name in needed else None)
        return found

    def count_broken(self, readings: Mapping[str, Reading], checked: Mapping[str, Reading]) -> None:
        """Count samples with NaN or Inf readings, which `check` refuses.

        They are added up on the device: reading the number here would stall every batch.
        """
        for name, reading in checked.items():
            self.add(f"{_BROKEN}{name}", not_finite(reading).sum())
        if self.needs.logits:
            self.add(f"{_BROKEN}logits", not_finite(Reading(logits_in(readings))).sum())

    def check(self) -> None:
        """Raise if nothing was fitted, or if a fitted sample had NaN or Inf readings."""
        for name in [name for name in self.state if name.startswith(_BROKEN)]:
            broken, part = int(self.state[name]), name[len(_BROKEN) :]
            if broken:
                layer = part if part in self.layers else None
                raise broken_error(broken, f"{self.n_samples} fitting samples", layer)
            del self.state[name]  # read once: scoring checks every batch
        if self.n_samples == 0:
            raise NotFittedError("nothing was counted: fit on at least one sample first.")

    def start_at(self, index: int) -> None:
        """Set the index of the next sample in the whole training set, for shards."""

    # -- merging ---------------------------------------------------------------------------

    def sums(self) -> dict[str, Tensor]:
        """The tensors that merging adds up, by name."""
        return dict(self.state)

    def set_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Replace the `sums` by their totals over several shards; whole numbers are int64."""
        self.state = dict(sums)

    def kept_samples(self) -> dict[str, Tensor]:
        """Tensors of individual samples, by name, `[samples, ...]` each; none by default."""
        return {}

    def set_kept_samples(self, shards: Sequence[Mapping[str, Tensor]]) -> None:
        """Replace the `kept_samples` by those of several shards, after `set_sums`."""

    def shard(self) -> Shard:
        """What was fitted: the `sums` and the `kept_samples`."""
        return self.sums(), self.kept_samples()

    def join(self, shards: Sequence[Shard]) -> None:
        """Replace what was fitted by the total of shards, each from `shard` of such a rule."""
        total: dict[str, Tensor] = {}
        for sums, _ in shards:
            for name, value in sums.items():
                wide = value.to(torch.promote_types(value.dtype, torch.int64))
                total[name] = total[name] + wide.to(total[name].device) if name in total else wide
        self.set_sums(total)
        self.set_kept_samples([samples for _, samples in shards])

    def merge(self, other: Any) -> None:
        """Add what another rule of the same kind and settings was fitted on."""
        if self.layers != other.layers:
            raise NACError(
                "cannot merge rules with different layers or settings: "
                f"{self.layers} and {other.layers}."
            )
        self.join([self.shard(), other.shard()])

    # -- files -----------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The fitted tensors, for a file."""
        return {name: t for name, t in self.state.items() if not name.startswith(_BROKEN)}

    def settings(self) -> dict[str, Any]:
        """Everything else that `restore` needs, as JSON values."""
        return {"layers": {name: config.to_dict() for name, config in self.layers.items()}}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        """Restore a rule from its `settings` and `tensors`."""
        rule = cls(stored_layers(settings, cls.layer_settings))
        rule.state = dict(tensors)
        rule.check()
        return rule

    # -- scoring ---------------------------------------------------------------------------

    def layer_score(self, layer: str, reading: Reading) -> Tensor:
        """The evidence of a layer, `[batch]`."""
        raise NotImplementedError(f"{type(self).__name__} has no layer_score")

    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """The evidence of each layer (or of the logits), `[batch]` each.

        NaN where a reading is not finite.
        """
        self.check()
        return {
            name: self.layer_score(name, reading).masked_fill(not_finite(reading), float("nan"))
            for name, reading in self.checked(readings).items()
        }

    def combine(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score `[batch]`: by default the mean of the parts, by the layers' weights if any."""
        return combine(parts, self.layers)

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much each part adds to the score, `[batch]` each; they sum to it."""
        weights, total = _weights(parts, self.layers)
        return {name: weights[name] * part / total for name, part in parts.items()}

    def neurons(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """How well each neuron is covered, by layer, `[batch, neurons]` each; higher is better.

        Empty for a rule that has no score for single neurons.
        """
        return {}

    def score(self, readings: Mapping[str, Reading]) -> Tensor:
        """The score `[batch]` of readings."""
        return self.combine(self.parts(readings))

    def held_out_scores(self) -> Optional[Tensor]:
        """Scores of training samples that were not fitted on, `[samples]`; None without any.

        They are used in place of calibration data.
        """
        return None

    def warn_if_few(self) -> None:
        """Warn if there are too few training samples for what follows."""

    def calibrate(self, parts: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """Calibrate on held-out in-distribution data.

        Args:
            parts: the `parts` of its batches, computed while iterating: some rules change before
                the first of them.

        Returns:
            The scores of the `ranking_rows` of the data, `[samples]`.
        """
        batches = list(parts)
        if not batches:
            raise NACError("the loader yielded no batch: there is nothing to calibrate on.")
        return self._calibrate(
            {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        )

    def _calibrate(self, parts: Mapping[str, Tensor]) -> Tensor:
        return self.combine(parts)

    def ranking_rows(self, n: int) -> Tensor:
        """Which of `n` calibration samples do not shape the score, int64 `[samples]`.

        New samples are ranked among these only, so that p-values are valid. By default, all.
        """
        return torch.arange(n)

    def saturated(
        self, readings: Optional[Mapping[str, Reading]] = None, *, certain: bool = True
    ) -> dict[str, str]:
        """Find layers that give ID samples the same score; why, and what to change, by layer.

        Args:
            readings: in-distribution readings, from which better settings are estimated.
            certain: report only layers that give OOD samples the same score, too.
        """
        return {}


def combine(scores: Mapping[str, Tensor], layers: Mapping[str, Any]) -> Tensor:
    """The mean of scores by the weights of their layers, `[batch]`.

    Layers are added in order, so that a search that adds them in the same way gets the same bits.
    """
    weights, total = _weights(scores, layers)
    added, *others = (weights[name] * score for name, score in scores.items())
    for part in others:
        added = added + part.to(added.device)
    return added / total


def _weights(names: Iterable[str], layers: Mapping[str, Any]) -> tuple[dict[str, float], float]:
    """The weights of the parts of a score, 1 where a layer has no such setting, and their sum."""
    weights = {name: float(getattr(layers.get(name), "weight", 1.0)) for name in names}
    # not `sum`, which Python 3.12 rounds differently
    return weights, reduce(operator.add, weights.values())


def stored_layers(settings: Mapping[str, Any], kind: Type[Any]) -> dict[str, Any]:
    """The settings of each layer in a file; `kind` is the rule's `layer_settings`."""
    return {name: kind.from_dict(found) for name, found in settings["layers"].items()}


# -- rules by name -------------------------------------------------------------------------

#: Packages offer rules in this group of entry points, each under the rule's name.
_GROUP = "nac_openood.rules"


def register_rule(rule: _R) -> _R:
    """Make a rule available by its name wherever rules are chosen; also a class decorator.

    Args:
        rule: a subclass of `nac_openood.core.rule.Rule` with a `name` that no other rule has.

    Examples:
        >>> nac_openood.register_rule(MyRule)
        >>> NACDetector(net, "auto", rule="mine").fit(train_loader)
    """
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise NACError(f"expected a subclass of nac_openood.core.rule.Rule, got {rule!r}.")
    name = getattr(rule, "name", "")
    if not name.isidentifier() or (name in RULES and isinstance(RULES[name][1], str)):
        raise NACError(
            f"{rule.__name__}.name must be an identifier that no rule of this package has, got "
            f"{name!r}."
        )
    RULES[name] = rule.title or name, rule
    return rule


def rule_names() -> list[str]:
    """The names of all rules: those of the table, then those that installed packages offer."""
    return list(dict.fromkeys([*RULES, *entry_points(_GROUP)]))


def rule_named(name: str) -> Type[Rule]:
    """The class of a rule.

    Raises:
        NACError: there is no such rule; the message lists those that exist.
    """
    if name not in RULES:
        offered = entry_points(_GROUP)
        if name not in offered:
            raise NACError(
                f"unknown rule {name!r}; expected one of {rule_names()}. Pass your own to "
                f"`nac_openood.register_rule`, or install a package with entry points '{_GROUP}'."
            )
        try:
            register_rule(offered[name].load())
        except Exception as error:  # third-party code may raise anything
            raise NACError(f"rule '{name}' cannot be loaded: {first_line(error)}") from error
    home = RULES[name][1]
    if isinstance(home, str):
        module, _, attribute = home.partition(":")
        home = getattr(importlib.import_module(module), attribute)
    return cast("Type[Rule]", home)


def entry_points(group: str) -> dict[str, Any]:
    """The entry points that installed packages offer in a group, by name."""
    found: Any = metadata.entry_points()
    offered = found.select(group=group) if hasattr(found, "select") else found.get(group, ())
    return {entry.name: entry for entry in offered}
