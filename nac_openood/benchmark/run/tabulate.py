"""Turns stored scores into `Results` (metrics, times, failures, the paper's numbers); merging."""

from __future__ import annotations

import datetime
import platform
import shutil
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
import torch

from nac_openood.benchmark.methods.table import NAC, Method
from nac_openood.benchmark.paper.published import PRINTED_METRICS, against
from nac_openood.benchmark.run import store
from nac_openood.benchmark.run.cost import Timing, is_disturbed
from nac_openood.benchmark.run.results import (
    FAR,
    NEAR,
    HardSample,
    NetworkInfo,
    Results,
    Row,
    SetInfo,
    metrics_by_set,
)
from nac_openood.errors import NACError, error_text
from nac_openood.files import entries, is_file, is_folder, make_folder, replacing
from nac_openood.search.loaders import SURROGATE_LABEL
from nac_openood.sources.images import small_png
from nac_openood.tensor_files import versions

if TYPE_CHECKING:
    from nac_openood.benchmark.run.compare import Study

_UNFINISHED = "not finished: repeat the comparison to continue from here"
#: How many of the hardest samples of the ID test set and of each OOD set are shown.
_HARDEST_ID, _HARDEST_OOD = 8, 4


def tabulate(study: Study, done: Collection[tuple[str, str]]) -> Results:
    """Read the stored scores of a study and compute its metrics.

    Args:
        study: what was compared.
        done: (run, method) pairs whose stored results are up to date; others count as unfinished.
    """
    seen = {run for run, _ in done}  # stored results of other runs may be of other weights
    accuracy = {name: store.read_accuracy(study.out, name) for name in seen}
    runs = tuple(NetworkInfo(r.name, r.path, accuracy.get(r.name)) for r in study.runs)
    rows = tuple(
        _row(study, run, m) if (run.name, m.name) in done else _unfinished(run, m)
        for run in runs
        for m in study.methods
    )
    first = runs[0].name
    return Results(
        folder=study.out,
        id_name=study.sets.id_name,
        arch=study.arch,
        command=study.command,
        created=_newest(study.out),
        versions=versions(),
        machine=_machine(study, done),
        sets=tuple(
            SetInfo(name, role, len(study.scored[name]), study.skipped.get(name, 0))
            for name, role in study.sets.roles().items()
        ),
        runs=runs,
        rows=rows,
        gallery=tuple(_hardest(study, first)) if (first, NAC) in done else (),
        notes=tuple(_notes(study, rows)),
        surrogates=study.surrogates,
    )


def _notes(study: Study, rows: Iterable[Row]) -> Iterator[str]:
    """What a reader of the numbers should know; runs with the same warning are listed together."""
    for name, n in study.skipped.items():
        yield f"{n} images of {name} cannot be read and were left out"
    if study.surrogates:
        yield f"OOD validation: surrogates of ID validation data ({SURROGATE_LABEL})"
    if not study.search:
        yield "no search: all methods use their default hyperparameters"
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for text in (row.advice or {}).get("warnings", []):
            found.setdefault((row.title, text), []).append(row.run)
    for (title, text), runs in found.items():
        yield f"{title} ({', '.join(runs)}): {text}"


def _row(study: Study, run: NetworkInfo, method: Method) -> Row:
    folder = store.method_folder(study.out, run.name, method.name)
    named = method.name, method.title, run.name
    failure = store.read_error(folder)
    if failure is not None:
        return Row(*named, "", *failure)
    setup = store.read_setup(folder)
    read = {n: store.read_scores(folder / f"{n}.safetensors") for n in study.scored}
    stored = {name: found for name, found in read.items() if found is not None}
    if len(stored) < len(read) or setup is None:
        return _unfinished(run, method)
    costs = [found.cost for found in stored.values() if found.cost is not None]
    peaks = [p for p in (setup.peak_mb, *(cost.peak_mb for cost in costs)) if p is not None]
    scores = {name: found.scores.score for name, found in stored.items()}
    images = sum(map(len, scores.values()))
    # over all test sets, since a small one has too few batches for a median
    own, shared = Timing.joined([c.own for c in costs]), Timing.joined([c.shared for c in costs])
    return Row(
        *named,
        implementation=setup.made_with["implementation"],
        status="ok",
        metrics=metrics_by_set(scores, study.sets.roles(), run.accuracy),
        setup_seconds=setup.seconds,
        ms_per_image=1000 * (own.typical + shared.typical) / images,
        peak_mb=max(peaks) if peaks else None,
        shared_pass=method.needs == "features",
        hyperparameters=setup.hyperparameters,
        search=setup.search,
        advice=setup.advice,
        disturbed=is_disturbed(own, shared),
    )


def _unfinished(run: NetworkInfo, method: Method) -> Row:
    return Row(method.name, method.title, run.name, "", "failed", _UNFINISHED)


def _newest(out: Path) -> str:
    """The time of the newest scores, so that equal results make equal documents."""
    times = [p.stat().st_mtime for p in out.glob("runs/*/*/*.safetensors")]
    moment = datetime.datetime.fromtimestamp(max(times, default=0.0), datetime.timezone.utc)
    return moment.isoformat(timespec="seconds")


