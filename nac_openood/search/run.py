"""Search the settings of reference NAC, from readings to a ranking."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

import numpy as np
import torch

from nac_openood.core.layer_config import LayerConfig, whole_number
from nac_openood.core.metrics import joined_auroc, joined_fpr_at, joined_fpr_in_at
from nac_openood.detector.batches import tqdm
from nac_openood.detector.config import NACConfig, Sweep
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.space import STRATEGIES, Budget, layer_candidates, paper_space
from nac_openood.search.tables import OBJECTIVES, JointCandidates, SearchData, score_layer

#: In the order of `Candidate`.
_METRICS = (joined_auroc, joined_fpr_at, joined_fpr_in_at)


@dataclass(frozen=True)
class Candidate:
    """Settings and their results: of several layers together, or of one layer by itself.

    Args:
        layers: settings by layer, without layers that are left out.
        objective: value of the objective; None for a layer by itself.
        auroc: ID against OOD validation.
        fpr95: OpenOOD's FPR@95: ID samples rejected when 95 % of the OOD samples are found.
        fpr95_in: the FPR@95 of most papers: OOD samples accepted when 95 % of the ID samples are
            kept.
        guard: AUROC of held-out training against ID validation, near 0.5 without overfitting;
            None without held-out readings.
    """

    layers: Mapping[str, LayerConfig]
    objective: Optional[float]
    auroc: float
    fpr95: float
    fpr95_in: float
    guard: Optional[float]

    @property
    def layer(self) -> str:
        """The name of the layer, of a candidate of one layer."""
        return next(iter(self.layers))

    @property
    def config(self) -> LayerConfig:
        """The settings of that layer."""
        return self.layers[self.layer]

    def numbers(self) -> dict[str, Optional[float]]:
        """Everything but the settings, as JSON values."""
        names = ("objective", "auroc", "fpr95", "fpr95_in", "guard")
        found = {name: getattr(self, name) for name in names}
        return {n: value for n, value in found.items() if n != "objective" or value is not None}


@dataclass(frozen=True)
class SearchResult:
    """The ranking of a search, and how it was found.

    Args:
        ranking: the best joint candidates, best first.
        landscape: every layer candidate by itself, in order.
        strategy: name of the strategy.
        objective: name of the objective.
        guard: candidates whose guard AUROC is further than this from 0.5 were excluded; None
            excludes nothing.
        guard_limit: what `guard="auto"` would exclude; None without held-out readings.
        surrogate: whether the OOD validation set was made from in-distribution images.
        evaluated: number of joint candidates that were evaluated.
        n_samples: number of samples that the candidates were fitted on.
        seconds: duration of the search.
    """

    ranking: tuple[Candidate, ...]
    landscape: tuple[Candidate, ...]
    strategy: str
    objective: str
    guard: Optional[float]
    guard_limit: Optional[float]
    surrogate: bool
    evaluated: int
    n_samples: int
    seconds: float = field(compare=False, default=0.0)

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.ranking[0]

    @property
    def overfits(self) -> bool:
        """Whether the best candidate separates held-out training from ID validation samples."""
        value, limit = self.best.guard, self.guard_limit
        return value is not None and limit is not None and abs(value - 0.5) > limit

    @property
    def layers(self) -> Mapping[str, LayerConfig]:
        """The settings of the best candidate, as `NACDetector` takes them."""
        return self.best.layers

    def to_config(self) -> NACConfig:
        """The best candidate as a config without a search."""
        return NACConfig(layers=dict(self.layers), n_samples=self.n_samples)


def search(
    fit: Readings,
    id_val: Readings,
    ood_val: Readings,
    *,
    layers: Mapping[str, LayerConfig],
    sweep: Optional[Sweep] = None,
    held_out: Optional[Readings] = None,
    strategy: str = "layerwise",
    objective: str = "auroc",
    guard: Union[float, str, None] = "auto",
    leave_out: Optional[bool] = None,
    surrogate: bool = False,
    top: int = 10,
    seed: int = 0,
    budget: Optional[Budget] = None,
    progress: Optional[bool] = None,
) -> SearchResult:
    """Find the best settings of every layer, without the network.

    Args:
        fit: readings of the fitting subset of the training split.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD validation samples.
        layers: base settings by layer name, deepest first; the sweep replaces what it lists. The
            names must be in the readings.
        sweep: layer -> setting -> values to try; None is the paper's space.
        held_out: readings of training samples that are not in `fit`, for the guard.
        strategy: one of `STRATEGIES`.
        objective: one of `OBJECTIVES`.
        guard: exclude candidates that separate `held_out` from `id_val` with an AUROC further than
            this from 0.5; "auto" takes `default_guard` where `held_out` is given; None reports
            the AUROC only.
        leave_out: whether layers may be left out; None means no for `grid`, which tries exactly
            the lists, and yes for the other strategies.
        surrogate: whether `ood_val` are surrogates made from ID images; the result says so.
        top: how many candidates to rank.
        seed: random seed.
        budget: how much to try.
        progress: whether to show a progress bar; None shows one on a terminal.
    """
    began = time.perf_counter()
    if objective not in OBJECTIVES:
        raise NACError(f"unknown objective '{objective}'; expected one of {list(OBJECTIVES)}.")
    if strategy not in STRATEGIES:
        raise NACError(f"unknown strategy '{strategy}'; expected one of {list(STRATEGIES)}.")
    limit = _guard_limit(guard, held_out, id_val)
    points = layer_candidates(
        layers,
        paper_space(list(layers)) if sweep is None else sweep,
        leave_out=strategy != "grid" if leave_out is None else leave_out,
    )
    scored = {"ID validation": id_val, "OOD validation": ood_val}
    if held_out is not None:
        scored["held-out training"] = held_out
    samples = SearchData(fit, scored)
    samples.check(points)
    hidden = None if progress is None else not progress
    bar = tqdm(desc="NAC search", unit="point", leave=False, disable=hidden)
    with torch.no_grad(), bar:
        joint = JointCandidates(
            [score_layer(name, options, samples) for name, options in points.items()],
            id_val.n_samples,
            ood_val.n_samples,
            objective=OBJECTIVES[objective],
            guard=limit,
            top=top,
            progress=bar.update,
        )
        rng = np.random.default_rng(whole_number("seed", seed, 0, 2**64 - 1))
        STRATEGIES[strategy](joint, budget or Budget(), rng)
        return SearchResult(
            ranking=_ranking(joint, limit),
            landscape=_landscape(joint),
            strategy=strategy,
            objective=objective,
            guard=limit,
            guard_limit=_guard_limit("auto", held_out, id_val),
            surrogate=surrogate,
            evaluated=joint.evaluated,
            n_samples=fit.n_samples,
            seconds=time.perf_counter() - began,
        )


def default_guard(n_held: int, n_id: int) -> float:
    """The default of `guard`: 0.05, or four standard errors of a chance AUROC for small sets.

    See docs/search.md for the measurements behind it.
    """
    return max(0.05, 4 * math.sqrt((n_held + n_id + 1) / (12 * n_held * n_id)))


def _guard_limit(
    guard: Union[float, str, None], held_out: Optional[Readings], id_val: Readings
) -> Optional[float]:
    if guard is None or (guard == "auto" and held_out is None):
        return None
    if held_out is None:
        raise NACError(
            f"guard={guard} needs `held_out`: readings of training samples that are not in the "
            "fitting subset. Pass them, or turn the guard off."
        )
    if guard == "auto":
        # an empty set is refused later, with its name
        return default_guard(max(1, held_out.n_samples), max(1, id_val.n_samples))
    if isinstance(guard, str) or not 0 <= guard <= 0.5:
        raise NACError(
            "`guard` must be a distance from 0.5, between 0 and 0.5, or 'auto' or None; got "
            f"{guard!r}."
        )
    return float(guard)


def _ranking(joint: JointCandidates, guard: Optional[float]) -> tuple[Candidate, ...]:
    if not len(joint.choice):
        raise NACError(
            f"no candidate is left: guard={guard} excludes all {joint.evaluated} that were tried. "
            "Raise `guard`, or try fewer bins or a larger full_count, which overfit less."
        )
    choice = torch.from_numpy(joint.choice)
    columns = [joint.values, *(joint.measure(choice, metric) for metric in _METRICS)]
    layers = [joint.configs(row) for row in joint.choice.tolist()]
    return _candidates(layers, columns, joint.guard(choice))


def _landscape(joint: JointCandidates) -> tuple[Candidate, ...]:
    found: tuple[Candidate, ...] = ()
    for layer, table in enumerate(joint.tables):
        first = dict(reversed([*zip(table.row.tolist(), table.points)]))
        # the weight makes no difference to a layer by itself
        layers = [
            {table.name: dataclasses.replace(first[row], weight=1.0)} for row in sorted(first)
        ]
        columns = [None, *(joint.alone(layer, metric) for metric in _METRICS)]
        found += _candidates(layers, columns, joint.alone_guard(layer))
    return found


def _candidates(layers: list[Any], columns: list[Any], guard: Any) -> tuple[Candidate, ...]:
    numbers = [
        [None] * len(layers) if column is None else column.tolist() for column in (*columns, guard)
    ]
    return tuple(Candidate(*row) for row in zip(layers, *numbers))
