"""NAC+: evidence of early layers, the head's input and the logits, fused as p-values.

Early and middle layers detect far-OOD inputs by how unusual their activations are, each neuron
alone (coverage) and all at once (distance). The logits detect near-OOD inputs, alone (GEN) and
together with the input of the head (alignment). Where the distance of the head's input agrees with
these, it takes their place. NAC+ 1 does not use the input of the head. All this needs forward
passes only. `docs/method.md` has the formulas and measurements.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from torch import Tensor

from nac_openood.core import RULES
from nac_openood.core.fusion import (
    ALIGNMENT,
    DISTANCE,
    LOGITS,
    MIN_SAMPLES,
    TOWARDS,
    VERSION,
    Fusion,
)
from nac_openood.core.layer_config import LayoutConfig, finite_number
from nac_openood.core.plus_layer import MAX_NEURONS, HeadEvidence, LayerEvidence
from nac_openood.core.reading import BatchReadings, Reading, double, logits_in, not_finite
from nac_openood.core.rule import Needs, Rule, stored_layers
from nac_openood.errors import NACError, NotFittedError

#: Small enough for scores to stay finite.
_MAX_WEIGHT = 1e6
#: Half of the calibration samples shape the score, and the others only rank it.
MIN_CALIBRATION = 2 * MIN_SAMPLES
#: The prefix of the parts of the calibration data in a file.
_CALIBRATION = "calibration/"
_CLIP = 1e-12
#: How many of the largest probabilities GEN uses, and its exponent, which is below 1 so that small
#: ones count. Both are the values of its authors.
_TOP, _GAMMA = 100, 0.1
#: Every tenth sample is a candidate for being held out.
_EVERY = 10
#: At most this many are held out.
MAX_SAMPLES = 1000
#: Names of the tensors in a file: the activations of each layer, the logits and the indices.
_ACTIVATION, _LOGITS, _INDEX = "held/activation/", "held/logits", "held/number"


class NACPlus(Rule):
    """Coverage and distance of early layers, GEN, alignment and head distance, as p-values.

    Args:
        layers: settings by layer name: the last block of every stage but the last, and the input of
            the head, which has `head_input` set. Without that, this is NAC+ 1.
        logit_weight: the weight of the late parts (GEN, alignment and the distance of the head's
            input), relative to all early layers together.
        softness: the p-value below which the early layers count.
    """

    name, title = "nac_plus", RULES["nac_plus"][0]
    needs_calibration = True
    reads_head_input = True

    def __init__(
        self,
        layers: Mapping[str, LayoutConfig],
        *,
        logit_weight: float = 2.0,
        softness: float = 0.2,
    ) -> None:
        super().__init__(layers)
        heads = [name for name, config in layers.items() if config.head_input]
        self.early = [name for name in layers if name not in heads]
        if len(heads) > self.reads_head_input or not self.early:
            raise NACError(
                f"expected early layers and at most {int(self.reads_head_input)} with head_input, "
                f"got {self.early} and {heads}. Name an earlier layer, or leave out head_input."
            )
        self.head_input = heads[0] if heads else None
        self.head: Optional[HeadEvidence] = None
        self.logit_weight = finite_number("logit_weight", logit_weight, _MAX_WEIGHT)
        self.softness = finite_number("softness", softness, 1.0)
        self._version = VERSION if heads else 1
        self.evidence: dict[str, LayerEvidence] = {}
        self.held_out = HeldOut()
        self._fusion: Optional[Fusion] = None
        self._held_out_scores: Optional[Tensor] = None
        self._before = 0  # samples of the training set that other shards count

    @property
    def needs(self) -> Needs:
        """Logits, and activations averaged over positions; no gradients."""
        return Needs(tuple(self.layers), logits=True, mean=True)

    @property
    def n_samples(self) -> int:
        """How many samples were counted or held out."""
        counted = min((e.n_samples for e in self.evidence.values()), default=0)
        return counted + self.held_out.n_samples

    @property
    def widths(self) -> Mapping[str, int]:
        """As in `Rule`."""
        head = {} if self.head is None else {str(self.head_input): len(self.head.moments.high) - 1}
        return {**{name: found.counts.neurons for name, found in self.evidence.items()}, **head}

    # -- fitting ---------------------------------------------------------------------------

    def update(self, readings: Mapping[str, Reading], label: Optional[Tensor] = None) -> None:
        """Count a batch, and hold out some samples of it."""
        checked = self.checked(readings)
        self.count_broken(readings, checked)
        batch = BatchReadings(logits_in(readings), checked)
        self._count(self.held_out.take(batch, self.n_samples + self._before))

    def start_at(self, index: int) -> None:
        """Set the index of the next training sample; see `HeldOut`."""
        self._before = index - self.n_samples

    def _count(self, batches: Iterable[Mapping[str, Reading]]) -> None:
        for batch in batches:
            for name in self.early:
                activation = batch[name].activation
                if name not in self.evidence:
                    neurons = activation.shape[1]
                    self.evidence[name] = LayerEvidence.empty(neurons, activation.device)
                self.evidence[name].update(activation)
            if self.head_input is not None:
                features, logits = batch[self.head_input].activation, logits_in(batch)
                neurons = features.shape[1]
                if self.head is None and neurons <= MAX_NEURONS:
                    self.head = HeadEvidence.empty(neurons, logits.shape[1], features.device)
                if self.head is not None:
                    self.head.update(features, logits)
            self._fusion, self._held_out_scores = None, None

    # -- calibration -----------------------------------------------------------------------

    def calibrate(self, parts: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """As in `Rule`; first counts the held-out training samples, which become unnecessary."""
        if self.held_out.readings is not None:
            self._count([self.held_out.readings])
            self.held_out = HeldOut()
        return super().calibrate(parts)

    def ranking_rows(self, n: int) -> Tensor:
        """Every second sample; the others shape the score."""
        return torch.arange(0, n, 2)

    def _calibrate(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Shape the score by half of some held-out samples; returns the scores of the others."""
        n = len(parts[LOGITS])
        if n < MIN_CALIBRATION:
            raise NACError(
                f"NAC+ needs at least {MIN_CALIBRATION} held-out samples, got {n}. Calibrate on "
                "more in-distribution data."
            )
        self._fusion = self._new_fusion({name: part[1::2] for name, part in parts.items()})
        return self._fusion.score({name: part[0::2] for name, part in parts.items()})

    def _new_fusion(self, calibration: Mapping[str, Tensor]) -> Fusion:
        return Fusion(
            calibration,
            logit_weight=self.logit_weight,
            softness=self.softness,
            version=self._version,
        )

    def fusion(self) -> Fusion:
        """The fitted `Fusion`; without `calibrate`, it uses held-out training samples and warns."""
        if self._fusion is None:
            if self.held_out.readings is None:
                raise NotFittedError("this rule has no p-values yet: call calibrate(loader) first.")
            warnings.warn(
                "NAC+ was not calibrated: its p-values are based on held-out training data, which "
                "the network fits better than new data. Call calibrate(loader) with ID validation "
                "data.",
                UserWarning,
                stacklevel=4,
            )
            self._held_out_scores = self._calibrate(self.parts(self.held_out.readings))
        assert self._fusion is not None
        return self._fusion

    def held_out_scores(self) -> Optional[Tensor]:
        """Scores of held-out training samples; None after `calibrate`."""
        if self.held_out.readings is None:
            return None
        fusion = self.fusion()
        if self._held_out_scores is None:  # loaded from a file
            parts = self.parts(self.held_out.readings)
            self._held_out_scores = fusion.score({n: part[0::2] for n, part in parts.items()})
        return self._held_out_scores

    def warn_if_few(self) -> None:
        """Warn if too few samples are held out for scores without `calibrate`."""
        held_out = self.held_out.n_samples
        if held_out < MIN_CALIBRATION:
            warnings.warn(
                f"NAC+ was fitted on {self.n_samples} samples, of which {held_out} are held out: "
                f"too few for scores without calibrate(loader). Both need at least "
                f"{MIN_CALIBRATION} held-out samples, and decisions at p <= 0.05 twice that.",
                UserWarning,
                stacklevel=4,
            )

    # -- scoring ---------------------------------------------------------------------------

    def parts(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Coverage and distance by layer, and what the late parts need, `[batch]` each."""
        self.check()
        scores = {}
        checked = self.checked(readings)
        for name, evidence in self.evidence.items():
            activation = checked[name].activation
            scores[name] = evidence.coverage.score(activation)
            if evidence.moments is not None:
                scores[distance_of(name)] = evidence.moments.score(activation)
        logits = logits_in(readings)
        scores[LOGITS] = gen(logits)
        if self.head_input is not None and self.head is not None:
            scores[TOWARDS] = self.head.towards(logits)
            scores[DISTANCE] = self.head.distance(checked[self.head_input].activation)
        device = scores[LOGITS].device  # of a network on several devices
        broken = not_finite(Reading(logits), *checked.values()).to(device)
        return {
            name: score.to(device).masked_fill(broken, float("nan"))
            for name, score in scores.items()
        }

    def combine(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The score of `Fusion`, float64 `[batch]`."""
        return self.fusion().score(parts)

    def contributions(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much the logits, each early layer and the head's input add to the score."""
        added = self.fusion().contributions(parts)
        layers = {name: added[name] + added.get(distance_of(name), 0.0) for name in self.early}
        if self.head_input is not None:  # nothing if it is too wide for a distance
            zeros = torch.zeros_like(added[LOGITS])
            layers[self.head_input] = added.get(ALIGNMENT, zeros) + added.get(DISTANCE, zeros)
        return {**layers, LOGITS: added[LOGITS]}

    def neurons(self, readings: Mapping[str, Reading]) -> dict[str, Tensor]:
        """Log coverage of every neuron by layer, `[batch, neurons]` each; 0 is fully covered."""
        return {n: self.evidence[n].coverage.neurons(readings[n].activation) for n in self.early}

    # -- shards and files ------------------------------------------------------------------

    def _all_evidence(self) -> dict[str, Union[LayerEvidence, HeadEvidence]]:
        head = {} if self.head is None or self.head_input is None else {self.head_input: self.head}
        return {**self.evidence, **head}

    def sums(self) -> dict[str, Tensor]:
        """Counts and moments by layer, and the numbers of samples with NaN or Inf."""
        found = dict(self.state)
        for layer, evidence in self._all_evidence().items():
            found.update({f"{layer}/{name}": tensor for name, tensor in evidence.sums().items()})
        return found

    def set_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Replace counts and moments by sums over shards; calibrate again afterwards."""
        own = {layer: _with_prefix(f"{layer}/", sums) for layer in self.layers}
        self.evidence = {
            layer: LayerEvidence.of_sums(own[layer]) for layer in self.early if own[layer]
        }
        head = own.get(self.head_input or "")
        self.head = HeadEvidence.of_sums(head) if head else None
        self.state = {name: tensor for name, tensor in sums.items() if name.startswith("broken/")}
        self._fusion, self._held_out_scores = None, None

    def kept_samples(self) -> dict[str, Tensor]:
        """The held-out samples."""
        return self.held_out.tensors

    def set_kept_samples(self, shards: Sequence[Mapping[str, Tensor]]) -> None:
        """Join the held-out samples of several shards.

        The order of shards does not matter. The result is that of one pass if each sample had its
        index (`start_at`). Once calibrated, indices make no difference.
        """
        self.held_out, self._before = HeldOut(), 0
        for samples in shards:
            self._count(self.held_out.merge(HeldOut.restore(samples, self.layers).tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Evidence by layer, the parts of the calibration samples, and the held-out samples."""
        found = dict(self.held_out.tensors)
        for layer, evidence in self._all_evidence().items():
            found.update({f"layer/{layer}/{n}": tensor for n, tensor in evidence.tensors().items()})
        parts = {} if self._fusion is None else self._fusion.calibration
        return {**found, **{f"{_CALIBRATION}{name}": part for name, part in parts.items()}}

    def settings(self) -> dict[str, Any]:
        """The settings of the rule and of its layers."""
        return {
            **super().settings(),
            "version": self._version,
            "logit_weight": self.logit_weight,
            "softness": self.softness,
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NACPlus:
        """Restore a rule from its `settings` and `tensors`."""
        layers = stored_layers(settings, LayoutConfig)
        rule = cls(layers, logit_weight=settings["logit_weight"], softness=settings["softness"])
        rule._version = settings.get("version", 1)
        for name in rule.early:
            rule.evidence[name] = LayerEvidence.restore(_with_prefix(f"layer/{name}/", tensors))
        head = _with_prefix(f"layer/{rule.head_input}/", tensors)
        rule.head = HeadEvidence.restore(head) if rule.head_input is not None and head else None
        if rule.head is not None and rule.head.n_samples != rule.evidence[rule.early[0]].n_samples:
            raise NACError("the input of the head is of another number of samples than the layers.")
        parts = _with_prefix(_CALIBRATION, tensors)
        if parts:
            rule._fusion = rule._new_fusion(parts)
        rule.held_out = HeldOut.restore(tensors, layers)
        return rule


class NACPlus1(NACPlus):
    """Version 1 of NAC+: coverage and distance of early layers, and GEN.

    With `layers="auto"`, the input of the head is not read.
    """

    name, title = "nac_plus_1", RULES["nac_plus_1"][0]
    reads_head_input = False


def distance_of(layer: str) -> str:
    """The name of the part of the score for the distance of a layer."""
    return f"{layer} (distance)"


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}


def gen(logits: Tensor) -> Tensor:
    """GEN (Liu et al., CVPR 2023), the negative generalized entropy, float64 `[batch]`."""
    p = double(logits).softmax(dim=1)
    p = p.topk(min(_TOP, p.shape[1]), dim=1).values.clamp(_CLIP, 1 - _CLIP)
    return -(p**_GAMMA * (1 - p) ** _GAMMA).sum(dim=1)


class HeldOut:
    """A few training samples that NAC+ is not fitted on, to calibrate on without other data.

    Which samples are held out depends only on their indices in the training set, and they are kept
    in that order, so shards and batches may be merged in any order:

    - A sample is a candidate if its index ends in 9, that is, every tenth one is.
    - At most `MAX_SAMPLES` candidates are held out: those whose index has the smallest hash. Of a
      larger training set this is a uniform choice; of a small one, all candidates are held out.

    Candidates that are not held out, or no longer, are counted like any other sample. As soon as
    there is calibration data, so are all candidates. Samples with the same index, from shards that
    both began at 0, are ordered by their readings.

    Attributes:
        tensors: their readings and indices, for a file; empty if there are none.
    """

    def __init__(self, tensors: Optional[Mapping[str, Tensor]] = None) -> None:
        self.tensors = dict(tensors or {})

    @property
    def readings(self) -> Optional[BatchReadings]:
        """Their readings; None if there are none."""
        return _readings(self.tensors) if self.tensors else None

    @property
    def n_samples(self) -> int:
        """How many there are."""
        return len(self.tensors[_INDEX]) if self.tensors else 0

    def take(self, batch: BatchReadings, start: int) -> list[BatchReadings]:
        """Hold out samples of a batch.

        Args:
            batch: readings of training samples.
            start: the index of the first one in the training set; the others follow it.

        Returns:
            The readings of the samples to count now.
        """
        index = torch.arange(start, start + batch.logits.shape[0])
        candidates = index % _EVERY == _EVERY - 1
        if self.n_samples >= MAX_SAMPLES:
            candidates &= torch.from_numpy(_hashed(index) <= _hashed(self.tensors[_INDEX]).max())
        if not candidates.any():
            return [batch]
        named = {f"{_ACTIVATION}{name}": reading.activation for name, reading in batch.items()}
        samples = {**named, _LOGITS: batch.logits, _INDEX: index}
        # rows by their numbers: a GPU cannot select by booleans without waiting
        dropped = self.merge(_rows(samples, candidates.nonzero()[:, 0]))
        return [_readings(_rows(samples, (~candidates).nonzero()[:, 0])), *dropped]

    def merge(self, more: Mapping[str, Tensor]) -> list[BatchReadings]:
        """Add the `tensors` of another `HeldOut`; returns the readings of samples to count now."""
        if not more:
            return []
        # on the device of the new samples
        samples = {
            name: torch.cat([kept.to(more[name].device), more[name].to(kept.dtype)])
            for name, kept in self.tensors.items()
        } or dict(more)
        order = _order(samples)
        dropped = []
        if len(order) > MAX_SAMPLES:
            rank = np.argsort(_hashed(samples[_INDEX][order]), kind="stable")
            keep = np.zeros(len(order), dtype=bool)
            keep[rank[:MAX_SAMPLES]] = True
            dropped = [_readings(_rows(samples, torch.from_numpy(order[~keep])))]
            order = order[keep]
        self.tensors = _rows(samples, torch.from_numpy(order))
        return dropped

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], layers: Mapping[str, object]) -> HeldOut:
        """Restore from `tensors`. Early files have no indices: they held out the first ones."""
        if _LOGITS not in tensors:
            return cls()
        names = [*(f"{_ACTIVATION}{name}" for name in layers), _LOGITS]
        first = _EVERY * torch.arange(len(tensors[_LOGITS])) + _EVERY - 1
        index = tensors.get(_INDEX, first)
        return cls({**{name: tensors[name] for name in names}, _INDEX: index})


