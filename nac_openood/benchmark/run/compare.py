"""The comparison itself: every method on every network and dataset, and the table of results."""

from __future__ import annotations

import datetime
import platform
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from nac_openood.benchmark.methods.scorer import Scorer
from nac_openood.benchmark.methods.table import Method
from nac_openood.benchmark.run import results, store
from nac_openood.benchmark.run.cost import typical_rate
from nac_openood.benchmark.run.examples import confident_mistakes, hardest
from nac_openood.benchmark.run.network import Failure, NetworkRun
from nac_openood.benchmark.run.results import NetworkInfo, Results, Row
from nac_openood.detector.batches import Say, tqdm
from nac_openood.distributed import is_main, synchronized
from nac_openood.errors import FileError, NACError, error_text
from nac_openood.files import locked, make_folder, remove
from nac_openood.network.replica import kept_random_state
from nac_openood.search.loaders import SURROGATE_LABEL, SurrogateLoader
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.samples import SampleList, Samples, readable_images
from nac_openood.sources.sets import Datasets
from nac_openood.tensor_files import versions

#: Which datasets of image files had no unreadable images, by identity.
_CHECKED = "images.json"
_UNFINISHED: Failure = ("failed", "not finished: repeat the comparison to continue from here")
#: Seconds; a method that takes less had stored results.
_INSTANT = 0.2


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
        on_result: function that is called with each row that has a result, as soon as it has.
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
    on_result: Optional[Callable[[Row], None]] = None
    skipped: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def fitting(self) -> dict[str, Union[Samples, Surrogates]]:
        """The datasets that methods may use for fitting and search, by name."""
        id_val = self._samples("id_val", self.sets.id_val)
        found: dict[str, Any] = {"train": self._samples("train", self.sets.train), "id_val": id_val}
        if self.surrogates:
            found["ood_val"] = Surrogates(id_val, self.seed)
        elif self.search:
            found["ood_val"] = self._samples("ood_val", self.sets.ood_val)
        return found

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
            rest, problem = readable_images(
                images, name, workers=self.workers, progress=self.progress
            )
            if problem:
                errors.append(f"{name}: {problem}")
                skipped[name] = len(images) - len(rest)
            else:  # only then: a bad file may be readable next time
                readable[images.identity()] = name
                store.write_note(self.out / _CHECKED, readable)
            return rest

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


def run_study(study: Study, *, against: Optional[str] = None) -> Results:
    """Run all methods without stored results, tabulate everything, and write `results.json`.

    Each result is stored as soon as it is available. A method that fails does not stop the others.
    If the study is interrupted, the results so far are tabulated first.

    Args:
        study: what to compare.
        against: whose numbers to put beside the measured ones, one of `published.SOURCES`.
    """
    with locked(make_folder(study.out)), kept_random_state():
        store.clear_leftovers(study.out)
        # before all images are checked, so that a wrong network is noticed at once
        loaded = [study.network(study.runs[0])]
        study = study.checked()
        remove(study.out / results.RESULTS_FILE)  # an old table would not match new scores
        infos: dict[str, NetworkInfo] = {}
        rows: dict[tuple[str, str], Row] = {}
        left = TimeLeft([method.name for _ in study.runs for method in study.methods])
        device = torch.device("cpu")
        try:
            for checkpoint in study.runs:
                run = _start(study, checkpoint, loaded)
                info = infos[checkpoint.name] = NetworkInfo(*checkpoint)
                if isinstance(run, NetworkRun):
                    info = infos[checkpoint.name] = replace(info, accuracy=run.accuracy)
                    device = run.device
                for number, method in enumerate(study.methods, start=1):
                    step = f"[{number}/{len(study.methods)}{left}] {method.title}"
                    failed = run.run_method(method, step) if isinstance(run, NetworkRun) else run
                    row = rows[info.name, method.name] = _row(study, info, method, failed)
                    left.finished()
                    if row.status == "ok" and study.on_result is not None:
                        _notify(study.on_result, row)
        finally:
            found = tabulate(study, infos, rows, device)
            found = found.beside_published(against) if against else found
            found.save()
        return found


class TimeLeft:
    """How long the rest of a comparison will take, as text; empty while nothing is known.

    A method is expected to take as long as on earlier networks, or as the others' mean.

    Args:
        methods: the methods in the order in which they run, once for each network.
    """

    def __init__(self, methods: Sequence[str]) -> None:
        self._methods, self._last = list(methods), time.monotonic()
        self._seconds: dict[str, float] = {}

    def finished(self) -> None:
        """Note that the next method is done."""
        now, method = time.monotonic(), self._methods.pop(0)
        self._seconds[method] = max(self._seconds.get(method, 0.0), now - self._last)
        self._last = now

    def __str__(self) -> str:
        # results of an earlier run take no time, and say nothing about the rest
        known = [seconds for seconds in self._seconds.values() if seconds > _INSTANT]
        if not known:
            return ""
        mean = sum(known) / len(known)
        seconds = sum(self._seconds.get(method, mean) for method in self._methods)
        return f", about {tqdm.format_interval(seconds)} left"


