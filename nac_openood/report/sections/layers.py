"""What each layer contributes to our methods."""

from __future__ import annotations

from typing import Iterator, Mapping, Optional, Sequence

from nac_openood.benchmark.run.results import Results
from nac_openood.report.blocks import (
    Block,
    Cell,
    Column,
    Heading,
    Line,
    Pictures,
    Section,
    Table,
)
from nac_openood.report.figures.layers import (
    COMBINED,
    auroc_picture,
    layer_aurocs,
    mean_pictures,
    strongest,
)
from nac_openood.report.figures.sample import Sample, sample_of
from nac_openood.report.order import Standing
from nac_openood.report.words import set_title

Aurocs = Mapping[str, Mapping[str, float]]


def layers(results: Results, order: Sequence[Standing]) -> Optional[Section]:
    """AUROC and mean scores of each layer; None without scores by layer."""
    blocks: list[Block] = []
    ours = [s for s in order if s.ours]
    for s in ours:
        sample = sample_of(results, s.method)
        aurocs = layer_aurocs(sample) if sample is not None else {}
        if sample is not None and aurocs:
            blocks += [Heading(s.title)] if len(ours) > 1 else []
            blocks += _blocks(results, sample, aurocs)
    return Section("layers", "What each layer contributes", blocks) if blocks else None


def _blocks(results: Results, sample: Sample, aurocs: Aurocs) -> Iterator[Block]:
    yield f"Checkpoint {sample.run}. {_finding(aurocs)}"
    yield Pictures("single", [auroc_picture(aurocs)])
    yield _table(aurocs)
    yield Pictures(
        "quads",
        mean_pictures(sample, f"{set_title(results.id_name)} (ID)"),
        title="Mean score of each layer",
        text="In-distribution samples should score higher than OOD samples.",
    )


def _finding(aurocs: Aurocs) -> str:
    found = strongest(aurocs)
    if found is None:
        return ""
    name, alone, together = found
    side = "above" if together >= alone else "below"
    return (
        f"All layers together reach {together:.2f} % AUROC on average over the OOD datasets, "
        f"{abs(together - alone):.2f} points {side} the best single layer ({name}, {alone:.2f} %)."
    )


def _table(aurocs: Aurocs) -> Table:
    sets = list(dict.fromkeys(n for values in aurocs.values() for n in values))
    best = {n: max(v[n] for v in aurocs.values() if n in v) for n in sets}
    lines = []
    for layer, values in aurocs.items():
        cells = [
            Cell(f"{values[n]:.2f}", value=values[n], best=values[n] == best[n])
            if n in values
            else Cell()
            for n in sets
        ]
        lines.append(Line([Cell(layer), *cells], ours=layer == COMBINED))
    columns = [Column(set_title(n), better="higher") for n in sets]
    return Table("AUROC of each layer, %", [Column("Layer", "name"), *columns], lines)
