"""Prepares the data of analyses with one pass over the network, and runs analyses on it.

Readings of every dataset are stored in the folder `readings`:

    fitting/                  the fitting subset, validation sets, held-out training samples
    training.safetensors      the other training samples
    test/SET.safetensors      a test set

A file that was made with the same network, data and versions is reused, so an interrupted pass
continues where it stopped.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterable, Iterator, Optional, Sequence, Union

import numpy as np
from torch import nn
from torch.utils.data import Subset

from nac_openood.analysis import chosen_kinds
from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding
from nac_openood.benchmark.methods.backends import NACScorer, scorers
from nac_openood.benchmark.methods.table import AUTO_BACKEND
from nac_openood.benchmark.run import store
from nac_openood.benchmark.run.compare import Study
from nac_openood.benchmark.run.network import NetworkRun
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.batches import Say, fitting_loader, loader_like
from nac_openood.detector.config import NACConfig, preset_or_auto
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError, NACError
from nac_openood.files import locked, make_folder, remove
from nac_openood.search.loaders import held_out_of
from nac_openood.search.recipe import HELD_OUT, gather, is_searched, search_settings
from nac_openood.search.stored import ReadingSet
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.sets import Datasets
from nac_openood.tensor_files import checksum_in

#: How many training samples are read at most, for the studies of the number of samples and of
#: methods that are fitted on all training data.
MOST_TRAIN = 50_000

#: The result of one kind of analysis: its name, and the finding or the error that prevented it.
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
    checkpoint: str = "",
    say: Say = lambda text: None,
    **options: Any,
) -> AnalysisData:
    """Read all datasets once, or load what was read before, and choose NAC's settings.

    Args:
        net: the classifier, on its device.
        sets: the datasets by role.
        out: folder of the results; the readings go into `readings` in it.
        arch: name of the architecture.
        config: NAC's settings and sweep; None takes those shipped for the data and the network,
            or automatic layers where there are none.
        search: whether to search NAC's settings, as `nac_openood.compare` does.
        most_train: upper limit of training samples to read.
        checkpoint: where the weights come from, for the record.
        say: receives progress messages.
        options: those of `Study`: `batch_size`, `workers`, `seed`, `skip_bad`, `progress` and
            `command`.

    Raises:
        NACError: the data is incomplete, or the network cannot be run on it.
    """
    folder = make_folder(Path(out) / "readings")
    with locked(folder):
        weights = Checkpoint("network", checkpoint)
        study = Study(
            sets=sets, arch=arch, network=lambda _: net, runs=(weights,), methods=(),
            make=scorers((), AUTO_BACKEND), out=folder, say=say, **options,
        ).checked()  # fmt: skip
        run = NetworkRun(study, weights, net)
        return _read(run, config or preset_or_auto(net, sets.id_name), search, most_train, say)


def _read(
    run: NetworkRun, config: NACConfig, search: bool, most_train: int, say: Say
) -> AnalysisData:
    """Read all datasets that have no stored readings, and choose NAC's settings as `compare`."""
    study, inputs = run.study, run.inputs("network")
    # gradients of all layers are read, whatever their settings are
    layers = {name: LayerConfig(layout=used.layout) for name, used in config.layers.items()}
    read_config = NACConfig(layers, n_samples=config.n_samples)
    reader = NACDetector(run.net, read_config.layer_choice)
    made_with = run.made_with(NACScorer(read_config, strategy="read"))

    def read(file: str, name: str, loader: Iterable[Any], title: str, **note: Any) -> Readings:
        """The readings in a file if nothing has changed since, else those of a new pass."""
        path, note_path = (study.out / f"{file}{end}" for end in (".safetensors", ".json"))
        note = {"made_with": made_with, "images": run.identity[name], **note}
        if store.read_note(note_path) == {**note, "checksum": checksum_in(path)}:
            with suppress(FileError):
                return Readings.load(path)
        say(f"reading {title}")
        remove(note_path)
        found = reader.read_loader(loader, save_to=path, progress=study.progress)
        # written last, because without it the file counts as missing
        store.write_note(note_path, {**note, "checksum": checksum_in(path)})
        return found

    fitting = None
    with suppress(FileError):
        fitting = ReadingSet.load(study.out / "fitting")
    if fitting is not None and fitting.about.get("made_with") == made_with:
        say("readings of the fitting and validation data: made before")
    else:
        fitting = gather(
            reader, inputs.train, inputs.id_val, None if study.surrogates else inputs.ood_val,
            n_samples=config.n_samples, n_held_out=HELD_OUT, folder=study.out / "fitting",
            about={"made_with": made_with}, seed=study.seed, say=say, progress=study.progress,
        )  # fmt: skip
    train: Any = inputs.train
    rows: list[int] = []  # indices of the training samples in `fitting`
    for part in (fitting_loader(train, config.n_samples),
                 held_out_of(train, config.n_samples, HELD_OUT)):  # fmt: skip
        chosen = getattr(part, "dataset", ())
        rows += getattr(chosen, "indices", range(len(chosen)))
    rest = np.setdiff1d(np.arange(len(train.dataset)), rows)
    room = max(0, most_train - len(rows))
    if len(rest) > room:
        rest = np.sort(np.random.RandomState(0).permutation(rest)[:room])
    more = None
    if len(rest):
        others = loader_like(train, Subset(train.dataset, rest.tolist()))
        more = read("training", "train", others, "other training samples", n=len(rest))
    make_folder(study.out / "test")
    scored = {
        name: read(f"test/{name}", name, run.loader(name, "network"), f"test set {name}")
        for name in study.scored
    }
    config = replace(config, search=search)
    settings, found = config.layers or {name: LayerConfig() for name in fitting.fit}, None
    if is_searched(config):
        automatic = "paper's space: no settings are shipped for this data and network"
        say(f"searching the {'settings' if config.layers else automatic}")
        found = search_settings(
            fitting, config, strategy="grid", seed=study.seed, progress=study.progress
        )
        settings = found.layers
    rows_read = np.array([*rows, *rest], dtype=np.int64)
    return AnalysisData(run, fitting, more, rows_read, scored, config, dict(settings), found)


def analyze(
    data: AnalysisData, kinds: Sequence[str], options: Options
) -> Iterator[AnalysisOutcome]:
    """Run analyses one after the other; one that fails does not stop the others.

    Args:
        data: from `prepare_analysis`.
        kinds: names of `nac_openood.analysis.KINDS`, or "all".
        options: for all of them.

    Yields:
        The name of each kind, and its finding or the error that prevented it.
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