def _notify(on_result: Callable[[Row], None], row: Row) -> None:
    """Call `on_result`; an error in it must not stop the comparison."""
    if not is_main():
        return
    try:
        on_result(row)
    except Exception as error:  # users' functions may raise anything
        text = f"`on_result` failed for {row.title} on {row.run}: {error_text(error)}"
        warnings.warn(text, UserWarning, stacklevel=2)


def _start(
    study: Study, checkpoint: Checkpoint, loaded: list[nn.Module]
) -> Union[NetworkRun, Failure]:
    """Load a network and measure its accuracy."""
    name = checkpoint.name
    study.say(f"{name}: {checkpoint.path}")
    try:
        with synchronized(name):
            net = loaded.pop() if loaded else study.network(checkpoint)
            run = NetworkRun(study, checkpoint, net)
            accuracy = run.accuracy
    except FileError:
        raise
    except Exception as error:  # users' networks may raise anything
        if len(study.runs) == 1:
            raise NACError(
                f"the network cannot be run on this data: {error_text(error)}. Check that the "
                "architecture, the weights and the size of the samples fit together."
            ) from error
        study.say(f"{name} failed: {error_text(error)}")
        return "failed", error_text(error)
    study.say(f"{name}: accuracy {accuracy:.2f} %")
    for doubt in _by_chance(study, [NetworkInfo(*checkpoint, accuracy)]):
        study.say(doubt)
    return run


def _by_chance(study: Study, runs: Iterable[NetworkInfo]) -> Iterator[str]:
    """A note for each network that is hardly better than chance."""
    for run in runs:
        if run.accuracy is not None and run.accuracy < 2 * 100 / study.sets.n_classes:
            yield (
                f"{run.name} is hardly better than chance, with an accuracy of {run.accuracy:.1f} "
                "%: check its weights, the transform, and that the data numbers its classes in "
                "the order of the network's outputs"
            )


# ---- the table


def tabulate(
    study: Study,
    infos: Mapping[str, NetworkInfo],
    done: Mapping[tuple[str, str], Row],
    device: torch.device,
) -> Results:
    """Collect the results of a study, with the samples to show.

    Args:
        study: what was compared.
        infos: the networks that were started, by name.
        done: rows by network and method. Others count as unfinished: what is stored may be of
            other weights.
        device: where the networks ran.
    """
    runs = tuple(infos.get(run.name, NetworkInfo(*run)) for run in study.runs)
    rows = tuple(
        done.get((run.name, method.name)) or _row(study, run, method, _UNFINISHED)
        for run in runs
        for method in study.methods
    )
    first = runs[0].name
    ready = [row.method for row in rows if (row.run, row.status) == (first, "ok")]
    # the time of the newest scores, so that equal results make equal documents
    times = [p.stat().st_mtime for p in study.out.glob("runs/*/*/*.safetensors")]
    created = datetime.datetime.fromtimestamp(max(times, default=0.0), datetime.timezone.utc)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    machine = {"device": name, "system": platform.system(), "threads": torch.get_num_threads()}
    sets = [
        results.SetInfo(name, role, len(study.scored[name]), study.skipped.get(name, 0))
        for name, role in study.sets.roles().items()
    ]
    return Results(
        study.out, study.sets.id_name, study.arch, study.command,
        created.isoformat(timespec="seconds"), versions(), machine, tuple(sets), runs, rows,
        gallery=tuple(hardest(study, first, ready)), surrogates=study.surrogates,
        notes=(*_by_chance(study, runs), *_notes(study, rows)),
        confident=confident_mistakes(study, first, ready),
    )  # fmt: skip


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


def _row(study: Study, run: NetworkInfo, method: Method, failure: Optional[Failure]) -> Row:
    folder = store.method_folder(study.out, run.name, method.name)
    setup = store.read_note(folder / "setup.json")
    read = {name: store.read_scores(folder / f"{name}.safetensors") for name in study.scored}
    stored = {name: found for name, found in read.items() if found is not None}
    about = method.name, method.title, run.name
    if failure is not None or setup is None or len(stored) < len(read):
        return Row(*about, "", *(failure or _UNFINISHED))
    peaks = [setup["peak_mb"], *(found.peak_mb for found in stored.values())]
    scores = {name: found.scores.score for name, found in stored.items()}
    times = [(len(s.scores.score), s.seconds + s.pass_seconds) for s in stored.values()]
    mean_rate = sum(seconds for _, seconds in times) / sum(samples for samples, _ in times)
    return Row(
        *about,
        implementation=setup["made_with"]["implementation"],
        status="ok",
        metrics=results.metrics_by_set(scores, study.sets.roles(), run.accuracy),
        setup_seconds=setup["seconds"],
        ms_per_image=1000 * typical_rate(times),
        peak_mb=max((peak for peak in peaks if peak is not None), default=None),
        shared_pass=method.needs == "features",
        **{name: setup[name] for name in ("hyperparameters", "search", "advice")},
        disturbed=mean_rate > 1.5 * typical_rate(times),
    )
