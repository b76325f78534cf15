"""The results of a comparison: `results.json`, its rows and metrics.

Metrics are in percent, as OpenOOD prints them. Scores and pictures are in files beside
`results.json` and read when needed. `nac_openood.report` makes tables and pages from `Results`.

Higher scores mean more in-distribution (ID). Two numbers are called FPR@95 in the literature:

* `FPR@95` is OpenOOD's: OOD is the positive class. It is the share of ID samples that are rejected
  at the threshold that finds 95 % of the OOD samples.
* `FPR@95_IN` is that of most papers: ID is the positive class. It is the share of OOD samples that
  are accepted at the threshold that keeps 95 % of the ID samples, which is also the threshold of
  `NACDetector.calibrate`.

They can rank methods differently. AUPR_OUT takes OOD as the positive class, AUPR_IN takes ID.
All but `FPR@95_IN` are computed as OpenOOD does it, with scikit-learn.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from nac_openood import files
from nac_openood.benchmark.paper.published import NAC_PAPER, against
from nac_openood.benchmark.run import store
from nac_openood.benchmark.run.significance import Difference, Paired
from nac_openood.core.metrics import fpr_in_at
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import NACError
from nac_openood.records import from_values

RESULTS_FILE, SCORES_FILE = "results.json", "scores.npz"
_FORMAT, _KIND = 1, "a comparison (of nac-openood compare)"

METRICS = ("FPR@95", "FPR@95_IN", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")
#: The names of the means over near and far sets, as in OpenOOD.
NEAR, FAR = "nearood", "farood"
#: Their names inside a sentence, and in titles.
GROUP_WORDS = {NEAR: "near-OOD", FAR: "far-OOD"}
GROUP_NAMES = {NEAR: "Near-OOD", FAR: "Far-OOD"}


def ood_metrics(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """All metrics but the accuracy, in percent, from ID and OOD scores `[samples]`.

    Raises:
        ValueError: of scikit-learn, if some scores are NaN or Inf.
    """
    from sklearn.metrics import auc, precision_recall_curve, roc_curve

    score = np.concatenate([inside, outside])
    is_ood = np.concatenate([np.zeros(len(inside), int), np.ones(len(outside), int)])
    fpr, tpr, _ = roc_curve(is_ood, -score)
    found = {
        "FPR@95": fpr[np.argmax(tpr >= 0.95)],
        "FPR@95_IN": fpr_in_at(inside, outside),
        "AUROC": auc(fpr, tpr),
    }
    for name, positive, sign in (("AUPR_IN", 1 - is_ood, 1), ("AUPR_OUT", is_ood, -1)):
        precision, recall, _ = precision_recall_curve(positive, sign * score)
        found[name] = auc(recall, precision)
    return {name: 100 * float(value) for name, value in found.items()}


def metrics_by_set(
    scores: Mapping[str, np.ndarray], roles: Mapping[str, str], accuracy: Optional[float]
) -> dict[str, dict[str, float]]:
    """The metrics of every OOD set, and their means "nearood" and "farood", as in OpenOOD.

    Args:
        scores: `[samples]` by test set.
        roles: "id", "csid" (a shifted set, which counts as ID), "near" or "far" by test set.
        accuracy: ID accuracy in percent, which OpenOOD repeats for every set; None if unknown.
    """
    table: dict[str, dict[str, float]] = {}
    known = {} if accuracy is None else {"ACC": accuracy}
    inside = np.concatenate([scores[n] for n, role in roles.items() if role in ("id", "csid")])
    for mean, outside in ((NEAR, "near"), (FAR, "far")):
        names = [name for name, role in roles.items() if role == outside]
        lines = {name: ood_metrics(inside, scores[name]) for name in names}
        if lines:
            columns = {m: [line[m] for line in lines.values()] for m in METRICS[:-1]}
            lines[mean] = {metric: float(np.mean(column)) for metric, column in columns.items()}
        table.update({name: {**line, **known} for name, line in lines.items()})
    return table


class Value(NamedTuple):
    """A mean and its sample standard deviation (over n - 1), None for a single number."""

    mean: float
    std: Optional[float]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Value:
        """The value of one number or more."""
        several = len(numbers) > 1
        return cls(float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if several else None)


@dataclass(frozen=True)
class SetInfo:
    """A dataset that was scored; `role` is "id", "csid", "near" or "far"."""

    name: str
    role: str
    images: int
    skipped: int = 0


@dataclass(frozen=True)
class NetworkInfo:
    """A network; `accuracy` is in percent, on the ID test set and the covariate-shifted ones."""

    name: str
    checkpoint: str
    accuracy: Optional[float] = None


@dataclass(frozen=True)
class Row:
    """A method on a network.

    Args:
        method: the method's name, e.g. "temp_scaling".
        title: the name in tables, e.g. "TempScale".
        run: name of the network.
        implementation: the library whose code ran, with its version.
        status: "ok", "failed", or "absent" if the method cannot run here.
        error: why it failed or is absent, on one line.
        metrics: percent by name of an OOD set, "nearood" or "farood", and by metric; see
            `METRICS`.
        setup_seconds: time of fitting and search, with the network passes as if run alone.
        ms_per_image: time of scoring, with the network pass as if run alone; the median of the
            test sets.
        peak_mb: peak memory beyond what was in use before.
        shared_pass: whether it ran on features of a pass that several methods share.
        hyperparameters: those in use.
        search: what the search reports.
        advice: how the method compares with simpler ones on validation data.
        disturbed: whether test sets took such different times that `ms_per_image` is uncertain.
    """

    method: str
    title: str
    run: str
    implementation: str
    status: str
    error: Optional[str] = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    setup_seconds: Optional[float] = None
    ms_per_image: Optional[float] = None
    peak_mb: Optional[float] = None
    shared_pass: bool = False
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    search: Optional[Mapping[str, Any]] = None
    advice: Optional[Mapping[str, Any]] = None
    disturbed: bool = False

    def flat(self) -> dict[str, float]:
        """Metrics by `SET/METRIC`, and times, for loggers."""
        numbers = {f"{n}/{m}": v for n, line in self.metrics.items() for m, v in line.items()}
        times = {n: getattr(self, n) for n in ("setup_seconds", "ms_per_image")}
        return {**numbers, **{n: v for n, v in times.items() if v is not None}}


@dataclass(frozen=True)
class HardSample:
    """A hard sample of a method: `kind` is "id-lowest" or "ood-highest".

    `file` is a PNG, relative to the results' folder, or None if the sample has no picture;
    `layers` holds its scores per layer, between 0 and 1.
    """

    kind: str
    dataset: str
    name: str
    score: float
    layers: Mapping[str, float]
    file: Optional[str] = None
    method: str = "nac"


@dataclass(frozen=True)
class Mistake:
    """An OOD sample that the network assigns to a class, `answer`, with high confidence."""

    dataset: str
    name: str
    answer: str
    confidence: float
    p_value: float
    file: Optional[str] = None


@dataclass(frozen=True)
class ConfidentMistakes:
    """For how many OOD samples a network is sure of a class, and how many an alarm catches.

    Args:
        method: the title of the rule that raises the alarm.
        n_classes: how many classes the network knows.
        n_known: number of ID test samples; p-values rank among their scores.
        sets: by OOD set the number of samples, of those the network is sure about, and of those
            among the latter with an alarm.
        examples: mistakes among the ten surest of their sets.
        sure: from which confidence on the network is sure.
        level: p-values at or below it raise an alarm.
        known: pictures of ID samples, one for each class.
        shown: pictures of each OOD set.
    """

    method: str
    n_classes: int
    n_known: int
    sets: Mapping[str, tuple[int, int, int]]
    examples: tuple[Mistake, ...]
    sure: float
    level: float
    known: tuple[str, ...] = ()
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A whole comparison.

    Args:
        folder: the folder of the results.
        id_name: name of the in-distribution data.
        arch: name of the network.
        command: the command that repeats the comparison.
        created: ISO date and time of the newest result.
        versions: versions of the libraries.
        machine: e.g. {"device": "CPU", "threads": 2}.
        sets: the datasets that were scored, the ID test set first.
        runs: the networks.
        rows: every method on every network, in the order of the call.
        gallery: the samples that NAC+ and NAC find hardest.
        paper: measured and published numbers, as `paper.published.against` returns them; empty if
            not requested.
        notes: what a reader should know, e.g. how many images were skipped.
        surrogates: whether hyperparameters were searched against surrogates of OOD data.
        confident: confident mistakes of the first network, if it makes any.
    """

    folder: Path
    id_name: str
    arch: str
    command: str
    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    sets: tuple[SetInfo, ...]
    runs: tuple[NetworkInfo, ...]
    rows: tuple[Row, ...]
    gallery: tuple[HardSample, ...] = ()
    paper: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    surrogates: bool = False
    confident: Optional[ConfidentMistakes] = None

    def __repr__(self) -> str:
        rows = self.methods()
        ok = [own[0] for own in rows.values() if any(row.status == "ok" for row in own)]
        text = f"Results of {len(ok)} of {len(rows)} methods on {self.id_name}, in {self.folder}"
        for group, title in GROUP_NAMES.items():
            found = [(v.mean, r.title) for r in ok if (v := self.value(r.method, group, "AUROC"))]
            best = ", ".join(f"{name} {mean:.2f}" for mean, name in sorted(found, reverse=True)[:5])
            text += f"\n  {title} AUROC: {best}" if best else ""
        return text

    def methods(self) -> dict[str, list[Row]]:
        """The rows by method, in the order of the call."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.method, []).append(row)
        return found

    def value(self, method: str, dataset: str, metric: str) -> Optional[Value]:
        """Mean and sample standard deviation over the runs that worked.

        None if any of them lacks the number: a mean over fewer runs would look like one over all.
        """
        rows = [r for r in self.rows if r.method == method and r.status == "ok"]
        numbers = [r.metrics.get(dataset, {}).get(metric, np.nan) for r in rows]
        return Value.of(numbers) if numbers and np.isfinite(numbers).all() else None

    def summary(self) -> list[dict[str, Any]]:
        """A dict per method and dataset, with mean and sample standard deviation of every metric.

        `runs` is the number of runs that worked. See also `table`.
        """
        rows, methods = [], self.methods()
        lines = {(line["method"], line["dataset"]): line for line in self.table()}
        for (method, dataset), line in lines.items():
            row = {name: line[name] for name in ("method", "title", "dataset", "role")}
            row["runs"] = sum(r.status == "ok" for r in methods[method]) if dataset else 0
            for metric in METRICS:
                value = self.value(method, dataset, metric)
                row.update({metric: value and value.mean, f"{metric} std": value and value.std})
            rows.append(row)
        return rows

    def table(self) -> list[dict[str, Any]]:
        """A dict per method, run and dataset, e.g. for `pandas.DataFrame`.

        A method without numbers has one dict, with `status`, `error` and no dataset.
        """
        roles = {s.name: s.role for s in self.sets}
        roles.update({NEAR: "mean of near", FAR: "mean of far"})
        costs = ("setup_seconds", "ms_per_image", "peak_mb", "shared_pass", "disturbed")
        about = ("implementation", "status", "error")
        return [
            {
                **{name: getattr(row, name) for name in ("method", "title", "run")},
                "dataset": dataset,
                "role": roles.get(dataset, ""),
                **{name: row.metrics.get(dataset, {}).get(name) for name in METRICS},
                **{name: getattr(row, name) for name in (*costs, *about)},
            }
            for row in self.rows
            for dataset in row.metrics or [""]
        ]

    def names(self, role: str) -> list[str]:
        """The names of the datasets of a role, in order."""
        return [s.name for s in self.sets if s.role == role]

    def ood_sets(self, dataset: str) -> list[str]:
        """The OOD sets behind a mean, "nearood" or "farood"; any other name is that of one set."""
        return {NEAR: self.names("near"), FAR: self.names("far")}.get(dataset, [dataset])

    def scores(self, run: str, method: str, dataset: str) -> Optional[Scores]:
        """The scores of a dataset, or None if there are none."""
        folder = store.method_folder(self.folder, run, method)
        found = store.read_scores(folder / f"{dataset}.safetensors")
        return None if found is None else found.scores

    def differences(self, reference: str, dataset: str) -> list[Difference]:
        """How the AUROC of every method differs from that of a reference; see `Paired`."""
        return Paired(self, dataset).against(reference)

    def write_scores(self) -> Path:
        """Write the scores of all methods to `scores.npz` in the folder, and return its path.

        Its arrays `[samples]`, in the order of the datasets: `RUN/METHOD/SET` are scores, higher =
        more in-distribution; `RUN/prediction/SET` are predicted classes and `RUN/label/SET` labels,
        -1 where there is none.
        """
        arrays: dict[str, Any] = {}
        for row, each in product((r for r in self.rows if r.status == "ok"), self.sets):
            found = self.scores(row.run, row.method, each.name)
            if found is not None:
                named = {row.method: found.score, "prediction": found.prediction}
                named["label"] = found.label
                arrays.update({f"{row.run}/{n}/{each.name}": array for n, array in named.items()})
        path = self.folder / SCORES_FILE
        with files.replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        return path

    def save(self) -> None:
        """Write `results.json` into the folder, atomically."""
        content = {name: value for name, value in asdict(self).items() if name != "folder"}
        files.write_document(self.folder / RESULTS_FILE, _FORMAT, content, kind=_KIND)

    @classmethod
    def load(cls, folder: Union[str, Path]) -> Results:
        """Read what `save` wrote, from its folder or file.

        Raises:
            FileError: there is no such file, or it is damaged or newer than this package.
        """
        folder = Path(folder).parent if Path(folder).is_file() else Path(folder)
        path = folder / RESULTS_FILE
        return files.read_document(
            path, _FORMAT, partial(from_values, cls, folder=folder), kind=_KIND,
            again="Repeat the comparison",
            missing=f"there is no {path}: expected the folder of a comparison",
        )  # fmt: skip

    def beside_published(self, source: str) -> Results:
        """With the means over runs and the published numbers side by side."""
        sets = [*self.names("near"), NEAR, *self.names("far"), FAR]
        rows = against(self.value, list(self.methods()), sets, self.id_name, self.arch, source)
        return replace(self, paper=tuple(rows))


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
    runs: dict[str, tuple[NetworkInfo, Path]] = {}
    chosen: dict[tuple[str, str], tuple[Row, Path]] = {}

    def check(same: bool, other: Path, problem: str) -> None:
        if not same:
            raise NACError(f"{folder} and {other} {problem}. Leave one of them out.")

    for part in parts:
        folder = part.folder
        if folder.resolve() == out.resolve():
            raise NACError(f"{out} is one of the comparisons to merge. Choose another folder.")
        for what in ("id_name", "arch", "sets", "surrogates"):
            same = getattr(part, what) == getattr(first, what)
            check(same, first.folder, f"compare different things: `{what}` differs")
        for run in part.runs:
            before, other = runs.setdefault(run.name, (run, folder))
            same = run.accuracy == before.accuracy
            check(same, other, f"have different networks of the name {run.name}")
        for row in part.rows:
            best, other = chosen.setdefault((row.run, row.method), (row, folder))
            if row.status == best.status == "ok":
                same = row.metrics == best.metrics
                check(same, other, f"have different results of {row.title} on {row.run}")
            elif row.status == "ok":
                chosen[row.run, row.method] = row, folder
    pictured = next((part for part in parts if part.gallery), first)
    copied = [(folder, store.method_folder(Path(), *key)) for key, (_, folder) in chosen.items()]
    files.make_folder(out)
    for folder, name in [*copied, (pictured.folder, Path("gallery"))]:
        if (folder / name).is_dir():
            hidden = shutil.ignore_patterns(".*")  # unfinished files
            shutil.copytree(folder / name, out / name, ignore=hidden, dirs_exist_ok=True)
    whole = replace(
        first, folder=out, runs=tuple(run for run, _ in runs.values()),
        rows=tuple(row for row, _ in chosen.values()),
        created=max(part.created for part in parts), gallery=pictured.gallery, paper=(),
        confident=pictured.confident,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )  # fmt: skip
    beside = [each for part in parts for each in part.paper]
    whole = whole.beside_published(beside[0].get("source", NAC_PAPER)) if beside else whole
    whole.save()
    return whole
