"""The top of the report: where our methods stand."""

from __future__ import annotations

from typing import Iterator, Sequence

from nac_openood.benchmark.run.results import GROUP_NAMES, GROUP_WORDS, Results
from nac_openood.report.blocks import Headline, Tile
from nac_openood.report.order import Standing, measured_groups
from nac_openood.report.words import SHOWN, count, ordinal, quantity, set_title, value_text


def headline(results: Results, order: Sequence[Standing]) -> Headline:
    """What a reader should know first."""
    ours = [s for s in order if s.ours and s.status == "ok"]
    tiles = [(s.title, list(_tiles(results, s, order))) for s in ours]
    return Headline(
        f"{set_title(results.id_name)}: how NAC compares",
        results.arch,
        verdict(results, order),
        list(_facts(results, order)),
        results.notes,
        [(title, row) for title, row in tiles if row],
    )


def verdict(results: Results, order: Sequence[Standing]) -> str:
    """Where each of our methods stands, a sentence each."""
    worked = [s for s in order if s.status == "ok"]
    ours = [s for s in order if s.ours]
    if not worked:
        return "No method produced a result; the ranking lists the reasons."
    if not ours:
        return f"{count(len(worked), 'method')} compared; NAC is not among them."
    alone = ["It is the only method with a result."] if worked == ours and len(ours) == 1 else []
    return " ".join([*(_sentence(results, s, worked) for s in ours), *alone])


def _sentence(results: Results, s: Standing, worked: Sequence[Standing]) -> str:
    if s.status != "ok":
        others = f"{count(len(worked), 'method')} {'does' if len(worked) == 1 else 'do'}"
        return f"{s.title} has no result ({s.error or s.status}); {others}."
    ranks = [_rank_text(s, worked, g) for g in measured_groups(results) if s.value(g) is not None]
    if not ranks:
        return f"{s.title} has no near-OOD or far-OOD mean to be ranked by."
    return f"{s.title} is {' and '.join(ranks)}."


def _rank_text(s: Standing, worked: Sequence[Standing], group: str) -> str:
    """`2nd of 20 on near-OOD (AUROC 88.10, 0.52 points behind KNN)`."""
    ranked = [other for other in worked if other.value(group) is not None]
    others = [(o.values[group, "AUROC"].mean, o.title) for o in ranked if o is not s]
    mine, rank = s.values[group, "AUROC"].mean, s.ranks[group]
    gap = ""
    if others:
        best, title = max(others, key=lambda pair: pair[0])
        side = "ahead of" if mine >= best else "behind"
        level = abs(mine - best) < 0.005
        gap = f", {'level with' if level else f'{abs(mine - best):.2f} points {side}'} {title}"
    tied = "tied for " if sum(o.ranks[group] == rank for o in ranked) > 1 else ""
    text = f"{tied}{ordinal(rank)} of {len(ranked)} on {GROUP_WORDS[group]}"
    return f"{text} (AUROC {mine:.2f}{gap})"


def _facts(results: Results, order: Sequence[Standing]) -> Iterator[str]:
    yield f"{sum(s.status == 'ok' for s in order)} of {count(len(order), 'method')} with a result"
    yield count(len(results.runs), "checkpoint")
    yield count(len(results.names("near")) + len(results.names("far")), "OOD dataset")
    yield count(sum(s.images for s in results.sets), "test sample")
    accuracies = [r.accuracy for r in results.runs if r.accuracy is not None]
    if accuracies:
        span = dict.fromkeys(f"{a:.2f}" for a in (min(accuracies), max(accuracies)))
        yield "\u2013".join(span) + " % ID accuracy"


def _tiles(results: Results, s: Standing, order: Sequence[Standing]) -> Iterator[Tile]:
    for group in measured_groups(results):
        value = s.value(group)
        if value is None:
            continue
        title = GROUP_NAMES[group]
        ranked = sum(other.value(group) is not None for other in order)
        yield Tile(f"{title} rank", ordinal(s.ranks[group]), f"of {ranked}", ["by AUROC"])
        mean, _, spread = value_text(value).partition(" ")
        others = [(m, s.value(group, k)) for k, m in SHOWN.items() if k != "AUROC"]
        below = [f"{m} {v.mean:.1f}" for m, v in others if v is not None]
        yield Tile(f"{title} AUROC", mean, spread, below)
    if "ms_per_image" in s.times:
        below = [f"setup {quantity(s.times.get('setup_seconds'))} s"]
        below += ["uncertain: busy machine"] if s.disturbed else []
        yield Tile("Time per image", quantity(s.times["ms_per_image"]), "ms", below)
