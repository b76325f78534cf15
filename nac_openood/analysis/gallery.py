"""Samples that NAC and other methods dispute, with pictures if they have any."""

from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.scores import Decisions
from nac_openood.search.advice import NAC_TITLE
from nac_openood.sources.decoding import png_url, small_png
from nac_openood.tables import Example, Examples

_MOST = 8  # samples per group


def disputed(data: AnalysisData, decisions: Mapping[str, Decisions]) -> list[Examples]:
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
        samples = _chosen(decisions, sets, rejects)
        if samples:
            found.append(Examples(title, [_example(data, decisions, *at) for at in samples]))
    return found


def _chosen(
    decisions: Mapping[str, Decisions], sets: Sequence[str], rejects: bool
) -> list[tuple[str, int]]:
    """(set, row) of samples that NAC rejects (or accepts) and most others do not."""
    nac = decisions[NAC_TITLE]
    others = [other for method, other in decisions.items() if method != NAC_TITLE]
    candidates: list[tuple[float, str, int]] = []
    for name in sets:
        mine = nac.rejected([name]) == rejects
        alone = np.mean([other.rejected([name]) != rejects for other in others], axis=0) > 0.5
        gap = np.mean([other.percentiles(name) for other in others], axis=0) - nac.percentiles(name)
        gap = gap if rejects else -gap
        candidates += [(float(gap[row]), name, int(row)) for row in np.flatnonzero(mine & alone)]
    candidates.sort(key=lambda each: (-each[0], each[1], each[2]))
    return [(name, row) for _, name, row in candidates[:_MOST]]


def _example(
    data: AnalysisData, decisions: Mapping[str, Decisions], name: str, row: int
) -> Example:
    samples = data.bench.study.scored[name]
    shares = {method: float(own.percentiles(name)[row]) for method, own in decisions.items()}
    picture = samples.picture(row)
    image = None if picture is None else png_url(small_png(picture))
    return Example(name, samples.sample_name(row), shares, image)