def _readings(samples: Mapping[str, Tensor]) -> BatchReadings:
    by_layer = {
        name[len(_ACTIVATION) :]: Reading(tensor)
        for name, tensor in samples.items()
        if name.startswith(_ACTIVATION)
    }
    return BatchReadings(samples[_LOGITS], by_layer)


def _rows(samples: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Some of the samples, by whole numbers `[rows]` on the CPU."""
    return {n: tensor[rows.to(tensor.device, non_blocking=True)] for n, tensor in samples.items()}


def _order(samples: Mapping[str, Tensor]) -> np.ndarray:
    """The order of samples: by index, then by their readings, int64 `[samples]`."""
    index = samples[_INDEX].numpy()
    if len(np.unique(index)) == len(index):
        return np.argsort(index)
    names = [_LOGITS, *sorted(name for name in samples if name.startswith(_ACTIVATION))]
    raw = [samples[name].contiguous().view(torch.uint8).cpu() for name in names]
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=8).digest()
        for row in torch.cat(raw, dim=1).numpy()
    ]
    return np.lexsort((np.frombuffer(b"".join(digests), dtype="<u8"), index))


def _hashed(index: Tensor) -> np.ndarray:
    """Hash whole numbers `[n]` to uint64 `[n]`, one to one: the finalizer of SplitMix64."""
    x = index.numpy().astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
