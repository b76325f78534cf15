"""Search the settings of reference NAC: what to try, strategies, and the ranking they find."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import torch
import yaml

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.core.layer_config import LayerConfig, refuse_unknown
from nac_openood.core.metrics import joined_auroc, joined_fpr_at, joined_fpr_in_at
from nac_openood.detector.batches import tqdm
from nac_openood.detector.config import NACConfig, Sweep, check_sweep
from nac_openood.detector.display import described
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.advise import Advice
from nac_openood.search.loaders import SURROGATE_LABEL
from nac_openood.search.tables import OBJECTIVES, JointCandidates, check_readings, score_layer
from nac_openood.tensor_files import versions

#: The paper's space. States of deep layers vary in a smaller range and want a steeper sigmoid.
#: Full weight comes first: of equally good candidates the first one is chosen.
PAPER_SPACE: Mapping[str, tuple[Any, ...]] = {
    "n_bins": (50, 500, 1000),
    "full_count": (5, 10, 50, 100, 500, 5000),
    "steepness_deepest": (50.0, 100.0, 300.0, 1000.0, 3000.0),
    "steepness": (0.001, 0.005, 0.01, 0.1, 1.0, 10.0),
    "weight": (1.0, 0.8, 0.6, 0.4, 0.2),
}
#: Joint candidates that are evaluated at once.
_BLOCK = 4096
#: A larger grid would run for more than an hour, and is probably a mistake.
GRID_LIMIT = 10**8
#: The probability with which `random` leaves out a layer, if it may.
_LEFT_OUT = 0.25
#: The metrics of a `Candidate`, in its order.
_METRICS = (joined_auroc, joined_fpr_at, joined_fpr_in_at)


class Candidate(NamedTuple):
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
        left_out = {"layers", "objective"} if self.objective is None else {"layers"}
        return {name: value for name, value in self._asdict().items() if name not in left_out}


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

    def __repr__(self) -> str:
        found, guard = self.best, self.best.guard
        against = "surrogates" if self.surrogate else "OOD validation"
        lines = {
            "AUROC": f"{100 * found.auroc:.2f} % of ID against {against}",
            "FPR@95": f"{100 * found.fpr95:.2f} % (OOD found), "
            f"{100 * found.fpr95_in:.2f} % (ID kept)",
            "guard": None if guard is None else f"{100 * guard:.2f} %, best is 50 %",
            "fitted": f"on {self.n_samples:,} samples",
            "tried": f"{self.evaluated:,} settings, {self.strategy}, {self.seconds:.1f} s",
            **{name: str(config) for name, config in found.layers.items()},
        }
        return described("SearchResult: the best settings of NAC", lines)

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
    refuse_unknown([objective], OBJECTIVES, "objective")
    refuse_unknown([strategy], STRATEGIES, "strategy")
    points = layer_candidates(
        layers,
        paper_space(list(layers)) if sweep is None else sweep,
        leave_out=strategy != "grid" if leave_out is None else leave_out,
    )
    scored = {"ID validation": id_val, "OOD validation": ood_val}
    if held_out is not None:
        scored["held-out training"] = held_out
    check_readings(fit, scored, points)
    auto = None if held_out is None else default_guard(held_out.n_samples, id_val.n_samples)
    limit = auto if guard == "auto" else guard
    if limit is not None and held_out is None:
        raise NACError(
            f"guard={guard} needs `held_out`: readings of training samples that are not in the "
            "fitting subset. Pass them, or turn the guard off."
        )
    if limit is not None and (isinstance(limit, str) or not 0 <= limit <= 0.5):
        raise NACError(f"`guard` must be between 0 and 0.5, or 'auto' or None; got {guard!r}.")
    hidden = None if progress is None else not progress
    bar = tqdm(desc="NAC search", unit="point", leave=False, disable=hidden)
    with torch.no_grad(), bar:
        joint = JointCandidates(
            [score_layer(*layer, fit, list(scored.values())) for layer in points.items()],
            [readings.n_samples for readings in scored.values()],
            objective=OBJECTIVES[objective],
            guard=limit,
            top=top,
            progress=bar.update,
        )
        STRATEGIES[strategy](joint, budget or Budget(), np.random.default_rng(seed))
        return SearchResult(
            ranking=tuple(_ranking(joint, limit)),
            landscape=tuple(_landscape(joint)),
            strategy=strategy,
            objective=objective,
            guard=limit,
            guard_limit=auto,
            surrogate=surrogate,
            evaluated=joint.evaluated,
            n_samples=fit.n_samples,
            seconds=time.perf_counter() - began,
        )


def default_guard(n_held: int, n_id: int) -> float:
    """The default of `guard`: 0.05, or four standard errors of a chance AUROC for small sets.

    See benchmarks/notes/search.md for the measurements behind it.
    """
    return max(0.05, 4 * math.sqrt((n_held + n_id + 1) / (12 * n_held * n_id)))


def _ranking(joint: JointCandidates, guard: Optional[float]) -> Iterator[Candidate]:
    if not len(joint.choice):
        raise NACError(
            f"no candidate is left of the {joint.evaluated} that were tried: their layer weights "
            f"are all zero, or guard={guard} excludes them. Try weights above 0, a larger `guard`, "
            "or fewer bins and a larger full_count, which overfit less."
        )
    choice = torch.from_numpy(joint.choice)
    numbers = [joint.values, *(joint.measure(choice, metric) for metric in _METRICS)]
    for rows, row in zip(joint.choice, _rows(*numbers, joint.guard(choice))):
        chosen = {table.name: table.points[k] for table, k in zip(joint.tables, rows)}
        yield Candidate({name: point for name, point in chosen.items() if point.weight}, *row)


def _landscape(joint: JointCandidates) -> Iterator[Candidate]:
    for layer, table in enumerate(joint.tables):
        numbers = [metric(joint.val[layer], joint.n_id) for metric in _METRICS]
        for point, row in zip(table.alone, _rows(*numbers, joint.guard_alone(layer))):
            yield Candidate({table.name: point}, None, *row)


def _rows(first: Any, *others: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of columns of numbers; a column that is None has None in every row."""
    return zip(*([None] * len(first) if c is None else c.tolist() for c in (first, *others)))


