"""The sections that are mostly pictures."""

from __future__ import annotations

from math import isfinite
from typing import Optional, Sequence

from nac_openood.compare.results import Results
from nac_openood.report.figures.bars import draw_bars
from nac_openood.report.figures.distributions import draw_distributions
from nac_openood.report.figures.roc import draw_roc
from nac_openood.report.figures.sample import Sample, sample_of
from nac_openood.report.figures.times import draw_times, timed
from nac_openood.report.markup import Child, Html, el, figure, join, section
from nac_openood.report.order import NAC, Standing, find, measured_groups, ood_sets, runner_up
from nac_openood.report.words import GROUP_HEADS, set_title

_CURVES = 5  # ROC curves in a picture, NAC among them
_NO_SCORES = "The scores are not in this folder, so there is nothing to draw here."
_ID_KEY = el("span", cls="key key-id", aria_hidden="true")
_OOD_KEY = el("span", cls="key key-ood", aria_hidden="true")


def bars(results: Results, order: Sequence[Standing]) -> Optional[Html]:
    """AUROC and FPR@95 of all methods."""
    pictures = []
    for metric in ("AUROC", "FPR@95"):
        for group in measured_groups(results):
            if any((group, metric) in s.values for s in order):
                key = f"bars-{group}-{metric[:3].lower()}"
                title = f"{GROUP_HEADS[group]} {metric}"
                pictures.append(_titled(title, draw_bars(key, order, group, metric)))
    if not pictures:
        return None
    text = "Whiskers are one standard deviation over checkpoints; NAC is blue and bold."
    return section("bars", "All methods at a glance", el("p", text), _grid("wide", pictures))


def times(results: Results, order: Sequence[Standing]) -> Optional[Html]:
    """Time against AUROC."""
    groups = [g for g in measured_groups(results) if timed(order, g)]
    if not groups:
        return None
    pictures = [
        _titled(GROUP_HEADS[g], draw_times(f"times-{g}", order, g), roomy=True) for g in groups
    ]
    text = (
        "Up and to the left is better. Times include the network pass, as if every method ran "
        "alone; NAC is the blue diamond."
    )
    return section("times", "What it costs", el("p", text), _grid("wider", pictures))


def distributions(results: Results, order: Sequence[Standing]) -> Optional[Html]:
    """Score histograms of NAC, the best other method, and MSP."""
    wanted = [find(order, NAC), runner_up(order), find(order, "msp")]
    shown = _samples(results, [s for s in wanted if s is not None])
    title = "How scores separate"
    if not shown:
        return _no_scores(results, order, "scores", title)
    pictures = [
        _titled(
            set_title(n), draw_distributions(f"scores-{i}", shown, n, _aurocs(results, shown, n))
        )
        for i, n in enumerate(ood_sets(results))
        if any(n in sample.outside for _, sample in shown)
    ]
    shifted = any(sample.shifted for _, sample in shown)
    legend = el(
        "p",
        el("span", _ID_KEY, f" {set_title(results.id_name)} test images (ID)"),
        el("span", "dotted: ID under covariate shift") if shifted else None,
        el("span", _OOD_KEY, " OOD images"),
        cls="legend",
    )
    text = f"{_runs(shown)} Each area is one; the less they overlap, the better."
    return section("scores", title, el("p", text), legend, _grid("panels", pictures))


def rocs(results: Results, order: Sequence[Standing]) -> Optional[Html]:
    """ROC curves of NAC and the best other methods."""
    worked = [s for s in order if s.status == "ok"]
    others = [s for s in worked if s.method != NAC]
    best = others[: _CURVES - 1] if find(worked, NAC) else others[:_CURVES]
    shown = _samples(results, [s for s in worked if s.method == NAC or s in best])
    if not shown:
        return None  # the section before has said why
    pictures = [
        _titled(set_title(n), draw_roc(f"roc-{i}", shown, n, _aurocs(results, shown, n)))
        for i, n in enumerate(ood_sets(results))
        if any(n in sample.outside for _, sample in shown)
    ]
    text = (
        f"NAC and the best {len(shown) - (find(worked, NAC) is not None)} other methods. "
        f"{_runs(shown)} The dotted line is where 95 % of OOD images are found: FPR@95 is read "
        "off there."
    )
    return section("roc", "ROC curves", el("p", text), _grid("panels", pictures))


def _samples(results: Results, wanted: Sequence[Standing]) -> list[tuple[Standing, Sample]]:
    """Scores of methods that have them, each method once."""
    once = {s.method: s for s in wanted if s.status == "ok"}
    found = [(s, sample_of(results, s.method)) for s in once.values()]
    return [(s, sample) for s, sample in found if sample is not None]


def _aurocs(
    results: Results, shown: Sequence[tuple[Standing, Sample]], dataset: str
) -> dict[str, float]:
    """The AUROC of the very run that is drawn, where it is known."""
    runs = {s.method: sample.run for s, sample in shown}
    rows = [r for r in results.rows if runs.get(r.method) == r.run]
    found = {r.method: r.metrics.get(dataset, {}).get("AUROC") for r in rows}
    return {
        method: auroc for method, auroc in found.items() if auroc is not None and isfinite(auroc)
    }


def _runs(shown: Sequence[tuple[Standing, Sample]]) -> str:
    runs = list(dict.fromkeys(sample.run for _, sample in shown))
    return f"Checkpoint {', '.join(runs)}."


def _no_scores(results: Results, order: Sequence[Standing], key: str, title: str) -> Optional[Html]:
    worked = any(s.status == "ok" for s in order)
    return section(key, title, el("p", _NO_SCORES)) if worked and ood_sets(results) else None


def _titled(title: str, picture: Html, *, roomy: bool = False) -> Html:
    return figure(join(el("h3", title), el("div", picture, cls="roomy" if roomy else None)))


def _grid(kind: str, children: Sequence[Child]) -> Html:
    return el("div", *children, cls=f"grid {kind}")
