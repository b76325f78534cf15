"""The comparison itself: every method on every network and dataset, unless stored results exist."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional, Union

import numpy as np
from torch import nn

from nac_openood.benchmark.methods.scorer import MethodSetup, Scorer
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.benchmark.run import store
from nac_openood.benchmark.run.cost import Meter, TimedLoader, Timing
from nac_openood.benchmark.run.network import FeatureBatches, NetworkRun
from nac_openood.benchmark.run.results import RESULTS_FILE, Results
from nac_openood.benchmark.run.tabulate import paper_comparison, tabulate
from nac_openood.detector.batches import Say
from nac_openood.detector.outcomes import Scores
from nac_openood.distributed import from_main, synchronized, world
from nac_openood.errors import FileError, NACError, error_text
from nac_openood.files import locked, make_folder, remove
from nac_openood.network.replica import kept_random_state
from nac_openood.search.loaders import SurrogateLoader
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.samples import SampleList, Samples, bad_images, bad_images_text
from nac_openood.sources.sets import Datasets

#: Which datasets of image files had no unreadable images, by identity.
_CHECKED = "images.json"


class Surrogates:
    """Surrogate OOD samples made from ID validation data, one for each of its samples."""

    def __init__(self, id_val: Samples, seed: int) -> None:
        self._id_val, self._seed = id_val, seed

    def __len__(self) -> int:
        return len(self._id_val)

    @property
    def identity(self) -> str:
        """A text that is equal for equal samples only."""
        return f"surrogates of {self._id_val.identity}, seed {self._seed}"

    def loader(self) -> Iterable[Any]:
        """Batches of all samples, in order."""
        return SurrogateLoader(self._id_val.loader(), seed=self._seed)


@dataclass(frozen=True)
class Study:
    """Methods x networks x datasets.

    Args:
        sets: the datasets by role.
        arch: name of the network, for the record.
        network: returns the network of a run, on its device.
        runs: name and checkpoint of each network.
        methods: rows of the method table, in the order of the results.
        make: makes the scorer of a method for a run; may raise `Absent`.
        out: folder of the results.
        search: whether methods search their hyperparameters on validation data.
        reuse: whether `out` may hold results of an earlier run.
        batch_size: samples per batch.
        workers: number of processes that load samples.
        seed: random seed.
        skip_bad: leave out image files that cannot be read.
        progress: whether to show progress bars; None shows them on a terminal.
        say: function that is called with status messages.
        command: the command that repeats the comparison.
        skipped: number of images that were left out, by dataset; set by `checked`.
    """

    sets: Datasets
    arch: str
    network: Callable[[Checkpoint], nn.Module]
    runs: tuple[Checkpoint, ...]
    methods: tuple[Method, ...]
    make: Callable[[Method, Checkpoint], Scorer]
    out: Path
    search: bool = True
    reuse: bool = True
    batch_size: int = 100
    workers: int = 0
    seed: int = 0
    skip_bad: bool = False
    progress: Optional[bool] = None
    say: Say = lambda text: None
    command: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def fitting(self) -> dict[str, Union[Samples, Surrogates]]:
        """The datasets that methods may use for fitting and search, by name."""
        id_val = self._samples("id_val", self.sets.id_val)
        found = {"train": self._samples("train", self.sets.train), "id_val": id_val}
        if self.surrogates:
            return {**found, "ood_val": Surrogates(id_val, self.seed)}
        if self.search:
            return {**found, "ood_val": self._samples("ood_val", self.sets.ood_val)}
        return {**found}

    @cached_property
    def scored(self) -> dict[str, Samples]:
        """The test sets by name, in the order of `sets.roles()`."""
        return {name: self._samples(name, data) for name, data in self.sets.scored().items()}

    @property
    def surrogates(self) -> bool:
        """Whether the search of hyperparameters uses surrogates of OOD data."""
        return self.search and self.sets.ood_val is None

    def checked(self) -> Study:
        """Return the study without images that cannot be read, after checking all datasets.

        Datasets without bad images are listed in `out`, so that they are checked only once.

        Raises:
            NACError: images are missing or unreadable and `skip_bad` is not set, there is no OOD
                test set, a label of ID data is not a class, or surrogates cannot be made.
        """
        readable = store.read_note(self.out / _CHECKED) or {}
        errors: list[str] = []
        skipped: dict[str, int] = {}

        def check(name: str, images: Any) -> Any:
            if not isinstance(images, SampleList) or images.identity() in readable:
                return images
            bad = bad_images(images, workers=self.workers, progress=self.progress, title=name)
            if not bad:  # only then: a bad file may be readable next time
                readable[images.identity()] = name
                store.write_note(self.out / _CHECKED, readable)
                return images
            errors.append(f"{name}: {bad_images_text(images, bad)}")
            skipped[name] = len(bad)
            return images.without(list(bad))

        roles = ("train", "id_val", "ood_val", "test")
        found = {role: check(role, getattr(self.sets, role)) for role in roles}
        for role in ("near", "far", "shifted"):
            found[role] = {n: check(n, images) for n, images in getattr(self.sets, role).items()}
        if errors and not self.skip_bad:
            raise NACError(
                f"{'; '.join(errors)}. Replace them, or pass `skip_bad=True` to leave them out "
                "(the numbers are then those of the remaining images)."
            )
        for error in errors:
            self.say(f"left out: {error}")
        study = replace(self, sets=replace(self.sets, **found), skipped=skipped)
        if not study.sets.near and not study.sets.far:
            raise NACError("expected at least one OOD test set: pass `near`, `far` or both.")
        for name in ("train", "id_val", "test", *study.sets.shifted):
            samples: Any = {**study.fitting, **study.scored}[name]
            samples.check_labels(study.sets.n_classes)
        if study.surrogates:
            next(iter(study.fitting["ood_val"].loader()))
        return study

    def _samples(self, name: str, data: Any) -> Samples:
        return Samples(
            name, data, batch_size=self.batch_size, workers=self.workers, progress=self.progress
        )


def run_study(study: Study, *, paper: bool = False) -> Results:
    """Run what has no stored results yet, tabulate everything, and write `results.json`.

    Each result is stored as soon as it is available. A method that fails leaves an error file, and
    the others continue. If the study is interrupted, what is done so far is tabulated first.

    Args:
        study: what to compare.
        paper: put the published numbers beside the measured ones.
    """
    with locked(make_folder(study.out)), kept_random_state():
        store.clear_leftovers(study.out)
        # before all images are read, so that a wrong network is noticed at once
        loaded = [study.network(study.runs[0])]
        study = study.checked()
        remove(study.out / RESULTS_FILE)  # an old table would not match new scores
        done: set[tuple[str, str]] = set()
        try:
            for checkpoint in study.runs:
                study.say(f"{checkpoint.name}: {checkpoint.path}")
                run = _start(study, checkpoint, loaded)
                for number, method in enumerate(study.methods, start=1):
                    if run is not None:
                        _run_method(run, method, f"[{number}/{len(study.methods)}]")
                    done.add((checkpoint.name, method.name))
        finally:
            results = tabulate(study, done)
            if paper:
                results = replace(results, paper=paper_comparison(results))
            results.save()
        return results


def _start(study: Study, checkpoint: Checkpoint, loaded: list[nn.Module]) -> Optional[NetworkRun]:
    """Load a network and measure its accuracy; if that fails, store the error and return None."""
    name, note = checkpoint.name, study.out / "runs" / checkpoint.name / "run.json"
    remove(note)
    try:
        with synchronized(name):
            net = loaded.pop() if loaded else study.network(checkpoint)
            run = NetworkRun(study, checkpoint, net)
            accuracy = run.accuracy()
    except FileError:
        raise
    except Exception as error:
        if len(study.runs) == 1:
            raise NACError(
                f"the network cannot be run on this data: {error_text(error)}. Check that the "
                "architecture, the weights and the size of the samples fit together."
            ) from error
        study.say(f"{name} failed: {error_text(error)}")
        for method in study.methods:
            _write_error(store.method_folder(study.out, name, method.name), "failed", error)
        return None
    store.write_note(note, {"accuracy": accuracy})
    study.say(f"{name}: accuracy {accuracy:.2f} %")
    if accuracy < 2 * 100 / study.sets.n_classes:
        study.say(f"{name} is hardly better than chance: check its weights and the transform")
    return run


def _run_method(run: NetworkRun, method: Method, number: str) -> None:
    folder = run.folder(method)
    step = f"{number} {method.title}"
    try:
        with synchronized(method.name):  # a method that fails in one process fails in all of them
            scorer = run.study.make(method, run.checkpoint)
            pending, chosen = from_main("stored", lambda: _stored(run, method, scorer))
            done = not pending and chosen is not None
            run.study.say(f"{step} ({scorer.implementation})" + (": done before" if done else ""))
            if not done:
                _set_up(run, method, scorer, chosen)
                for name in pending:
                    _score(run, method, scorer, name)
            remove(folder / "error.json")
    except Absent as error:
        run.study.say(f"{step} is absent: {error}")
        _write_error(folder, "absent", error)
    except FileError:  # a full disk: no other method would succeed
        raise
    except Exception as error:  # third-party methods may raise anything
        run.study.say(f"{step} failed: {error_text(error)}")
        _write_error(folder, "failed", error)


def _write_error(folder: Path, status: str, error: Exception) -> None:
    store.write_note(folder / "error.json", {"status": status, "error": error_text(error)})


def _stored(
    run: NetworkRun, method: Method, scorer: Scorer
) -> tuple[list[str], Optional[Mapping[str, Any]]]:
    """Return the test sets without stored scores, and the hyperparameters if they are stored."""
    folder, made_with, pending = run.folder(method), run.made_with(scorer), []
    for name, samples in run.study.scored.items():
        found = store.read_scores(folder / f"{name}.safetensors")
        same = {**made_with, "images": run.identity[name]}
        if (
            found is None
            or found.cost is None
            or found.made_with != same
            or len(found.scores.score) != len(samples)
        ):
            pending.append(name)
    setup = store.read_setup(folder)
    if setup is None or setup.made_with != made_with:
        return pending, None
    return pending, setup.hyperparameters


def _set_up(
    run: NetworkRun, method: Method, scorer: Scorer, chosen: Optional[Mapping[str, Any]]
) -> None:
    inputs = run.inputs(method.needs)
    if method.needs == "features":
        # before the meter starts: time and memory of the shared pass are measured separately
        for name in run.samples:
            if name != "train" or method.uses_train:
                run.features(name)
    with Meter(run.device) as meter:
        setup = scorer.setup(inputs, chosen) or MethodSetup()
    if chosen is not None:
        return  # the stored setup describes the search, which was not repeated
    loaders = inputs.train, inputs.id_val, inputs.ood_val
    passes = [loader.timing.typical for loader in loaders if isinstance(loader, FeatureBatches)]
    note = {
        "made_with": run.made_with(scorer),
        "hyperparameters": dict(setup.hyperparameters),
        "search": setup.search,
        "advice": setup.advice,
        "seconds": max(0.0, meter.seconds - setup.advice_seconds) + sum(passes),
        "peak_mb": meter.peak_mb,
    }
    store.write_note(run.folder(method) / "setup.json", note)


def _score(run: NetworkRun, method: Method, scorer: Scorer, name: str) -> None:
    loader, workers = run.loader(name, method.needs), run.study.workers
    timed = TimedLoader(loader)
    with Meter(run.device) as meter:
        # several processes share the batches, so there is no time per batch to record
        scores = scorer.score(timed if world().size == 1 else loader)
        scores = checked_scores(scores, len(run.samples[name]), name)
    own, shared = timed.timing(meter), Timing()
    if isinstance(loader, FeatureBatches):
        shared = loader.timing.by_workers(workers)
    else:
        own = own.by_workers(workers)
    made_with = {**run.made_with(scorer), "images": run.identity[name]}
    about = {"made_with": made_with, "cost": store.Cost(own, shared, meter.peak_mb)}
    store.write_scores(run.folder(method) / f"{name}.safetensors", scores, about)


def checked_scores(scores: Scores, n: int, name: str) -> Scores:
    """Return the scores of `n` samples as floating-point numbers.

    Raises:
        NACError: there are more or fewer scores, or some are not finite.
    """
    if scores.score.shape != (n,):
        raise NACError(f"expected {n} scores for {name}, got {list(scores.score.shape)}.")
    score = scores.score if scores.score.dtype.kind == "f" else scores.score.astype(np.float64)
    broken = int((~np.isfinite(score)).sum())
    if broken:
        raise NACError(f"{broken} of {n} scores of {name} are NaN or Inf.")
    return scores._replace(score=score)
