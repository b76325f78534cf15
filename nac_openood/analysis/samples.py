"""How many training samples NAC needs: random draws of them, repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Sequence

import numpy as np

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import Metrics, TestScores
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    METRIC_KEYS,
    TABLE_METRICS,
    metric_heads,
    records_of,
    text_heads,
)
from nac_openood.benchmark.run.metrics import GROUP_NAMES, GROUP_WORDS
from nac_openood.benchmark.run.results import Value
from nac_openood.core.layer_config import LayerConfig
from nac_openood.errors import NACError
from nac_openood.progress import bar
from nac_openood.tables import Entry, Lines, Series, Table

#: Whether O* stays as it is, or is scaled with the number of samples, which keeps the paper's r.
_WAYS = {"O* kept": False, "r kept": True}

#: The metrics of all draws, by number of samples and way.
_Found = Mapping[tuple[int, str], Sequence[Metrics]]


def samples(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 over the number of training samples that NAC is fitted on."""
    sizes = _sizes(data, options)
    found: dict[tuple[int, str], list[Metrics]] = {}
    lines: dict[tuple[int, float, str, int], Metrics] = {}
    everything = len(data.train_rows)  # of which all draws are the same
    repeats = {n: 1 if n >= everything else options.repeats for n in sizes}
    draws = [(n, repeat) for n in sizes for repeat in range(repeats[n])]
    for n, repeat in bar(draws, "samples", options.progress):
        rng = np.random.RandomState([options.seed, n, repeat])
        rows = np.sort(rng.permutation(everything)[:n])
        scores = TestScores(data, data.train.rows(rows))
        both = {way: _settings(data, n, scaled) for way, scaled in _WAYS.items()}
        scores.prepare({name: [both[way][name] for way in both] for name in data.layers})
        for way, settings in both.items():
            line = scores.metrics(settings)
            found.setdefault((n, way), []).append(line)
            lines[n, sizes[n], way, repeat] = line
    group, table = data.main_group, _table(data, sizes, found)
    figures = [_figure(found, sizes, group, metric) for metric in TABLE_METRICS]
    return Finding(
        "samples", "Number of training samples", _sentence(found, sizes, group), [table], figures,
        records_of(lines, "samples", "share", "way", "repeat"),
        {"training_samples": everything, "repeats": options.repeats},
        [
            FPR_NOTE,
            "Mean \u00b1 (population) standard deviation over random draws. NAC's settings were "
            f"chosen for {data.fitting.fit.n_samples} samples. 'O* kept' uses them as they are; "
            "'r kept' scales O* with the number of samples, so that the same share of samples "
            "fills a bin.",
        ],
    )  # fmt: skip


def _sizes(data: AnalysisData, options: Options) -> dict[int, float]:
    """How many samples to draw, with the share of the training data that they are."""
    total = len(data.train_rows)
    wrong = [share for share in options.shares if not 0 < share <= 1]
    if wrong or not options.shares:
        raise NACError(f"`shares` must be above 0 and at most 1, got {wrong}.")
    if options.repeats < 1:
        raise NACError(f"`repeats` must be at least 1, got {options.repeats}.")
    return {max(1, round(share * total)): share for share in sorted(options.shares)}


def _settings(data: AnalysisData, n: int, scaled: bool) -> dict[str, LayerConfig]:
    if not scaled:
        return dict(data.settings)
    ratio = n / data.fitting.fit.n_samples
    return {
        name: replace(used, full_count=max(1, round(used.full_count * ratio)))
        for name, used in data.settings.items()
    }


def _summary(lines: Sequence[Metrics], group: str, metric: str) -> Value:
    return Value.of([line[group][metric] for line in lines])


def _table(data: AnalysisData, sizes: Mapping[int, float], found: _Found) -> Table:
    columns = [(way, group) for way in _WAYS for group in data.groups]
    heads = metric_heads(f"{GROUP_NAMES[group]}, {way}" for way, group in columns)
    rows: list[list[Entry]] = []
    for n, share in sizes.items():
        means = [_summary(found[n, way], g, m) for way, g in columns for m in TABLE_METRICS]
        rows.append([f"{n:,} ({100 * share:g} %)", *means])
    return Table("", [*text_heads("Training samples"), *heads], rows)


def _figure(found: _Found, sizes: Mapping[int, float], group: str, metric: str) -> Lines:
    series = [
        Series(way, [(n, *_summary(found[n, way], group, metric)) for n in sizes]) for way in _WAYS
    ]
    return Lines(
        METRIC_KEYS[metric], f"{GROUP_NAMES[group]} {metric}", "training samples (log scale)",
        f"{GROUP_WORDS[group]} {metric}, %", series, log_x=True,
    )  # fmt: skip


def _sentence(found: _Found, sizes: Mapping[int, float], group: str) -> str:
    least, most = min(sizes), max(sizes)
    told = []
    for way in _WAYS:
        few, many = (_summary(found[n, way], group, "AUROC")[0] for n in (least, most))
        told.append(f"{few:.2f} % and {many:.2f} % ({way})")
    return (
        f"With {least:,} and with {most:,} training samples ({100 * sizes[least]:g} % and "
        f"{100 * sizes[most]:g} % of those read), {GROUP_WORDS[group]} AUROC is "
        f"{' or '.join(told)}."
    )