def _machine(study: Study, done: Collection[tuple[str, str]]) -> dict[str, Any]:
    """The device on which the networks ran (not necessarily the GPU), system and threads."""
    setups = [store.read_setup(store.method_folder(study.out, *pair)) for pair in done]
    used = {setup.made_with.get("device") for setup in setups if setup is not None}
    on_gpu = "cuda" in used and torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    return {"device": device, "system": platform.system(), "threads": torch.get_num_threads()}


def _hardest(study: Study, run: str) -> Iterator[HardSample]:
    """ID samples with NAC's lowest and OOD samples with its highest scores.

    Pictures of them are saved in `gallery/`, if the datasets have pictures.
    """
    folder = store.method_folder(study.out, run, NAC)
    for name, role in study.sets.roles().items():
        stored = store.read_scores(folder / f"{name}.safetensors")
        if stored is None or role == "csid":
            continue
        order = np.argsort(stored.scores.score, kind="stable")
        taken = order[:_HARDEST_ID] if role == "id" else order[::-1][:_HARDEST_OOD]
        kind = "id-lowest" if role == "id" else "ood-highest"
        for rank, index in enumerate(taken.tolist()):
            layers = {layer: float(part[index]) for layer, part in stored.scores.by_layer.items()}
            title, score = study.scored[name].sample_name(index), float(stored.scores.score[index])
            file = _save_picture(study, name, index, rank)
            yield HardSample(kind, name, title, score, layers, file)


def _save_picture(study: Study, dataset: str, index: int, rank: int) -> Optional[str]:
    """Save a small picture of a sample and return its file; None if the sample has no picture."""
    try:
        picture = study.scored[dataset].picture(index)
        content = None if picture is None else small_png(picture)
    except Exception as error:  # the user's code failed, which must not cost the results
        text = f"sample {index} of '{dataset}' has no picture: {error_text(error)}"
        warnings.warn(text, UserWarning, stacklevel=2)
        return None
    if content is None:
        return None
    file = f"gallery/{dataset}_{rank}.png"
    make_folder(study.out / "gallery")
    with replacing(study.out / file) as temporary:
        temporary.write_bytes(content)
    return file


def paper_comparison(results: Results) -> tuple[Mapping[str, Any], ...]:
    """The means over runs and the published numbers, as dicts of `PaperComparison`."""
    names = [*results.names("near"), NEAR, *results.names("far"), FAR]
    measured = {
        method: {
            name: {
                metric: value
                for metric in PRINTED_METRICS
                if (value := results.value(method, name, metric)) is not None
            }
            for name in names
        }
        for method in results.methods()
    }
    rows = against(measured, results.id_name, results.arch, methods=list(measured))
    return tuple(asdict(row) for row in rows)


def merge_results(parts: Sequence[Results], out: Path) -> Results:
    """Merge comparisons on the same data, copy their scores to a folder, and save the result.

    Where a method failed or was absent in one comparison and worked in another, the latter counts.

    Args:
        parts: the comparisons. Networks of the same name must be the same.
        out: the folder of the merged results, which must not be that of one of the comparisons.

    Raises:
        NACError: they do not fit together, or contradict each other.
    """
    first = parts[0]
    runs: dict[str, tuple[NetworkInfo, Results]] = {}
    chosen: dict[tuple[str, str], tuple[Row, Results]] = {}
    for part in parts:
        if part.folder.resolve() == out.resolve():
            raise NACError(f"{out} is one of the comparisons to merge. Choose another folder.")
        for what in ("id_name", "arch", "sets", "surrogates"):
            if getattr(part, what) != getattr(first, what):
                raise NACError(
                    f"{part.folder} and {first.folder} compare different things: `{what}` is "
                    f"{getattr(part, what)} and {getattr(first, what)}."
                )
        for run in part.runs:
            same, other = runs.setdefault(run.name, (run, part))
            if same.accuracy != run.accuracy:
                raise NACError(
                    f"{part.folder} and {other.folder} have different networks of the name "
                    f"{run.name}."
                )
        for row in part.rows:
            before, other = chosen.get((row.method, row.run), (None, part))
            if before is not None and row.status == "ok" == before.status:
                if row.metrics != before.metrics:
                    raise NACError(
                        f"{part.folder} and {other.folder} have different results of {row.title} "
                        f"on {row.run}. Leave one of them out."
                    )
            elif before is None or row.status == "ok":
                chosen[row.method, row.run] = row, part
    for (method, name), (_, part) in chosen.items():
        _copy(
            store.method_folder(part.folder, name, method), store.method_folder(out, name, method)
        )
    pictured = next((part for part in parts if part.gallery), first)
    _copy(pictured.folder / "gallery", make_folder(out) / "gallery")
    whole = replace(
        first, folder=out, runs=tuple(run for run, _ in runs.values()),
        rows=tuple(row for row, _ in chosen.values()),
        created=max(part.created for part in parts), gallery=pictured.gallery, paper=(),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )  # fmt: skip
    if any(part.paper for part in parts):
        whole = replace(whole, paper=paper_comparison(whole))
    whole.save()
    return whole


def _copy(source: Path, target: Path) -> None:
    if not is_folder(source):
        return
    make_folder(target)
    for path in entries(source):
        if is_file(path) and not path.name.startswith("."):
            with replacing(target / path.name) as temporary:
                shutil.copyfile(path, temporary)
