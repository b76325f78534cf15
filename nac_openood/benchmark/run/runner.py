"""Runs methods on networks; every result is written as soon as it is made, and made once."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import numpy as np

from nac_openood.benchmark.methods.scorer import Given, Scorer
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.features import FeatureBatches
from nac_openood.benchmark.run.meter import Meter, TimedLoader, Timing
from nac_openood.benchmark.run.study import Study
from nac_openood.benchmark.run.workbench import Workbench
from nac_openood.detector.outcomes import Scores
from nac_openood.distributed import from_main, synchronized, world
from nac_openood.errors import FileError, NACError, error_text
from nac_openood.files import remove
from nac_openood.progress import Say
from nac_openood.sources.checkpoints import Checkpoint


def run_study(study: Study, visited: set[tuple[str, str]], say: Say = lambda text: None) -> None:
    """Make every missing cell; a method that fails leaves a note, and the others go on.

    Args:
        study: what is compared.
        visited: receives every (run, method) that is done, also if this function is interrupted.
        say: is told what is going on.
    """
    for run in study.runs:
        say(f"{run.name}: {run.path}")
        bench = _begin(study, run, say)
        if bench is None:
            visited.update((run.name, method.name) for method in study.methods)
            continue
        for number, method in enumerate(study.methods, start=1):
            step = f"[{number}/{len(study.methods)}] {method.title}"
            _run_method(bench, method, step, say)
            visited.add((run.name, method.name))


def _begin(study: Study, run: Checkpoint, say: Say) -> Optional[Workbench]:
    """Load a network and measure its accuracy; None, with a note per method, if that fails."""
    folder = study.out / "runs" / run.name
    remove(folder / "run.json")
    try:
        with synchronized(run.name):
            bench = Workbench(study, run, study.network(run))
            accuracy = bench.accuracy()
    except FileError:
        raise
    except Exception as error:
        if len(study.runs) == 1:  # there is nothing else to go on with
            raise NACError(
                f"the network cannot be run on this data: {error_text(error)}. Check that the "
                "architecture, the weights and the size of the samples fit together."
            ) from error
        say(f"{run.name} failed: {error_text(error)}")
        for method in study.methods:
            _write_error(study, run, method, "failed", error)
        return None
    cells.write_note(folder / "run.json", {"accuracy": accuracy})
    say(f"{run.name}: accuracy {accuracy:.2f} %")
    if accuracy < 2 * 100 / study.sets.n_classes:
        say(f"{run.name} is hardly better than chance: check its weights and the transform")
    return bench


def _run_method(bench: Workbench, method: Method, step: str, say: Say) -> None:
    study, run = bench.study, bench.run
    try:
        with synchronized(method.name):  # a method that fails in one process fails in all of them
            job = _Job(bench, method, study.make(method, run))
            pending = from_main("pending", lambda: bench.pending(job.folder, job.made_with))
            known = from_main("known setup", job.known_setup)
            done = not pending and known is not None
            say(f"{step} ({job.scorer.implementation})" + (": done before" if done else ""))
            if not done:
                job.fill(pending, known)
            remove(job.folder / "error.json")
    except Absent as error:
        say(f"{step} is absent: {error}")
        _write_error(study, run, method, "absent", error)
    except FileError:  # a full disk: no other method would succeed
        raise
    except Exception as error:  # methods of others may raise anything
        say(f"{step} failed: {error_text(error)}")
        _write_error(study, run, method, "failed", error)


def _write_error(
    study: Study, run: Checkpoint, method: Method, status: str, error: Exception
) -> None:
    path = cells.cell_folder(study.out, run.name, method.name) / "error.json"
    cells.write_note(path, {"status": status, "error": error_text(error)})


class _Job:
    """A method on a network, whose cells are to be made."""

    def __init__(self, bench: Workbench, method: Method, scorer: Scorer) -> None:
        self.bench, self.method, self.scorer = bench, method, scorer
        self.folder = cells.cell_folder(bench.study.out, bench.run.name, method.name)
        self.made_with = bench.made_with(scorer)

    def known_setup(self) -> Optional[Mapping[str, Any]]:
        """The hyperparameters of an earlier setup that was made with the same."""
        note = cells.read_setup(self.folder)
        if note is None or note.made_with != self.made_with:
            return None
        return note.hyperparameters

    def fill(self, pending: Sequence[str], known: Optional[Mapping[str, Any]]) -> None:
        """Set the method up, with hyperparameters if they are known, and score the pending sets."""
        given = self.bench.given(self.method.needs)
        if self.method.needs == "features":
            # before anything is measured: time and memory of the shared pass are its own
            self.bench.prepare_features(self.method)
        self._set_up(given, known)
        for name in pending:
            self._score(name)

    def _set_up(self, given: Given, known: Optional[Mapping[str, Any]]) -> None:
        with Meter(self.bench.device) as meter:
            fit = self.scorer.setup(given, known)
        if known is not None:
            return  # its note tells of the search, which was not repeated
        loaders = given.train, given.id_val, given.ood_val
        passes = [loader.timing.typical for loader in loaders if isinstance(loader, FeatureBatches)]
        note = {
            "made_with": self.made_with,
            "hyperparameters": dict(fit.hyperparameters),
            "search": None if fit.search is None else dict(fit.search),
            "advice": None if fit.advice is None else dict(fit.advice),
            "seconds": max(0.0, meter.seconds - fit.advice_seconds) + sum(passes),
            "peak_mb": meter.peak_mb,
        }
        cells.write_note(self.folder / "setup.json", note)

    def _score(self, name: str) -> None:
        loader = self.bench.loader(name, self.method.needs)
        timed = TimedLoader(loader)
        with Meter(self.bench.device) as meter:
            # several processes share the batches, so that there is no time of a batch to record
            batches = timed if world().size == 1 else loader
            scored = self.scorer.score(batches)
            scored = checked_scores(scored, len(self.bench.samples[name]), name)
        shared = isinstance(loader, FeatureBatches)
        own, workers = timed.timing(meter), self.bench.study.workers
        cost = cells.Cost(
            own if shared else own.by_workers(workers),
            loader.timing.by_workers(workers) if shared else Timing(),
            meter.peak_mb,
        )
        about = {"made_with": {**self.made_with, "images": self.bench.identity[name]}, "cost": cost}
        cells.write_scores(self.folder / f"{name}.safetensors", scored, about)


def checked_scores(scored: Scores, n: int, name: str) -> Scores:
    """Scores of `n` samples as floating-point numbers; an error if they are not or not finite."""
    if scored.score.shape != (n,):
        raise NACError(f"expected {n} scores for {name}, got {list(scored.score.shape)}.")
    score = scored.score if scored.score.dtype.kind == "f" else scored.score.astype(np.float64)
    broken = int((~np.isfinite(score)).sum())
    if broken:
        raise NACError(f"{broken} of {n} scores of {name} are NaN or Inf.")
    return scored._replace(score=score)
