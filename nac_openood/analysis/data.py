"""What every study is given: the readings of one pass over the network, options, and scores.

`prepare_analysis` reads every dataset once, and stores its readings in the folder `readings`:

    fitting/                  the fitting subset, validation sets, held-out training samples
    training.safetensors      the other training samples
    test/SET.safetensors      a test set

A file that was made with the same network, data and versions is reused, so an interrupted pass
continues where it stopped.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset

from nac_openood.analysis import PLUS
from nac_openood.analysis.finding import About
from nac_openood.analysis.scores import NACScores
from nac_openood.benchmark.methods.backends import NACScorer, scorers
from nac_openood.benchmark.run import compare, network, results, store
from nac_openood.core.layer_config import LayerConfig, LayoutConfig
from nac_openood.core.posthoc import energy, msp
from nac_openood.core.reading import logits_in
from nac_openood.detector.batches import Say, batches, fitting_loader, loader_like
from nac_openood.detector.config import NACConfig, preset_or_auto
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError, NACError
from nac_openood.files import locked, make_folder, remove
from nac_openood.search import advise, loaders, recipe
from nac_openood.search.run import SearchResult
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.sets import Datasets
from nac_openood.tensor_files import checksum_in

#: How many training samples are read at most, for the studies of the number of samples and of
#: methods that are fitted on all training data.
MOST_TRAIN = 50_000
#: The name of the ID validation data beside the test sets.
ID_VAL = "id_val"

#: Scores `[samples]` by set; higher means more in-distribution.
BySet = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Options:
    """Options of the studies; each study uses those that concern it.

    Args:
        against: "paper" puts the published numbers beside the measured ones.
        seed: random seed.
        repeats: how often random draws are repeated.
        shares: fractions of the training data to fit on, in (0, 1].
        steepness: values of the paper's alpha to show or to try; None takes those of the study.
        bounds: values of the paper's r; None takes the paper's.
        n_bins: values of the paper's M; None takes the paper's.
        neuron: index of the neuron whose states are shown; None takes the one that separates ID
            and OOD validation data best.
        ood_set: the OOD test set whose distributions are shown; None takes the first far one.
        methods: names of the methods to compare with; None takes those of the study.
        backend: the library that runs the baselines, as in `nac_openood.compare`.
        most_samples: upper limit of training and test samples to measure costs on; None takes all.
        epochs: for which networks of other training schemes are trained.
        progress: whether to show progress bars; None shows them on a terminal.
        say: receives progress messages.
    """

    against: Optional[str] = None
    seed: int = 0
    repeats: int = 5
    shares: Sequence[float] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    steepness: Optional[Sequence[float]] = None
    bounds: Optional[Sequence[float]] = None
    n_bins: Optional[Sequence[int]] = None
    neuron: Optional[int] = None
    ood_set: Optional[str] = None
    methods: Optional[Sequence[str]] = None
    backend: str = "auto"
    most_samples: Optional[int] = None
    epochs: int = 15
    progress: Optional[bool] = None
    say: Say = lambda text: None


@dataclass(frozen=True)
class AnalysisData:
    """A network's readings of all datasets, and the settings that NAC would use.

    Readings hold activations and gradients of every layer, summed over positions, with logits,
    predictions and labels. They are memory-mapped from files.

    Args:
        run: the network and the datasets.
        fitting: readings of the fitting subset, both validation sets and held-out training data.
        more: readings of the other training samples; None if there are none.
        train_rows: int64, indices of the training samples in `fitting.fit`, `fitting.held_out`
            and `more`, in this order.
        scored: readings of the test sets by name; the ID test set is called "test".
        config: settings and sweep that the search started from.
        settings: the settings in use by layer, deepest first; those that the search chose.
        found: what the search found; None without one.
    """

    run: network.NetworkRun
    fitting: recipe.ReadingSet
    more: Optional[Readings]
    train_rows: np.ndarray
    scored: Mapping[str, Readings]
    config: NACConfig
    settings: Mapping[str, Any]
    found: Optional[SearchResult] = None

    @property
    def id_name(self) -> str:
        """Name of the in-distribution data."""
        return self.run.study.sets.id_name

    @property
    def arch(self) -> str:
        """Name of the architecture."""
        return self.run.study.arch

    @property
    def roles(self) -> dict[str, str]:
        """The role of every test set: "id", "csid", "near" or "far"."""
        return self.run.study.sets.roles()

    def names(self, *roles: str) -> list[str]:
        """The test sets of these roles."""
        return [name for name, role in self.roles.items() if role in roles]

    @property
    def layers(self) -> list[str]:
        """The layers in use, deepest first."""
        return list(self.settings)

    @property
    def early_layers(self) -> list[str]:
        """The layers in use except the input of the head, if NAC+ reads it."""
        return [n for n in self.layers if not getattr(self.settings[n], "head_input", False)]

    @property
    def groups(self) -> dict[str, str]:
        """Titles of the means over OOD sets by name: "nearood", "farood" or both."""
        groups = {"near": results.NEAR, "far": results.FAR}
        return {m: results.GROUP_NAMES[m] for role, m in groups.items() if self.names(role)}

    @cached_property
    def train(self) -> Readings:
        """Readings of all training samples that were read, in the order of the dataset."""
        parts = [self.fitting.fit, self.fitting.held_out, self.more]
        joined = Readings.concatenate([part for part in parts if part is not None])
        return joined.rows(np.argsort(self.train_rows, kind="stable"))

    @cached_property
    def accuracy(self) -> float:
        """ID accuracy in percent, as `compare` computes it."""
        tested = [self.scored[name] for name in self.names("id", "csid")]
        correct = torch.cat([each.prediction == each.label for each in tested])
        return 100 * int(correct.sum()) / len(correct)

    @cached_property
    def method_scores(self) -> dict[str, BySet]:
        """Scores of all test sets and `ID_VAL` by method: NAC, NAC+, energy, MSP and KNN.

        NAC+ and KNN are left out where their layers were not read. All methods are fitted on NAC's
        fitting subset.
        """
        fitting, sets = self.fitting, {ID_VAL: self.fitting.id_val, **self.scored}
        found: dict[str, BySet] = {}
        if self.config.rule != PLUS:
            found[advise.NAC_TITLE] = NACScores(self, scored=sets).scores(self.settings)
        others = advise.alternatives(fitting.fit, fitting.id_val, fitting.alternative_layers)
        on_readings: dict[str, advise.Score] = {
            "energy": lambda readings: energy(logits_in(readings)),
            "MSP": lambda readings: msp(logits_in(readings)),
            **{name: score for name, score in others.items() if name != "GEN"},
        }
        for name, score in on_readings.items():
            found[name] = {n: score(readings).cpu().numpy() for n, readings in sets.items()}
        return found

    @property
    def head_input(self) -> str:
        """The layer whose output is the input of the linear head.

        Raises:
            NACError: if it was not read.
        """
        name = self.fitting.alternative_layers.head_input
        if name is None:
            raise NACError(
                f"none of the layers that were read, {list(self.fitting.fit)}, is the input of the "
                "linear head. Use settings that include it, e.g. 'avgpool' of a ResNet."
            )
        return name

    def ood_set(self, name: Optional[str]) -> str:
        """The OOD test set of that name; None takes the first far one, else the first near one."""
        name = name or (self.names("far") or self.names("near"))[0]
        names = self.names("far", "near")
        if name not in names:
            raise NACError(f"`ood_set` must be one of {', '.join(names)}; got {name!r}.")
        return name

    def about(self) -> About:
        """The network and data, for the record of a finding."""
        about = self.fitting.about
        sizes = {name: read.n_samples for name, read in self.scored.items()}
        settings = {name: used.to_dict() for name, used in self.settings.items()}
        return About(
            self.id_name, self.arch, self.accuracy, self.roles, {**about["samples"], **sizes},
            about["ood_val"], settings, self.found is not None, about["made_with"],
            self.run.study.command, len(self.train_rows),
        )  # fmt: skip


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
    **options: Any,
) -> AnalysisData:
    """Read all datasets once, or load what was read before, and choose NAC's settings.

    Args:
        net: the classifier, on its device.
        sets: the datasets by role.
        out: folder of the results; the readings go into `readings` in it.
        arch: name of the architecture.
        config: NAC's settings and sweep; None takes those shipped for the data and the network,
            or automatic layers where there are none. `NACConfig({}, rule="nac_plus")` analyzes
            NAC+, from forward passes alone.
        search: whether to search NAC's settings, as `nac_openood.compare` does.
        most_train: upper limit of training samples to read.
        checkpoint: where the weights come from, for the record.
        options: those of `Study`: `batch_size`, `workers`, `seed`, `skip_bad`, `progress`,
            `command` and `say`.

    Raises:
        NACError: the data is incomplete, or the network cannot be run on it.
    """
    folder = make_folder(Path(out) / "readings")
    with locked(folder):
        weights = Checkpoint("network", checkpoint)
        study = compare.Study(
            sets=sets, arch=arch, network=lambda _: net, runs=(weights,), methods=(),
            make=scorers((), "auto"), out=folder, **options,
        ).checked()  # fmt: skip
        run = network.NetworkRun(study, weights, net)
        return _read(run, config or preset_or_auto(net, sets.id_name), search, most_train)


def _read(
    run: network.NetworkRun, config: NACConfig, search: bool, most_train: int
) -> AnalysisData:
    """Read all datasets that have no stored readings, and choose NAC's settings as `compare`."""
    study, inputs, say = run.study, run.inputs("network"), run.study.say
    # gradients of all layers are read, whatever their settings are
    layers = {name: LayerConfig(layout=used.layout) for name, used in config.layers.items()}
    read_config = NACConfig(layers, n_samples=config.n_samples)
    reader = NACDetector(run.net, read_config.layer_choice, rule="nac")
    strategy = "read"
    if config.rule == PLUS:
        strategy, sample = "read nac_plus", next(iter(batches(inputs.id_val))).data
        found_reader = advise.reader_for(NACDetector(run.net), sample)
        if found_reader is None:
            raise NACError("the layers of NAC+ cannot be found: analyze NAC, with a `config`.")
        reader, _ = found_reader
    made_with = run.made_with(NACScorer(read_config, strategy=strategy))

    def read(file: str, name: str, loader: Iterable[Any], title: str, **note: Any) -> Readings:
        """The readings in a file if nothing has changed since, else those of a new pass."""
        path, note_path = (study.out / f"{file}{end}" for end in (".safetensors", ".json"))
        note = {"made_with": made_with, "images": run.identity[name], **note}
        if store.read_note(note_path) == {**note, "checksum": checksum_in(path)}:
            with suppress(FileError):
                return Readings.load(path)
        say(f"reading {title}")
        remove(note_path)
        readings = reader.read_loader(loader, save_to=path, progress=study.progress)
        # written last, because without it the file counts as missing
        store.write_note(note_path, {**note, "checksum": checksum_in(path)})
        return readings

    fitting = None
    with suppress(FileError):
        fitting = recipe.ReadingSet.load(study.out / "fitting")
    if fitting is not None and fitting.about.get("made_with") == made_with:
        say("readings of the fitting and validation data: made before")
    else:
        fitting = recipe.gather(
            reader, inputs.train, inputs.id_val, None if study.surrogates else inputs.ood_val,
            n_samples=config.n_samples, n_held_out=recipe.HELD_OUT, folder=study.out / "fitting",
            about={"made_with": made_with}, seed=study.seed, say=say, progress=study.progress,
        )  # fmt: skip
    train: Any = inputs.train
    rows: list[int] = []  # indices of the training samples in `fitting`
    held_out = loaders.held_out_of(train, config.n_samples, recipe.HELD_OUT)
    for part in (fitting_loader(train, config.n_samples), held_out):
        chosen = getattr(part, "dataset", ())
        rows += getattr(chosen, "indices", range(len(chosen)))
    rest = np.setdiff1d(np.arange(len(train.dataset)), rows)
    room, more = max(0, most_train - len(rows)), None
    if len(rest) > room:
        rest = np.sort(np.random.RandomState(0).permutation(rest)[:room])
    if len(rest):
        others = loader_like(train, Subset(train.dataset, rest.tolist()))
        more = read("training", "train", others, "other training samples", n=len(rest))
    make_folder(study.out / "test")
    scored = {
        name: read(f"test/{name}", name, run.loader(name, "network"), f"test set {name}")
        for name in study.scored
    }
    rows_read = np.array([*rows, *rest], dtype=np.int64)
    if config.rule == PLUS:
        usable = fitting.alternative_layers
        settings: dict[str, Any] = {name: LayoutConfig() for name in usable.early}
        if usable.head_input not in (None, *usable.early):
            settings[str(usable.head_input)] = LayoutConfig(head_input=True)
        return AnalysisData(run, fitting, more, rows_read, scored, config, settings)
    config = replace(config, search=search)
    found = None
    settings = dict(config.layers or {name: LayerConfig() for name in fitting.fit})
    if recipe.is_searched(config):
        automatic = "paper's space: no settings are shipped for this data and network"
        say(f"searching the {'settings' if config.layers else automatic}")
        options: Any = {"seed": study.seed, "progress": study.progress}
        found = recipe.search_settings(fitting, config, strategy="grid", **options)
        settings = dict(found.layers)
    return AnalysisData(run, fitting, more, rows_read, scored, config, settings, found)
