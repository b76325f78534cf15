"""The methods whose cost is measured, each running the network itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from torch import nn

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.options import Options
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.scorer import Given, Scorer
from nac_openood.benchmark.methods.table import Method, chosen_methods
from nac_openood.detector.batches import batches
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.presets import preset_for
from nac_openood.detector.subset import fitting_loader
from nac_openood.errors import error_text
from nac_openood.network.head import Head, head_of, with_features

_BASELINES = ("msp", "gen", "vim", "she")


class Workload(NamedTuple):
    """What methods are set up on and what they score.

    Args:
        given: network and fitting data.
        test: batches of test samples, in memory.
        n_train: number of training samples in `given`.
        all_train: number of training samples that there are.
        batch_size: samples per batch.
        device: where the network computes.
    """

    given: Given
    test: Sequence[Mapping[str, Any]]
    n_train: int
    all_train: int
    batch_size: int
    device: str

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return sum(len(batch["data"]) for batch in self.test)


def workload(data: AnalysisData, most: Optional[int] = None) -> Workload:
    """The training data and ID test samples, at most so many of each."""
    given, study = data.bench.given("network"), data.bench.study
    all_train = len(given.train.dataset)  # type: ignore[attr-defined]
    given = replace(given, search=False, ood_val=None, progress=False)
    if most is not None and most < all_train:
        given = replace(given, train=fitting_loader(given.train, most))
    test: list[dict[str, Any]] = []
    room = most
    for batch in batches(study.scored["test"].loader()):
        part = batch.rows(slice(room))
        test.append({"data": part.data, "label": part.labels()})
        room = None if room is None else room - part.size
        if room == 0:
            break
    n_train = len(given.train.dataset)  # type: ignore[attr-defined]
    return Workload(given, test, n_train, all_train, study.batch_size, data.bench.device.type)


@dataclass(frozen=True)
class Contestant:
    """A method: `set_up` returns how many training samples it looked at."""

    name: str
    set_up: Callable[[Workload], int]
    score: Callable[[Sequence[Any]], Any]


def contestants(
    data: AnalysisData, work: Workload, options: Options, problems: dict[str, str]
) -> list[Contestant]:
    """Baselines, NAC from its deepest layer to all layers, and NAC+.

    Args:
        data: settings of NAC.
        work: what they are set up on.
        options: names of the baselines and whose they are.
        problems: receives why a method cannot run.
    """
    rows = [row for row in chosen_methods(options.methods or _BASELINES) if row.rule is None]
    found = []
    make = scorers(rows, options.backend, say=options.say)
    for row in rows:
        try:
            found.append(_baseline(row, make(row, data.bench.run), work))
        except Exception as error:  # methods of others may raise anything
            problems[row.title] = error_text(error)
    for n in range(1, len(data.layers) + 1):
        found.append(_nac(data, n))
    return [*found, _plus(data)]


def _nac(data: AnalysisData, n: int) -> Contestant:
    layers = {name: data.settings[name] for name in data.layers[:n]}
    title = f"NAC, {n} layer{'s' if n > 1 else ''}"
    return _own(title, partial(NACDetector, data.bench.net, layers), data.config.n_samples)


def _plus(data: AnalysisData) -> Contestant:
    config = preset_for(data.bench.net, data.id_name, "nac_plus")
    make = partial(NACDetector, data.bench.net, config.layer_choice, rule=config.rule)
    return _own("NAC+", make, config.n_samples, n_val=len(data.bench.study.fitting["id_val"]))


def _own(
    title: str, make: Callable[[], NACDetector], n_samples: Optional[int], *, n_val: int = 0
) -> Contestant:
    """A detector of this package; with `n_val` it is calibrated on so many ID samples."""
    fitted: list[NACDetector] = []

    def set_up(work: Workload) -> int:
        wanted = None if n_samples is None or n_samples > work.n_train else n_samples
        detector = make().fit(work.given.train, wanted, progress=False)
        if n_val:
            detector.calibrate(work.given.id_val, progress=False)
        fitted[:] = [detector]
        return n_val + (work.n_train if wanted is None else wanted)

    def score(test: Sequence[Any]) -> Any:
        return fitted[0].score_loader(test, progress=False)

    return Contestant(title, set_up, score)


def _baseline(row: Method, scorer: Scorer, work: Workload) -> Contestant:
    """A baseline that computes the features it needs itself, as it would alone."""
    given = work.given
    net, head = given.net, None
    if row.needs == "features":
        head = head_of(net, work.test[0]["data"])[1]
        given = replace(
            given, net=Head(head), train=_Featured(net, head, given.train),
            id_val=_Featured(net, head, given.id_val),
        )  # fmt: skip

    def set_up(work: Workload) -> int:
        scorer.setup(given)
        return work.n_train if row.uses_train else 0

    def score(test: Sequence[Any]) -> Any:
        return scorer.score(test if head is None else _Featured(net, head, test))

    return Contestant(row.title, set_up, score)


class _Featured:
    """A loader of features that are computed as they are asked for."""

    def __init__(self, net: nn.Module, head: nn.Linear, loader: Iterable[Any]) -> None:
        self._net, self._head, self._loader = net, head, loader

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in batches(self._loader):
            features = with_features(self._net, batch.data, self._head).features
            yield {"data": features, "label": batch.labels()}
