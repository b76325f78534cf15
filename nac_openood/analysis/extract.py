"""One pass over the network for all analyses: readings of every dataset, kept in a folder.

    DIR/fitting/                  the fitting subset, validation sets, held-out training samples
    DIR/training.safetensors      the other training samples
    DIR/test/SET.safetensors      a test set

A file that was made with the same network, data and versions is used again, so an interrupted
pass goes on where it stopped.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional

import numpy as np
from torch.utils.data import Subset

from nac_openood.analysis.data import AnalysisData
from nac_openood.benchmark.methods.nac import NACScorer
from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.workbench import Workbench
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.config import NACConfig
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.presets import preset_or_auto
from nac_openood.detector.readings import Readings
from nac_openood.detector.subset import fitting_loader, loader_like
from nac_openood.errors import FileError
from nac_openood.files import checksum_in, make_folder, remove
from nac_openood.progress import Say
from nac_openood.search.recipe import HELD_OUT, gather, is_searched, search_settings
from nac_openood.search.result import SearchResult
from nac_openood.search.split import held_out_of
from nac_openood.search.stored import ReadingSet

#: How many training samples are read at most, for the studies of the number of samples and of
#: methods that look at all training data.
MOST_TRAIN = 50_000


def extract_data(
    bench: Workbench, config: Optional[NACConfig], *, search: bool, most_train: int, say: Say
) -> AnalysisData:
    """Read whatever was not read before, and choose the settings of NAC as `compare` does.

    Args:
        bench: the network and the datasets; its study must have `search=True`, since the OOD
            validation set is read in any case. Readings go into its folder.
        config: as in `prepare_analysis`, like the other arguments.
        search: whether to search the settings; otherwise those of `config` are used.
        most_train: how many training samples to read at most.
        say: is told what is going on.
    """
    config = config or preset_or_auto(bench.net, bench.study.sets.id_name)
    network, folder = _Pass(bench, config, say), bench.study.out
    fitting = network.fitting(folder / "fitting")
    train: Any = bench.loader("train", "network")
    n_fit = config.n_samples
    rows = [_rows(fitting_loader(train, n_fit)), _rows(held_out_of(train, n_fit, HELD_OUT))]
    rest = _others(np.concatenate(rows), len(train.dataset), most_train)
    more = None
    if len(rest):
        loader = loader_like(train, Subset(train.dataset, rest.tolist()))
        note = {"images": bench.identity["train"], "n": len(rest)}
        more = network.read(folder / "training", loader, note, "other training samples")
    tests = make_folder(folder / "test")
    scored = {}
    for name in bench.study.scored:
        loader, note = bench.loader(name, "network"), {"images": bench.identity[name]}
        scored[name] = network.read(tests / name, loader, note, f"test set {name}")
    settings, found = _settings(bench, config, fitting, search, say)
    return AnalysisData(
        bench, fitting, more, np.concatenate([*rows, rest]), scored, config, settings, found
    )


class _Pass:
    """The pass over the network: each part of it reads a dataset, or finds that it was read."""

    def __init__(self, bench: Workbench, config: NACConfig, say: Say) -> None:
        self._study, self._given, self._say = bench.study, bench.given("network"), say
        # the layers to read, with gradients, whatever their settings are
        layers = {name: LayerConfig(layout=used.layout) for name, used in config.layers.items()}
        self._config = NACConfig(layers, n_samples=config.n_samples)
        self._reader = NACDetector(bench.net, self._config.layer_choice)
        self._made_with = bench.made_with(NACScorer(self._config, strategy="read"))

    def fitting(self, folder: Path) -> ReadingSet:
        """Fitting subset, validation sets and held-out samples, read as the recipe reads them."""
        with suppress(FileError):
            kept = ReadingSet.load(folder)
            if kept.about.get("made_with") == self._made_with:
                self._say("readings of the fitting and validation data: made before")
                return kept
        given, study = self._given, self._study
        return gather(
            self._reader, given.train, given.id_val, None if study.surrogates else given.ood_val,
            n_samples=self._config.n_samples, n_held_out=HELD_OUT, folder=folder,
            about={"made_with": self._made_with}, seed=study.seed, say=self._say,
            progress=study.progress,
        )  # fmt: skip

    def read(
        self, where: Path, loader: Iterable[Any], note: Mapping[str, Any], title: str
    ) -> Readings:
        """The readings in a file, if its note is the same, else those of a pass."""
        # names of sets may have dots, so no `with_suffix`
        path, about = (where.with_name(where.name + end) for end in (".safetensors", ".json"))
        note = {"made_with": self._made_with, **note}
        if cells.read_note(about) == {**note, "checksum": checksum_in(path)}:
            with suppress(FileError):
                return Readings.load(path)
        self._say(f"reading {title}")
        remove(about)
        found = self._reader.read_loader(loader, save_to=path, progress=self._study.progress)
        note = {**note, "checksum": checksum_in(path)}
        cells.write_note(about, note)  # last: without it the file counts as missing
        return found


def _rows(loader: Any) -> np.ndarray:
    """Which samples of the training data a loader yields, int64."""
    if loader is None:
        return np.zeros(0, dtype=np.int64)
    chosen = loader.dataset
    whole = not isinstance(chosen, Subset)
    return np.arange(len(chosen)) if whole else np.asarray(chosen.indices, dtype=np.int64)


def _others(taken: np.ndarray, size: int, most: int) -> np.ndarray:
    """The other training samples, in order; a random draw of them if there are too many."""
    rest = np.setdiff1d(np.arange(size), taken)
    room = max(0, most - len(taken))
    return rest if len(rest) <= room else np.sort(np.random.RandomState(0).permutation(rest)[:room])


def _settings(
    bench: Workbench, config: NACConfig, fitting: ReadingSet, search: bool, say: Say
) -> tuple[dict[str, LayerConfig], Optional[SearchResult]]:
    """The settings in use, and the search behind them; see `nac_openood.search.recipe.set_up`."""
    config = replace(config, search=search)
    if not is_searched(config):
        return dict(config.layers) or {name: LayerConfig() for name in fitting.fit}, None
    automatic = "paper's space: no settings are shipped for this data and network"
    say(f"searching the {'settings' if config.layers else automatic}")
    study = bench.study
    found = search_settings(
        fitting, config, strategy="grid", seed=study.seed, progress=study.progress
    )
    return dict(found.layers), found
