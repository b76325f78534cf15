"""Run methods on checkpoints; every result is written as it is made, and made once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

import numpy as np

from nac_openood.bench.checkpoints import Checkpoint
from nac_openood.bench.collect import plain_worker_errors
from nac_openood.bench.meter import Meter
from nac_openood.bench.methods import METHODS, UNTRAINED, Absent
from nac_openood.bench.scorer import Given, Scored, Scorer
from nac_openood.compare import cells
from nac_openood.compare.features import FeatureBatches
from nac_openood.compare.study import Study
from nac_openood.compare.workbench import Workbench
from nac_openood.errors import FileError, NACError

Say = Callable[[str], None]


def run_study(study: Study, visited: set[tuple[str, str]], say: Say = lambda text: None) -> None:
    """Fill every cell that is not there yet; a method that fails leaves a note, others go on.

    Args:
        study: what is compared.
        visited: every (run, method) whose cells are as they should be is added to it, also when
            this function is interrupted.
        say: is told what is going on.
    """
    for run in study.runs:
        say(f"{run.name}: {run.path}")
        bench = _begin(study, run, say)
        if bench is None:
            visited.update((run.name, method) for method in study.methods)
            continue
        for number, method in enumerate(study.methods, start=1):
            step = f"[{number}/{len(study.methods)}] {METHODS.get(method, method)}"
            _run_method(bench, method, partial(_say_of, say, step))
            visited.add((run.name, method))


def _begin(study: Study, run: Checkpoint, say: Say) -> Optional[Workbench]:
    """The run's network and accuracy; None, with a note for every method, where it cannot begin."""
    folder = study.out / "runs" / run.name
    (folder / "run.json").unlink(missing_ok=True)
    try:
        bench = Workbench(study, run, study.network(run))
        accuracy = bench.accuracy()
    except FileError:
        raise
    except Exception as error:
        if len(study.runs) == 1:  # there is nothing else to go on with
            raise NACError(
                f"the network cannot be run on these images: {_told(error)}. Check --arch, "
                "--checkpoint and the size of the images (docs/compare.md)."
            ) from error
        say(f"{run.name} failed: {_told(error)}")
        for method in study.methods:
            note = {"status": "failed", "error": _told(error)}
            cells.write_note(cells.cell_folder(study.out, run.name, method) / "error.json", note)
        return None
    cells.write_note(folder / "run.json", {"accuracy": accuracy})
    say(f"{run.name}: accuracy {accuracy:.2f} %")
    if accuracy < 2 * 100 / study.sets.n_classes:
        say(f"{run.name} is hardly better than guessing: are weights and transform the right ones?")
    return bench


def _run_method(bench: Workbench, method: str, say: Say) -> None:
    folder = cells.cell_folder(bench.study.out, bench.run.name, method)
    failure = folder / "error.json"
    try:
        scorer = bench.study.make(method, bench.run)
        made_with = bench.made_with(scorer)
        pending = bench.pending(folder, made_with)
        done = not pending and _known_setup(folder, made_with) is not None
        say(f"({scorer.implementation})" + (": done before" if done else ""))
        if not done:
            with plain_worker_errors():
                _fill(bench, method, scorer, pending, made_with)
        failure.unlink(missing_ok=True)
    except Absent as error:
        say(f"is absent: {error}")
        cells.write_note(failure, {"status": "absent", "error": str(error)})
    except FileError:  # a full disk is nobody's failure, and no other method would fare better
        raise
    except Exception as error:  # somebody else's method may raise anything
        say(f"failed: {_told(error)}")
        cells.write_note(failure, {"status": "failed", "error": _told(error)})


def _told(error: Exception) -> str:
    """On one line: somebody's message may have many."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NACError) else f"{type(error).__name__}: {text}"


def _say_of(say: Say, step: str, text: str) -> None:
    say(f"{step} {text}")


def _fill(
    bench: Workbench, method: str, scorer: Scorer, pending: list[str], made_with: dict[str, Any]
) -> None:
    folder = cells.cell_folder(bench.study.out, bench.run.name, method)
    given = bench.given(scorer.needs)
    if scorer.needs == "features":
        # ahead of the meter, which is to see this method's memory and not the pass's
        for name in bench.images:
            if name != "train" or method not in UNTRAINED:
                bench.features(name)
    _set_up(bench, scorer, folder, given, made_with)
    for name in pending:
        _score(bench, scorer, folder, name, made_with)


def _set_up(
    bench: Workbench, scorer: Scorer, folder: Path, given: Given, made_with: dict[str, Any]
) -> None:
    known = _known_setup(folder, made_with)
    with Meter(bench.device) as meter:
        fit = scorer.setup(given, None if known is None else known["hyperparameters"])
    if known is not None:
        return  # it tells of the search, which this time there was none of
    loaders = given.train, given.id_val, given.ood_val
    note = {
        "made_with": made_with,
        "hyperparameters": dict(fit.hyperparameters),
        "search": None if fit.search is None else dict(fit.search),
        "seconds": meter.seconds + sum(_share(loader) for loader in loaders),
        "peak_mb": meter.peak_mb,
    }
    cells.write_note(folder / "setup.json", note)


def _score(
    bench: Workbench, scorer: Scorer, folder: Path, name: str, made_with: dict[str, Any]
) -> None:
    loader = bench.loader(name, scorer.needs)
    with Meter(bench.device) as meter:
        scored = scorer.score(loader)
    _check(scored, len(bench.images[name]), name)
    about = {
        "made_with": {**made_with, "images": bench.identity[name]},
        "seconds": meter.seconds + _share(loader),
        "peak_mb": meter.peak_mb,
        "shared_pass": scorer.needs == "features",
    }
    cells.write_scores(folder / f"{name}.safetensors", scored, about)


def _known_setup(folder: Path, made_with: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """The note of an earlier set-up, where it was made with the same."""
    note = cells.read_note(folder / "setup.json")
    return note if note is not None and note.get("made_with") == made_with else None


def _share(loader: Any) -> float:
    """The time of the shared pass, for a method that looked at it: as if it ran alone."""
    return loader.seconds - loader.waited if isinstance(loader, FeatureBatches) else 0.0


def _check(scored: Scored, n: int, name: str) -> None:
    if scored.score.shape != (n,):
        raise NACError(f"expected {n} scores for {name}, got {list(scored.score.shape)}.")
    broken = int((~np.isfinite(scored.score)).sum())
    if broken:
        raise NACError(f"{broken} of {n} scores of {name} are NaN or Inf.")