# -- what to try ----------------------------------------------------------------------------


def paper_space(
    layers: Sequence[str], *, weights: bool = True
) -> dict[str, dict[str, tuple[Any, ...]]]:
    """The paper's space as a sweep.

    The deepest layer takes the steep list and the others take the gentle one. The second deepest
    takes both, because the paper's own settings for it (ResNet `layer3`) come from either.

    Args:
        layers: layer names, deepest first.
        weights: whether to search the weights, too; otherwise all layers have weight 1.
    """
    gentle, steep = PAPER_SPACE["steepness"], PAPER_SPACE["steepness_deepest"]
    by_depth = [steep, gentle + steep]
    return {
        name: {
            "n_bins": PAPER_SPACE["n_bins"],
            "full_count": PAPER_SPACE["full_count"],
            "steepness": by_depth[depth] if depth < len(by_depth) else gentle,
            **({"weight": PAPER_SPACE["weight"]} if weights else {}),
        }
        for depth, name in enumerate(layers)
    }


def layer_candidates(
    layers: Mapping[str, LayerConfig], sweep: Sweep, *, leave_out: bool = False
) -> dict[str, tuple[LayerConfig, ...]]:
    """Every layer's candidates, in the order of OpenOOD's sweep: the first list changes fastest.

    Args:
        layers: the settings by layer name; the sweep replaces what it lists.
        sweep: the values to try; a layer without any has a single candidate.
        leave_out: whether to append a candidate of weight 0, which leaves out the layer.
    """
    check_sweep(layers, sweep)
    found = {}
    for name, base in layers.items():
        points = [dataclasses.replace(base, **point) for point in grid_points(sweep.get(name, {}))]
        if leave_out and len(layers) > 1:
            points.append(dataclasses.replace(points[0], weight=0.0))
        found[name] = tuple(points)
    return found


