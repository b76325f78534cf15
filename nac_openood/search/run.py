"""The search of reference NAC, from readings to result."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Mapping, Optional, Union

import numpy as np
import torch

from nac_openood.core.layer_config import LayerConfig, whole_number
from nac_openood.core.metrics import joined_auroc, joined_fpr_at, joined_fpr_in_at
from nac_openood.detector.config import Sweep
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.progress import tqdm
from nac_openood.search.joint import Joint, objective_named
from nac_openood.search.leaderboard import Leaderboard
from nac_openood.search.result import Candidate, LayerPoint, SearchResult
from nac_openood.search.space import layer_candidates, paper_space
from nac_openood.search.strategies import STRATEGIES, Budget
from nac_openood.search.tables import SearchData, score_layer

#: In the order of `LayerPoint` and `Candidate`.
_METRICS = (joined_auroc, joined_fpr_at, joined_fpr_in_at)


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
        guard: exclude candidates that tell `held_out` from `id_val` with an AUROC further than
            this from 0.5; "auto" takes `default_guard` where `held_out` is given; None reports
            the AUROC only.
        leave_out: whether layers may be left out; None means no for `grid`, which tries exactly
            the lists, and yes for the other strategies.
        surrogate: whether `ood_val` are surrogates made from ID images; the result says so.
        top: how many candidates to rank.
        seed: random seed.
        budget: how much to try.
        progress: a progress bar; None shows one on a terminal.
    """
    began = time.perf_counter()
    metric = objective_named(objective)
    if strategy not in STRATEGIES:
        raise NACError(f"unknown strategy '{strategy}'; expected one of {list(STRATEGIES)}.")
    limit = _guard_limit(guard, held_out, id_val)
    lists = paper_space(list(layers)) if sweep is None else sweep
    points = layer_candidates(
        layers, lists, leave_out=strategy != "grid" if leave_out is None else leave_out
    )
    scored = {"ID validation": id_val, "OOD validation": ood_val}
    samples = SearchData(
        fit, scored if held_out is None else {**scored, "held-out training": held_out}
    )
    samples.check(points)
    hidden = None if progress is None else not progress
    bar = tqdm(desc="NAC search", unit="point", leave=False, disable=hidden)
    with torch.no_grad(), bar:
        tables = [score_layer(name, options, samples) for name, options in points.items()]
        joint = Joint(tables, id_val.n_samples, ood_val.n_samples)
        board = Leaderboard(joint, metric, limit, top, tell=bar.update)
        rng = np.random.default_rng(whole_number("seed", seed, 0, 2**64 - 1))
        STRATEGIES[strategy](board, budget or Budget(), rng)
        return SearchResult(
            ranking=_ranking(board, limit),
            landscape=_landscape(joint),
            strategy=strategy,
            objective=objective,
            guard=limit,
            guard_limit=_guard_limit("auto", held_out, id_val),
            surrogate=surrogate,
            evaluated=board.evaluated,
            n_samples=fit.n_samples,
            seconds=time.perf_counter() - began,
        )


def default_guard(n_held: int, n_id: int) -> float:
    """0.05, or where sets are too small for that, four standard errors of a chance AUROC.

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
        # an empty set is refused later, by name
        return default_guard(max(1, held_out.n_samples), max(1, id_val.n_samples))
    if isinstance(guard, str) or not 0 <= guard <= 0.5:
        raise NACError(
            "`guard` must be a distance from 0.5, between 0 and 0.5, or 'auto' or None; got "
            f"{guard!r}."
        )
    return float(guard)


def _ranking(board: Leaderboard, guard: Optional[float]) -> tuple[Candidate, ...]:
    if not len(board.choice):
        raise NACError(
            f"no candidate is left: guard={guard} excludes all {board.evaluated} that were tried. "
            "Raise `guard`, or try fewer bins or a larger full_count, which overfit less."
        )
    choice = torch.from_numpy(board.choice)
    joint = board.joint
    numbers = [joint.evaluate(choice, metric).tolist() for metric in _METRICS]
    guards = _optional(joint.guard(choice), len(choice))
    return tuple(
        Candidate(joint.configs(row), value, *found)
        for row, value, *found in zip(
            board.choice.tolist(), board.values.tolist(), *numbers, guards
        )
    )


def _landscape(joint: Joint) -> tuple[LayerPoint, ...]:
    found = []
    for layer, table in enumerate(joint.tables):
        first = dict(reversed([*zip(table.row.tolist(), table.points)]))
        numbers = [joint.alone(layer, metric).tolist() for metric in _METRICS]
        guards = _optional(joint.alone_guard(layer), len(numbers[0]))
        found += [
            # the weight makes no difference to a layer by itself
            LayerPoint(table.name, dataclasses.replace(first[row], weight=1.0), *values)
            for row, values in enumerate(zip(*numbers, guards))
        ]
    return tuple(found)


def _optional(values: Optional[torch.Tensor], n: int) -> list[Optional[float]]:
    return [None] * n if values is None else list(values.tolist())
