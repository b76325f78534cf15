"""What a rule is: how the readings of a network become a score.

A rule says what it needs of a pass, is fitted batch by batch, merges with another of its kind by
addition, scores samples, and is a dict of tensors plus settings in a file. The detector, the
plugin, the search, the comparison and the files know rules by this interface and by their names in
`nac_openood.core.rules` only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Iterable, Mapping, Optional, Sequence, Type

import torch
from torch import Tensor

from nac_openood.core.reading import Reading
from nac_openood.errors import NACError


@dataclass(frozen=True)
class Needs:
    """What a rule asks of a pass over the network; nothing else is computed.

    Args:
        layers: layers whose activations it looks at.
        gradients: those of them whose gradients it looks at. Without any, a pass has no backward.
        logits: whether it looks at the logits.
        labels: whether fitting needs the labels of the samples.
        mean: whether activations are averaged over positions; the published settings of NAC assume
            sums.
    """

    layers: tuple[str, ...]
    gradients: frozenset[str] = frozenset()
    logits: bool = False
    labels: bool = False
    mean: bool = False


class Rule(ABC):
    """From readings to scores; higher scores mean more in-distribution.

    It is fitted batch by batch, merged by addition, and moves its tensors to the device of the
    readings it is given.

    Args:
        layers: settings by layer name, each a `layer_settings`.
    """

    #: The name under which `nac_openood.core.rules` lists it, also in files.
    name: ClassVar[str]
    #: What people call it; its name if it has no title.
    title: ClassVar[str] = ""
    #: The settings of one layer: a dataclass with defaults, `layout`, `from_dict` and `to_dict`.
    layer_settings: ClassVar[Type[Any]]
    #: Whether `layers="auto"` includes what the head receives.
    reads_head_input: ClassVar[bool] = False
    #: Whether scores depend on `calibrate`.
    needs_calibration: ClassVar[bool] = False

    layers: Mapping[str, Any]

    @abstractmethod
    def __init__(self, layers: Mapping[str, Any]) -> None: ...

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """What must be read of the network."""

    @property
    @abstractmethod
    def n_samples(self) -> int:
        """How many samples it was fitted on."""

    @abstractmethod
    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Add a batch of training data.

        Args:
            readings: readings of the layers in `needs`, tensors `[batch, neurons]`.
            label: int64 `[batch]`, where `needs.labels`.
        """

    def seek(self, number: int) -> None:  # noqa: B027 - what only counts needs no numbers
        """Say which sample of the whole training set the next `update` begins with.

        For shards; by default, samples are numbered from 0 as they come.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise if nothing was fitted, or if a fitted sample had NaN or Inf readings."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another of the same kind and settings was fitted on."""

    def _check_like(self, other: Rule) -> None:
        """Refuse to merge what was counted with other settings."""
        if self.layers != other.layers:
            raise NACError(
                "cannot merge rules with different layers or settings: "
                f"{self.layers} and {other.layers}."
            )

    def addends(self) -> Optional[dict[str, Tensor]]:
        """What merging adds up, by name: whole numbers in fixed shapes.

        None if there is more to merging than that; then processes exchange whole rules.
        """
        return None

    def set_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Replace the `addends` by their sums over several shards, int64."""
        raise NotImplementedError(f"{type(self).__name__} has no addends")

    def rows(self) -> dict[str, Tensor]:
        """What a rule with `addends` keeps of single samples, by name; empty for most."""
        return {}

    def set_rows(self, shards: Sequence[Mapping[str, Tensor]]) -> None:
        """Replace the `rows` by those of several shards, after `set_sums`."""
        assert not any(shards), f"{type(self).__name__} has no rows"

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What was fitted, for a file."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything else that `restore` needs, as JSON values."""

    @classmethod
    @abstractmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        """The object that `settings` and `tensors` came from.

        Raises:
            NACError: where they do not fit together; the message says what is wrong. See
                `nac_openood.core.restoring`.
        """

    @abstractmethod
    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """The evidence of each layer (or of the logits), `[batch]` each.

        NaN where a reading is not finite.
        """

    @abstractmethod
    def combine(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score `[batch]` of what `parts` gave."""

    @abstractmethod
    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much each part adds to the score, `[batch]` each; they sum to it."""

    @abstractmethod
    def neurons(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """How well each neuron is covered, by layer, `[batch, neurons]` each; higher is better."""

    def score(self, readings: Mapping[str, Reading]) -> Tensor:
        """The score `[batch]` of readings."""
        return self.combine(self.parts(readings))

    def held_out_scores(self) -> Optional[Tensor]:
        """Scores of training samples that were set aside, `[samples]`; None if the rule has none.

        They stand in for calibration data that nobody gave.
        """
        return None

    def calibrate(self, parts: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """Take in held-out in-distribution data.

        Args:
            parts: what `parts` gives for its batches. They must be made one after the other, as
                they are asked for: some rules change before the first of them.

        Returns:
            The scores of the data, `[samples]`.
        """
        batches = list(parts)
        if not batches:
            raise NACError("the loader yielded no batch: there is nothing to calibrate on.")
        return self._calibrate(
            {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        )

    def _calibrate(self, parts: Mapping[str, Tensor]) -> Tensor:
        return self.combine(parts)

    def saturated(
        self, readings: Optional[Mapping[str, Reading]] = None, *, certain: bool = True
    ) -> dict[str, str]:
        """Layers that give ID samples the same score: why, and what to change, a sentence each.

        Args:
            readings: in-distribution readings, by which to suggest other settings.
            certain: only layers that give OOD samples that score, too.
        """
        return {}
