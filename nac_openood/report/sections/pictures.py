"""The sections that are mostly pictures."""

from __future__ import annotations

from typing import Optional, Sequence

from nac_openood.benchmark.run.results import Results
from nac_openood.report.blocks import Pictures, Section
from nac_openood.report.figures.bars import bar_picture
from nac_openood.report.figures.distributions import distribution_picture
from nac_openood.report.figures.roc import roc_picture
from nac_openood.report.figures.sample import Shown, sample_of
from nac_openood.report.order import Standing, measured_groups, ood_sets
from nac_openood.report.sections.ranking import shown_metrics
from nac_openood.report.words import SHOWN, set_title

_CURVES = 5  # ROC curves in a picture
_NO_SCORES = "The scores are not in this folder, so there is nothing to draw here."


def bars(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """Every metric of all methods."""
    metrics = shown_metrics(order)
    pictures = [
        bar_picture(order, group, key)
        for group in measured_groups(results)
        for key in metrics
        if any((group, key) in s.values for s in order)
    ]
    if not pictures:
        return None
    whiskers = "Whiskers show one standard deviation over checkpoints. "
    text = f"{whiskers if len(results.runs) > 1 else ''}Our methods are blue and bold."
    layout = "panels" if len(metrics) > 2 else "wide"
    return Section("bars", "All methods at a glance", [Pictures(layout, pictures, text=text)])


def distributions(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """Score histograms of our methods, the best other method, and MSP."""
    worked = [s for s in order if s.status == "ok"]
    msp = [s for s in worked if s.method == "msp"]
    shown = _samples(results, [*_best(worked, others=1), *msp])
    title = "Score distributions"
    if not shown:
        nothing = Pictures("panels", [], text=_NO_SCORES)
        return Section("scores", title, [nothing]) if worked and ood_sets(results) else None
    text = (
        f"{_runs(shown)} Histograms are scaled to the same area: the less the two overlap, the "
        "better the method tells ID from OOD."
    )
    entries = [("key key-id", f"{set_title(results.id_name)} test samples (ID)")]
    if any(sample.shifted for _, sample in shown):
        entries.append(("", "dotted: ID under covariate shift"))
    entries.append(("key key-ood", "OOD samples"))
    pictures = [distribution_picture(shown, name) for name in _drawn_sets(results, shown)]
    return Section("scores", title, [Pictures("panels", pictures, text=text, legend=entries)])


def rocs(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """ROC curves of our methods and the best other ones."""
    worked = [s for s in order if s.status == "ok"]
    others = _CURVES - sum(s.ours for s in worked)
    shown = _samples(results, _best(worked, others=max(others, 1)))
    if not shown:
        return None  # the section about distributions says why
    text = (
        f"Our methods and the best other methods. {_runs(shown)} {SHOWN['FPR@95']} can be read "
        f"off where a curve meets the horizontal dotted line; {SHOWN['FPR@95_IN']} is 100 minus "
        "its height at the vertical dotted line."
    )
    pictures = [roc_picture(shown, name) for name in _drawn_sets(results, shown)]
    return Section("roc", "ROC curves", [Pictures("panels", pictures, text=text)])


def _best(worked: Sequence[Standing], *, others: int) -> list[Standing]:
    """Our methods and the first of the others, in order of rank."""
    best = [s for s in worked if not s.ours][:others]
    return [s for s in worked if s.ours or s in best]


def _samples(results: Results, wanted: Sequence[Standing]) -> Shown:
    """The scores of methods that have them, each method once."""
    once = {s.method: s for s in wanted}
    found = [(s, sample_of(results, s.method)) for s in once.values()]
    return [(s, sample) for s, sample in found if sample is not None]


def _drawn_sets(results: Results, shown: Shown) -> list[str]:
    return [n for n in ood_sets(results) if any(n in sample.outside for _, sample in shown)]


def _runs(shown: Shown) -> str:
    runs = list(dict.fromkeys(sample.run for _, sample in shown))
    return f"Checkpoint{'' if len(runs) == 1 else 's'} {', '.join(runs)}."
