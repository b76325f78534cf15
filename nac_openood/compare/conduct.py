"""A whole comparison: look at the images, run what is missing, tabulate what there is."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Callable, Mapping

from nac_openood.bench.against import against
from nac_openood.compare import cells
from nac_openood.compare.assemble import assemble
from nac_openood.compare.results import DOCUMENT, FAR, NEAR, Results
from nac_openood.compare.runner import run_study
from nac_openood.compare.study import Study
from nac_openood.compare.vetting import vetted
from nac_openood.core.files import make_folder


def conduct(
    study: Study,
    *,
    skip_bad: bool = False,
    paper: bool = False,
    notes: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Results:
    """Run the study, or what is left of it, and write `results.json`.

    An interrupted study is tabulated too, before the interruption goes on its way.

    Args:
        study: what to compare.
        skip_bad: leave out images that cannot be read.
        paper: put the published numbers beside the measured ones.
        notes: what a reader of the results should know.
        say: is told what is going on.
    """
    out = make_folder(study.out)
    cells.clear_leftovers(out)
    study = _with_first_network(study)
    sets, skipped = vetted(
        study.sets, out, skip_bad=skip_bad, workers=study.workers, progress=study.progress, say=say
    )
    study = replace(study, sets=sets)
    left_out = tuple(f"{n} images of {name} cannot be read" for name, n in skipped.items())
    # a table from before beside scores from now would be worse than none
    (out / DOCUMENT).unlink(missing_ok=True)
    visited: set[tuple[str, str]] = set()
    try:
        run_study(study, visited, say)
    finally:
        results = assemble(study, visited, skipped=skipped, notes=(*notes, *left_out))
        if paper:
            results = replace(results, paper=tuple(_beside(results, study)))
        results.save()
    return results


def _with_first_network(study: Study) -> Study:
    """A wrong architecture, checkpoint or device is told before a million images are opened."""
    build = study.network
    ready = {study.runs[0]: build(study.runs[0])}
    # handed over once, so that it does not stay in memory beside the next one
    return replace(study, network=lambda run: ready.pop(run) if run in ready else build(run))


def _beside(results: Results, study: Study) -> list[Mapping[str, Any]]:
    """Published numbers beside the means over runs."""
    names = [*results.names("near"), NEAR, *results.names("far"), FAR]
    measured = {
        method: {
            name: {
                metric: value
                for metric in ("FPR@95", "AUROC")
                if (value := results.value(method, name, metric)) is not None
            }
            for name in names
        }
        for method in study.methods
    }
    rows = against(measured, results.id_name, results.arch, methods=study.methods)
    return [asdict(row) for row in rows]
