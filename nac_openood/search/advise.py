"""Is a fitted detector any good on this network, and what could be used instead?

A detector is compared with MSP, energy, KNN and (if it is reference NAC) NAC+ on OOD validation
data. Without such data, surrogates of ID validation images take its place. They show that settings
do not suit a network. They do not show how well a method does on real OOD data, and every sentence
says so.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Iterable, Mapping, Optional, Sequence

import torch
from torch import Tensor

from nac_openood.core.metrics import Aurocs, auroc
from nac_openood.core.rule import Rule
from nac_openood.detector.batches import batches
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError, NotFittedError
from nac_openood.network.inputs import Inputs, shapes
from nac_openood.network.random_state import kept_random_state
from nac_openood.search.advice import NAC_PLUS_TITLE, REAL, SURROGATE, Advice, Compared, losing
from nac_openood.search.alternatives import Known, alternatives, reader_for
from nac_openood.search.split import few_of
from nac_openood.search.surrogate import SurrogateLoader, can_distort

#: Samples of each kind that are compared, at least and at most, and training samples.
_LEAST, _MOST, _TRAIN = 20, 1000, 1000
#: A part of the score tells nothing if its AUROC is less than this and either nearly all ID samples
#: are alike, or this share of all samples is.
_CHANCE, _SAME = 0.55, 0.9


def advise(
    detector: NACDetector,
    id_val: Iterable[Any],
    *,
    train: Optional[Iterable[Any]] = None,
    ood_val: Optional[Iterable[Any]] = None,
    n_samples: int = 500,
    seed: int = 0,
    progress: Optional[bool] = None,
) -> Advice:
    """Compare a fitted detector with simpler methods, and say what is wrong with its settings.

    Examples:
        >>> advice = nac_openood.advise(det, val_loader, train=train_loader)
        >>> print(advice)
        >>> advice.warnings

    Args:
        detector: a fitted detector of either rule.
        id_val: batches of ID validation data, which nothing was fitted on.
        train: batches of training data, for KNN and NAC+, of which 1,000 samples are read; None
            leaves these two out.
        ood_val: batches of OOD validation data (never test data); None makes surrogates of the
            images of `id_val`. Without either, e.g. for tables and text, nothing is compared.
        n_samples: how many samples of each validation set to look at.
        seed: random seed of the surrogates.
        progress: whether to show progress bars; None shows them on a terminal.
    """
    began = time.perf_counter()
    rule = detector.rule_
    if rule is None:
        raise NotFittedError("this NACDetector is not fitted: call fit before you ask for advice.")
    with kept_random_state():
        inside = few_of(id_val, n_samples)
        sample = _first(inside)
        if ood_val is None and not can_distort(sample):
            return _not_compared(rule, sample, time.perf_counter() - began)
        outside = (
            SurrogateLoader(inside, seed=seed) if ood_val is None else few_of(ood_val, n_samples)
        )
        own = _read(detector, inside, outside, progress)
        reader, known = (None, Known()) if train is None else reader_for(detector, sample)
        pair, fit = own, None
        if reader is not None and train is not None:
            pair = _read(reader, inside, outside, progress)
            fit = reader.read_loader(few_of(train, _TRAIN), progress=progress)
    found = advise_on_readings(
        rule, *pair, fit, known=known, own=own, against=REAL if ood_val is not None else SURROGATE
    )
    return replace(found, seconds=time.perf_counter() - began)


def _read(
    reader: NACDetector, inside: Iterable[Any], outside: Iterable[Any], progress: Optional[bool]
) -> tuple[Readings, Readings]:
    return (
        reader.read_loader(inside, progress=progress),
        reader.read_loader(outside, progress=progress),
    )


def _first(loader: Iterable[Any]) -> Inputs:
    for batch in batches(loader):
        data: Inputs = batch.data
        return data
    raise NACError("the ID validation loader yielded no batch: there is nothing to compare on.")


def _not_compared(rule: Rule, sample: Inputs, seconds: float) -> Advice:
    title = rule.title or rule.name
    note = (
        f"{title} was not compared with other methods: surrogates can only be made from square "
        f"images, not from batches of {shapes(sample)}. To compare it, pass OOD "
        "validation data (`ood_val`)"
    )
    wrong = tuple(rule.saturated().values())
    return Advice(title, "nothing", warnings=wrong, notes=(note,), seconds=seconds)


def advise_on_readings(
    rule: Rule,
    id_val: Readings,
    ood_val: Readings,
    fit: Optional[Readings] = None,
    *,
    known: Known,
    own: Optional[tuple[Readings, Readings]] = None,
    against: str = REAL,
    searched: bool = False,
) -> Advice:
    """Like `advise`, without the network.

    Args:
        rule: reference NAC or NAC+, fitted.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD samples or surrogates.
        fit: readings of training samples; None leaves out KNN and NAC+.
        known: which layers of these readings serve the alternatives.
        own: `id_val` and `ood_val` as the rule needs them; None takes those above.
        against: what the OOD samples are.
        searched: whether the rule's settings were searched on these samples.
    """
    began = time.perf_counter()
    title = rule.title or rule.name
    pair = _few_rows(id_val), _few_rows(ood_val)
    mine = pair if own is None else (_few_rows(own[0]), _few_rows(own[1]))
    wrong, notes = _saturated(rule, *mine, against), []
    n_id, n_ood = (readings.n_samples for readings in pair)
    if searched:
        notes.append("the settings were searched on the same data, which flatters the detector")
    others = alternatives(fit, pair[0], known, plus=title != NAC_PLUS_TITLE)
    wanted = {"KNN", NAC_PLUS_TITLE} - {title}
    notes += _left_out(sorted(wanted - set(others)), fit)
    scores = {title: [rule.score(readings) for readings in mine]}
    scores.update({name: list(map(score, pair)) for name, score in others.items()})
    table = _compared(scores)
    if not table:
        notes = [f"nothing was compared, which needs {_LEAST} ID and {_LEAST} OOD samples"]
    behind = losing(title, table, against, searched=searched)
    wrong += [] if behind is None else [behind]
    seconds = time.perf_counter() - began
    return Advice(title, against, n_id, n_ood, table, tuple(wrong), tuple(notes), seconds)


def _few_rows(readings: Readings) -> Readings:
    """At most a thousand samples, at random but always the same."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randperm(readings.n_samples, generator=draw)[:_MOST]
    return readings.rows(rows.sort().values)


