"""Prepare the data of analyses and carry analyses out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Iterator, Optional, Sequence, Union

from torch import nn

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.extract import MOST_TRAIN, extract_data
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.table import chosen_kinds
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.table import AUTO_BACKEND
from nac_openood.benchmark.run.study import Study
from nac_openood.benchmark.run.vetting import vetted
from nac_openood.benchmark.run.workbench import Workbench
from nac_openood.detector.config import NACConfig
from nac_openood.errors import FileError, NACError
from nac_openood.files import make_folder
from nac_openood.locks import locked
from nac_openood.progress import Say
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.sets import Datasets

#: What one kind of analysis gave: its name, and what it found or why it could not.
AnalysisOutcome = tuple[str, Union[Finding, NACError]]


def prepare_analysis(
    net: nn.Module,
    sets: Datasets,
    out: Union[str, Path],
    *,
    arch: str,
    config: Optional[NACConfig] = None,
    search: bool = True,
    most_train: int = MOST_TRAIN,
    batch_size: int = 100,
    workers: int = 0,
    seed: int = 0,
    skip_bad: bool = False,
    checkpoint: str = "",
    progress: Optional[bool] = None,
    say: Say = lambda text: None,
    command: str = "",
) -> AnalysisData:
    """Read all datasets once, or take what was read before.

    Args:
        net: the classifier, on its device.
        sets: the datasets by role.
        out: folder of the results; the readings go into `readings` in it.
        arch: name of the architecture.
        config: NAC's settings and sweep; None takes those shipped for the data and the network,
            or automatic layers where there are none.
        search: whether to search NAC's settings, as `nac_openood.compare` does.
        most_train: how many training samples to read at most.
        batch_size: samples per batch.
        workers: number of processes that load samples.
        seed: random seed.
        skip_bad: leave out image files that cannot be read.
        checkpoint: where the weights come from, for the record.
        progress: whether to show progress bars; None shows them on a terminal.
        say: is told what is going on.
        command: the command that repeats the analysis, for the report.

    Raises:
        NACError: the data is incomplete, or the network cannot be run on it.
    """
    folder = make_folder(Path(out) / "readings")
    with locked(folder):
        sets, _ = vetted(
            sets, folder, skip_bad=skip_bad, workers=workers, progress=progress, say=say
        )
        run = Checkpoint("network", checkpoint)
        study = Study(
            sets=sets, arch=arch, network=lambda _: net, runs=(run,), methods=(),
            make=scorers((), AUTO_BACKEND), out=folder,
            batch_size=batch_size, workers=workers, seed=seed, progress=progress, command=command,
        )  # fmt: skip
        study.check()
        bench = Workbench(study, run, net)
        return extract_data(bench, config, search=search, most_train=most_train, say=say)


def analyze(
    data: AnalysisData, kinds: Sequence[str], options: Options
) -> Iterator[AnalysisOutcome]:
    """Carry out analyses one after the other; one that cannot be done does not stop the others.

    Args:
        data: from `prepare_analysis`.
        kinds: names of `analysis.table.KINDS`, or "all".
        options: for all of them.

    Yields:
        The name of each kind, and what it found or the error that says why it could not.
    """
    if options.against not in (None, "paper"):
        raise NACError(f"`against` must be 'paper' or None, got {options.against!r}.")
    for kind in chosen_kinds(kinds):
        options.say(f"analysis: {kind.name}")
        try:
            found = kind.function()(data, options)
            yield kind.name, replace(found, about=data.about())
        except FileError:  # a full disk: no other analysis would succeed
            raise
        except NACError as error:
            yield kind.name, error
