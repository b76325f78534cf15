"""A whole comparison: check the data, run what is missing, tabulate the results."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Mapping

from nac_openood.benchmark.paper.against import against
from nac_openood.benchmark.paper.published import PRINTED_METRICS
from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.assemble import assemble_results
from nac_openood.benchmark.run.metrics import FAR, NEAR
from nac_openood.benchmark.run.results import RESULTS_FILE, Results
from nac_openood.benchmark.run.runner import run_study
from nac_openood.benchmark.run.study import Study
from nac_openood.benchmark.run.vetting import vetted
from nac_openood.files import locked, make_folder, remove
from nac_openood.progress import Say


def conduct(
    study: Study,
    *,
    skip_bad: bool = False,
    paper: bool = False,
    say: Say = lambda text: None,
) -> Results:
    """Run the study, or what is left of it, and write `results.json`.

    If it is interrupted, what is done is tabulated before the interruption goes on.

    Args:
        study: what to compare.
        skip_bad: leave out images that cannot be read.
        paper: put the published numbers beside the measured ones.
        say: is told what is going on.
    """
    out = study.out
    with locked(make_folder(out)):
        cells.clear_leftovers(out)
        study = _with_first_network(study)
        sets, skipped = vetted(
            study.sets, out, skip_bad=skip_bad, workers=study.workers, progress=study.progress,
            say=say,
        )  # fmt: skip
        study = replace(study, sets=sets)
        study.check()
        # an old table must not lie beside new scores
        remove(out / RESULTS_FILE)
        visited: set[tuple[str, str]] = set()
        try:
            run_study(study, visited, say)
        finally:
            results = assemble_results(study, visited, skipped)
            if paper:
                results = replace(results, paper=tuple(beside_the_paper(results)))
            results.save()
        return results


def _with_first_network(study: Study) -> Study:
    """Load the first network now, so that a wrong one is noticed before all images are read."""
    build = study.network
    ready = {study.runs[0]: build(study.runs[0])}
    # handed over once, so that it does not stay in memory beside the next one
    return replace(study, network=lambda run: ready.pop(run) if run in ready else build(run))


def beside_the_paper(results: Results) -> list[Mapping[str, Any]]:
    """Published numbers beside the means over runs."""
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
    return [asdict(row) for row in rows]