def _compared(scores: Mapping[str, list[Tensor]]) -> dict[str, Compared]:
    """AUROCs, best first, if there are enough samples; the first of `scores` is the detector's."""
    sides = [torch.stack([both[i].cpu().double() for both in scores.values()]) for i in (0, 1)]
    # a sample that overflows for one method is left out for all
    sides = [side[:, side.isfinite().all(dim=0)] for side in sides]
    if min(side.shape[1] for side in sides) < _LEAST:
        return {}
    found = Aurocs(*sides)
    rows = {
        title: Compared(found.interval(i), found.difference(i, 0) if i else None)
        for i, title in enumerate(scores)
    }
    return dict(sorted(rows.items(), key=lambda row: -row[1].auroc.value))


def _saturated(rule: Rule, inside: Readings, outside: Readings, against: str) -> list[str]:
    """Layers that cannot tell anything: by their counts, or by what they say of the samples."""
    found = rule.saturated(inside)
    suspected = rule.saturated(inside, certain=False)
    parts = [rule.parts(readings) for readings in (inside, outside)]
    for name in parts[0]:
        first, second = (_finite(part[name]) for part in parts)
        if name in found or not min(len(first), len(second)):
            continue
        both = torch.cat([first, second])
        same = int(both.unique(return_counts=True)[1].max()) / len(both)
        alone = float(auroc(first, second))
        where = f"on {against}, its AUROC alone is {100 * alone:.1f}"
        if alone >= _CHANCE:
            continue
        if name in suspected:
            found[name] = f"{suspected[name]}; {where}"
        elif same >= _SAME:
            what = "layer" if name in rule.layers else "part"
            found[name] = f"{what} '{name}' cannot tell samples apart: {where}"
    return list(found.values())


def _finite(scores: Tensor) -> Tensor:
    return scores[scores.isfinite()].cpu()


def _left_out(missing: Sequence[str], fit: Optional[Readings]) -> list[str]:
    why = "there is no training data" if fit is None else "layers that it needs were not read"
    return [f"{title} was not compared: {why}" for title in missing]
