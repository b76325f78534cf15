"""Samples that NAC and other methods dispute, with pictures if they have any."""

from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.disagreement import Decisions
from nac_openood.analysis.finding import Example, Examples
from nac_openood.search.advice import NAC_TITLE
from nac_openood.sources.decoding import png_url, small_png

_MOST = 8  # samples per group

#: Percentiles among ID validation samples by method and set, `[samples]` each.
Percentiles = Mapping[str, Mapping[str, np.ndarray]]


def disputed(
    data: AnalysisData, decisions: Mapping[str, Decisions], percentiles: Percentiles
) -> list[Examples]:
    """Samples on which NAC decides unlike most other methods, the clearest ones first."""
    inside, outside = data.names("id", "csid"), data.names("near", "far")
    titles = {
        "OOD samples that NAC finds and most other methods miss": (outside, True),
        "OOD samples that NAC misses and most other methods find": (outside, False),
        "ID test samples that NAC accepts and most other methods reject": (inside, False),
        "ID test samples that NAC rejects and most other methods accept": (inside, True),
    }
    found = []
    for title, (sets, rejects) in titles.items():
        samples = _chosen(decisions, percentiles, sets, rejects)
        if samples:
            found.append(Examples(title, [_example(data, percentiles, *at) for at in samples]))
    return found


def _chosen(
    decisions: Mapping[str, Decisions],
    percentiles: Percentiles,
    sets: Sequence[str],
    rejects: bool,
) -> list[tuple[str, int]]:
    """(set, row) of samples that NAC rejects (or accepts) against most others."""
    others = [method for method in decisions if method != NAC_TITLE]
    candidates: list[tuple[float, str, int]] = []
    for name in sets:
        mine = decisions[NAC_TITLE].rejected([name]) == rejects
        against = np.mean([decisions[m].rejected([name]) != rejects for m in others], axis=0) > 0.5
        gap = np.mean([percentiles[m][name] for m in others], axis=0) - percentiles[NAC_TITLE][name]
        gap = gap if rejects else -gap
        candidates += [(float(gap[row]), name, int(row)) for row in np.flatnonzero(mine & against)]
    candidates.sort(key=lambda each: (-each[0], each[1], each[2]))
    return [(name, row) for _, name, row in candidates[:_MOST]]


def _example(data: AnalysisData, percentiles: Percentiles, name: str, row: int) -> Example:
    samples = data.bench.study.scored[name]
    shares = {method: float(by_set[name][row]) for method, by_set in percentiles.items()}
    picture = samples.picture(row)
    image = None if picture is None else png_url(small_png(picture))
    return Example(name, samples.sample_name(row), shares, image)
