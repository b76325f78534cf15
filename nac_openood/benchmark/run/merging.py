"""Comparisons that ran on their own, with different methods or networks, become one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Sequence

from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.conduct import beside_the_paper
from nac_openood.benchmark.run.results import NetworkInfo, Results, Row
from nac_openood.errors import NACError
from nac_openood.files import entries, is_file, is_folder, make_folder, replacing


def merge_results(parts: Sequence[Results], out: Path) -> Results:
    """Join comparisons on the same data, copy their scores to a folder, and save the whole.

    Where a method failed or was absent in one comparison and worked in another, the latter counts.

    Args:
        parts: the comparisons. Networks of the same name must be the same.
        out: the folder of the whole, which must not be one of theirs.

    Raises:
        NACError: they do not fit together, or contradict each other.
    """
    if out.resolve() in (part.folder.resolve() for part in parts):
        raise NACError(f"{out} is one of the comparisons to merge. Choose another folder.")
    first = parts[0]
    for part in parts[1:]:
        _check_fits(first, part)
    runs = _joined_runs(parts)
    chosen: dict[tuple[str, str], tuple[Row, Results]] = {}
    for part in parts:
        for row in part.rows:
            _choose(chosen, row, part)
    make_folder(out)
    for (method, run), (_, part) in chosen.items():
        _copy(cells.cell_folder(part.folder, run, method), cells.cell_folder(out, run, method))
    with_pictures = next((part for part in parts if part.gallery), first)
    _copy(with_pictures.folder / "gallery", out / "gallery")
    whole = replace(
        first, folder=out, runs=runs, rows=tuple(row for row, _ in chosen.values()),
        created=max(part.created for part in parts), gallery=with_pictures.gallery, paper=(),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )  # fmt: skip
    if any(part.paper for part in parts):
        whole = replace(whole, paper=tuple(beside_the_paper(whole)))
    whole.save()
    return whole


def _check_fits(first: Results, other: Results) -> None:
    for what in ("id_name", "arch", "sets", "surrogates"):
        mine, theirs = getattr(first, what), getattr(other, what)
        if mine != theirs:
            raise NACError(
                f"{other.folder} and {first.folder} compare different things: `{what}` is "
                f"{theirs} and {mine}."
            )


def _joined_runs(parts: Sequence[Results]) -> tuple[NetworkInfo, ...]:
    """The networks of all comparisons, in their order."""
    known: dict[str, tuple[NetworkInfo, Results]] = {}
    for part in parts:
        for run in part.runs:
            same, other = known.setdefault(run.name, (run, part))
            if same.accuracy != run.accuracy:
                raise NACError(
                    f"{part.folder} and {other.folder} have different networks of the name "
                    f"{run.name}."
                )
    return tuple(run for run, _ in known.values())


def _choose(chosen: dict[tuple[str, str], tuple[Row, Results]], row: Row, part: Results) -> None:
    """Keep the row of a method on a network that worked."""
    key = (row.method, row.run)
    if key in chosen and row.status == "ok" == chosen[key][0].status:
        if row.metrics != chosen[key][0].metrics:
            raise NACError(
                f"{part.folder} and {chosen[key][1].folder} have different results of "
                f"{row.title} on {row.run}. Leave one of them out."
            )
    elif key not in chosen or row.status == "ok":
        chosen[key] = row, part


def _copy(source: Path, target: Path) -> None:
    if not is_folder(source):
        return
    make_folder(target)
    for path in entries(source):
        if is_file(path) and not path.name.startswith("."):
            with replacing(target / path.name) as temporary:
                shutil.copyfile(path, temporary)