def grid_points(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of values, in OpenOOD's order: the first name changes fastest."""
    names = list(lists)
    reversed_points = itertools.product(*(lists[name] for name in reversed(names)))
    return [dict(zip(names, reversed(values))) for values in reversed_points]


# -- strategies: which joint candidates to evaluate -----------------------------------------


class Budget(NamedTuple):
    """How much to try.

    Args:
        points: joint candidates that `random` tries.
        seconds: `random` stops here even if `points` are left. How far it gets then depends on
            the machine; the order of what it tries does not.
        restarts: starting points of `layerwise`.
    """

    points: int = 10_000
    seconds: Optional[float] = None
    restarts: int = 8


def grid(joint: JointCandidates, budget: Budget, rng: np.random.Generator) -> None:
    """Try all joint candidates, which finds the exact optimum."""
    n_points = math.prod(joint.sizes)
    if n_points > GRID_LIMIT:
        raise NACError(
            f"this grid has {n_points} joint points, more than {GRID_LIMIT}: it would run for "
            "hours. Give shorter lists, or use strategy='layerwise' or 'random'."
        )
    for start in range(0, n_points, _BLOCK):
        index = np.arange(start, min(start + _BLOCK, n_points))
        joint.evaluate(np.stack(np.unravel_index(index, joint.sizes), axis=1))


def layerwise(joint: JointCandidates, budget: Budget, rng: np.random.Generator) -> None:
    """Coordinate ascent: one layer at a time takes its best candidate, from several starts.

    The starts are every layer at the candidate that is best alone, each such layer by itself
    where layers may be left out, and random points.
    """
    for start in itertools.islice(_starts(joint, rng), budget.restarts):
        _ascend(joint, start)


def _starts(joint: JointCandidates, rng: np.random.Generator) -> Iterator[np.ndarray]:
    alone = []
    for layer, table in enumerate(joint.tables):
        values = joint.objective(joint.val[layer], joint.n_id)[table.row].cpu().numpy()
        weights = np.array([point.weight for point in table.points])
        alone.append(int(np.where(weights > 0, values, -1.0).argmax()))
    yield np.array(alone)
    if all(k is not None for k in joint.left_out):
        for layer, best in enumerate(alone):
            start = np.array(joint.left_out)
            start[layer] = best
            yield start
    while True:
        yield _draw(joint, rng, 1)[0]


def _ascend(joint: JointCandidates, start: np.ndarray) -> None:
    """Improve `start` layer by layer until no layer can be improved."""
    best, value = start, float(joint.evaluate(start[None])[0])
    layer, unchanged = 0, 0
    while unchanged < len(start):
        options = np.repeat(best[None], joint.sizes[layer], axis=0)
        options[:, layer] = np.arange(len(options))
        values = joint.evaluate(options, floor=value)
        if values.max() > value:
            best, value, unchanged = options[values.argmax()], float(values.max()), 0
        unchanged += 1
        layer = (layer + 1) % len(start)


def random(joint: JointCandidates, budget: Budget, rng: np.random.Generator) -> None:
    """Try independent random points; the same seed tries the same points in the same order."""
    deadline = math.inf if budget.seconds is None else time.monotonic() + budget.seconds
    for start in range(0, budget.points, _BLOCK):
        # always a whole block, so that a larger budget begins with the same points
        drawn = _draw(joint, rng, _BLOCK)
        joint.evaluate(drawn[: budget.points - start])
        if time.monotonic() >= deadline:
            break


def _draw(joint: JointCandidates, rng: np.random.Generator, n: int) -> np.ndarray:
    columns = []
    for size, out in zip(joint.sizes, joint.left_out):
        column = rng.integers(0, size, n)
        if out is not None:
            column[rng.random(n) < _LEFT_OUT] = out
        columns.append(column)
    return np.stack(columns, axis=1)


STRATEGIES = {"grid": grid, "layerwise": layerwise, "random": random}


# -- the result as files -------------------------------------------------------------------


def write_config(path: Path, result: SearchResult, about: Mapping[str, Any]) -> None:
    """Write the best settings as YAML for `read_config` and OpenOOD, with comments."""
    best = result.best
    against = about.get("ood_val", {}).get("name", "the given OOD validation set")
    guard = "not measured" if best.guard is None else f"{best.guard:.2%}"
    comments = [
        f"Chosen by nac_openood {__version__} search: {result.strategy}, {result.objective}, "
        f"{result.evaluated} joint points.",
        f"Validation against {against}: AUROC {best.auroc:.2%}, FPR@95 {best.fpr95:.2%} (OOD "
        f"found) and {best.fpr95_in:.2%} (ID kept), guard {guard} (near 50% is good).",
    ]
    if result.surrogate:
        comments.append(f"Note: {SURROGATE_LABEL}.")
    body = yaml.safe_dump(result.to_config().to_dict(), sort_keys=False)
    files.write_text(path, "".join(f"# {line}\n" for line in comments) + body)


def write_report(
    path: Path,
    result: SearchResult,
    about: Mapping[str, Any],
    settings: Mapping[str, Any],
    advice: Optional[Advice] = None,
) -> None:
    """Write ranking, landscape, guard values, settings, versions and advice as JSON."""
    landscape = [{"layer": p.layer, **p.config.to_dict(), **p.numbers()} for p in result.landscape]
    for point in landscape:
        del point["weight"]  # makes no difference for a layer by itself
    document = {
        "format": 1,
        "warning": SURROGATE_LABEL if result.surrogate else None,
        "settings": dict(settings),
        "data": dict(about),
        "versions": versions(),
        "evaluated": result.evaluated,
        "seconds": round(result.seconds, 3),
        "guard": result.guard,
        "advice": None if advice is None else advice.to_dict(),
        "ranking": [
            {"layers": {n: c.to_dict() for n, c in entry.layers.items()}, **entry.numbers()}
            for entry in result.ranking
        ],
        "landscape": landscape,
    }
    files.write_json(path, document)
