"""NAC against the native detectors of other training schemes: ConfBranch, RotPred, GODIN (Table 3).

The networks are trained here, on the training data of the study and for a few epochs, so they are
weaker than published ones. NAC is set up as `nac_openood.compare` sets it up.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Mapping, Sequence

from torch.utils.data import DataLoader

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.scheme_training import SCHEMES, Backbone, NativeScorer, train_scheme
from nac_openood.analysis.scores import Metrics
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    beside,
    group_entries,
    group_heads,
    metric_bars,
    records_of,
    text_heads,
)
from nac_openood.benchmark.api import compare
from nac_openood.benchmark.methods.table import Method
from nac_openood.benchmark.run.metrics import GROUP_NAMES
from nac_openood.benchmark.run.results import Results
from nac_openood.detector.batches import batches
from nac_openood.errors import NACError
from nac_openood.plugin.source import openood_ready
from nac_openood.sources.networks import build
from nac_openood.tables import BarGroups, Column, Entry, Table

_NATIVE = "native"
_BATCH = 64  # samples per training step
_ROWS = {_NATIVE: "its own", "nac": "NAC", "nac_plus": "NAC+"}

#: What was measured by scheme and method.
SchemeMetrics = Mapping[tuple[str, str], Metrics]


def schemes(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of a scheme's own detector, NAC and NAC+ on its network."""
    with openood_ready():  # refuse before training
        pass
    found: dict[tuple[str, str], Metrics] = {}
    for name, scheme in SCHEMES.items():
        options.say(f"{scheme.title}: training for {options.epochs} epochs")
        results = _compared(data, name, options)
        found.update({(name, method): _metrics(results, method) for method in _ROWS})
    accuracy = {name: found[name, "nac"][data.main_group]["ACC"] for name in SCHEMES}
    return Finding(
        "schemes",
        "Other training schemes",
        _sentence(found, data.main_group),
        [_table(data, found, accuracy, options)],
        [_bars(found, data.main_group)],
        records_of(found, "scheme", "method"),
        {"accuracy": accuracy, "epochs": options.epochs},
        [
            f"The networks are OpenOOD's, around {data.arch} with fresh weights. OpenOOD's "
            f"trainers trained them here for only {options.epochs} epochs on "
            f"{len(data.bench.samples['train'])} samples without augmentation: read the table as a "
            "check that NAC works on them, not as a benchmark of the schemes.",
            FPR_NOTE,
        ],
    )


def _compared(data: AnalysisData, name: str, options: Options) -> Results:
    """Train the network of a scheme and run its own detector, NAC and NAC+ on it."""
    study = data.bench.study
    sets = study.sets
    sample = next(iter(batches(study.scored["test"].loader()))).rows(slice(2)).data
    backbone = Backbone(build(data.arch, sets.n_classes), sample)
    loader: Any = data.bench.loader("train", "network")
    shuffled = DataLoader(
        loader.dataset, batch_size=_BATCH, shuffle=True, drop_last=True,
        num_workers=study.workers, collate_fn=loader.collate_fn,
    )  # fmt: skip
    net = train_scheme(
        name, backbone, shuffled, sets.n_classes, epochs=options.epochs, seed=options.seed,
        progress=options.progress,
    )  # fmt: skip
    native = Method(
        _NATIVE, SCHEMES[name].title, needs="network", uses_train=False,
        scorer=partial(NativeScorer, name),
    )  # fmt: skip
    out = study.out / "schemes" / name
    return compare(
        net, **vars(sets), methods=[native, "nac", "nac_plus"], out=out, arch=data.arch,
        nac_config=data.config if data.config.layers else None, batch_size=study.batch_size,
        workers=study.workers, seed=options.seed, progress=options.progress, say=options.say,
    )  # fmt: skip


def _metrics(results: Results, method: str) -> Metrics:
    """What was measured, in percent by set and metric."""
    row = next(row for row in results.rows if row.method == method)
    if row.status != "ok":
        raise NACError(f"{row.title} could not run on the network of a scheme: {row.error}")
    return row.metrics


def _table(
    data: AnalysisData, found: SchemeMetrics, accuracy: Mapping[str, float], options: Options
) -> Table:
    columns = [
        *text_heads("Training", "Detector"), Column("ID accuracy"), *group_heads(data)
    ]  # fmt: skip
    rows: list[Sequence[Entry]] = []
    ours = []
    paper = {n: beside(data, options.against, "Table 3", "method", training=n) for n in SCHEMES}
    first = next(iter(paper.values()))
    for (name, method), line in found.items():
        key = "baseline" if method == _NATIVE else method
        rows.append([SCHEMES[name].title, _ROWS[method], accuracy[name],
                     *group_entries(data, line), *paper[name].entries(key)])  # fmt: skip
        if method != _NATIVE:
            ours.append(len(rows) - 1)
    return Table("", [*columns, *first.heads()], rows, ours)


def _bars(found: SchemeMetrics, group: str) -> BarGroups:
    rows = [
        (scheme.title, [found[name, method][group]["AUROC"] for method in _ROWS])
        for name, scheme in SCHEMES.items()
    ]
    title = f"{GROUP_NAMES[group]} AUROC by training scheme"
    return metric_bars("AUROC", title, list(_ROWS.values()), rows)


def _sentence(found: SchemeMetrics, group: str) -> str:
    told = []
    for name, scheme in SCHEMES.items():
        own, nac = (found[name, method][group]["AUROC"] for method in (_NATIVE, "nac"))
        told.append(f"{scheme.title} {own:.2f} % with its own detector, {nac:.2f} % with NAC")
    return f"{GROUP_NAMES[group]} AUROC: {'; '.join(told)}."
