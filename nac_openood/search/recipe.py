"""Set up NAC on a network: split, read, search, guard, fit, advise.

The plugin, `nac-openood search`, the comparison and the demo all use these steps:

1. split the training data into the fitting subset and other samples, held out for the guard;
2. read both and the validation sets in one pass over the network (`gather`). Without an OOD
   validation set, surrogates made from the ID validation images are used, and every result says so;
3. search the settings without the network (`nac_openood.search.run`), and measure on the held-out
   samples whether they overfit;
4. fit the rule with the best settings;
5. compare it with simpler methods (`nac_openood.search.advise`).

`set_up` does all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

from torch import Tensor, nn

from nac_openood import files, records, tensor_files
from nac_openood.core.layer_config import LayerConfig, refuse_unknown
from nac_openood.core.rule import Rule, rule_named
from nac_openood.detector import config as configs
from nac_openood.detector.config import NACConfig
from nac_openood.detector.detector import NACDetector
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError, NACError
from nac_openood.network.architectures import recognize, table_layers
from nac_openood.search import advise as advice
from nac_openood.search.advise import Advice, AlternativeLayers
from nac_openood.search.loaders import SURROGATES, SurrogateLoader, held_out_of
from nac_openood.search.run import SearchResult, paper_space, search

#: How many training samples to hold out for the guard.
HELD_OUT = 1000
_MAX_IN_MEMORY = 200_000
#: What is read: the names of the sets by role. Only the last may be missing.
_ROLES = {
    "fit": "the fitting subset",
    "id_val": "ID validation",
    "ood_val": "OOD validation",
    "held_out": "held-out training samples",
}
#: A folder of readings has a file for each role and this one, which is written last: without it
#: the set is not complete.
_MANIFEST, _FORMAT = "readings.json", 1
#: The file with the weights of the head.
_HEAD, _HEAD_KIND = "head", "nac_openood weights of a head"
_AGAIN = "Read the network and save its readings again"


@dataclass(frozen=True)
class ReadingSet:
    """The readings that `search` takes, and where they come from.

    Args:
        fit: readings of the fitting subset.
        id_val: readings of ID validation samples.
        ood_val: readings of OOD validation samples, real or surrogate.
        held_out: readings of training samples that are not in `fit`, or None.
        about: how they were made, as JSON values; `ood_val: {surrogate: true}` marks surrogates.
        weight: the weights `[classes, D]` of the network's linear head, for `advise`, or None.
    """

    fit: Readings
    id_val: Readings
    ood_val: Readings
    held_out: Optional[Readings] = None
    about: Mapping[str, Any] = field(default_factory=dict)
    weight: Optional[Tensor] = None

    @property
    def roles(self) -> dict[str, Readings]:
        """The sets by role, as keywords of `search`."""
        return {role: getattr(self, role) for role in _ROLES if getattr(self, role) is not None}

    @property
    def surrogate(self) -> bool:
        """Whether the OOD validation set is made from in-distribution images."""
        return bool(self.about.get("ood_val", {}).get("surrogate", False))

    @property
    def alternative_layers(self) -> AlternativeLayers:
        """Which layers the alternatives of `advise` can use; none if `about` does not say."""
        return records.from_values(AlternativeLayers, self.about.get("known") or {}, "about.known")

    def save(self, folder: files.PathLike) -> None:
        """Write the set into a folder, which is created."""
        target = _prepare_folder(folder)
        for role, readings in self.roles.items():
            readings.save(target / f"{role}.safetensors")
        self._save_manifest(target)

    def _save_manifest(self, folder: Path) -> None:
        written = list(self.roles)
        if self.weight is not None:
            path = folder / f"{_HEAD}.safetensors"
            tensor_files.write_tensors(path, _HEAD_KIND, 1, {"weight": self.weight}, {})
            written.append(_HEAD)
        checksums = {r: tensor_files.checksum_in(folder / f"{r}.safetensors") for r in written}
        document = {"roles": [*self.roles], "about": dict(self.about), "checksums": checksums}
        files.write_document(folder / _MANIFEST, _FORMAT, document)

    @classmethod
    def load(cls, path: files.PathLike) -> ReadingSet:
        """Memory-map the set in a folder; `path` is the folder or any file in it."""
        folder = Path(path).parent if Path(path).is_file() else Path(path)
        roles, about, checksums = files.read_document(
            folder / _MANIFEST, _FORMAT, _manifest, again=_AGAIN,
            missing=f"{folder} holds no complete set of readings: {_MANIFEST}, which is written "
            f"last, is missing. {_AGAIN}",
        )  # fmt: skip
        found: dict[str, Any] = {}
        for role in (*roles, *({_HEAD} & set(checksums))):
            file = folder / f"{role}.safetensors"
            if role == _HEAD:
                found["weight"] = tensor_files.read_tensors(file, _HEAD_KIND, 1)[0]["weight"]
            else:
                found[role] = Readings.load(file)
            if role in checksums and tensor_files.checksum_in(file) != checksums[role]:
                raise FileError(f"{file} is not the file that was saved as '{role}'. {_AGAIN}.")
        return cls(**found, about=about)


def _prepare_folder(folder: files.PathLike) -> Path:
    """Create a folder for readings; marks a set that is already there as incomplete."""
    target = files.make_folder(folder)
    files.remove(target / _MANIFEST)
    return target


def _manifest(document: Mapping[str, Any]) -> tuple[Sequence[str], Any, Mapping[str, str]]:
    """Roles, `about`, and the checksums of the files by role, which early manifests lack."""
    roles = records.checked(Sequence[str], document.get("roles"), "roles")
    about = records.checked(Mapping[str, Any], document.get("about"), "about")
    checksums = records.checked(Mapping[str, str], document.get("checksums", {}), "checksums")
    if not {"fit", "id_val", "ood_val"} <= set(roles) <= set(_ROLES):
        raise NACError(f"it has readings of {roles}, expected {list(_ROLES)}")
    records.checked(Mapping[str, Any], about.get("ood_val", {}), "about.ood_val")
    records.from_values(AlternativeLayers, about.get("known") or {}, "about.known")
    return roles, about, checksums


def set_up(
    net: nn.Module,
    config: NACConfig,
    train: Iterable[Any],
    id_val: Optional[Iterable[Any]] = None,
    ood_val: Optional[Iterable[Any]] = None,
    *,
    strategy: str = "grid",
    n_held_out: int = HELD_OUT,
    seed: int = 0,
    progress: Optional[bool] = None,
) -> tuple[NACDetector, Optional[SearchResult], Optional[Advice]]:
    """Fit NAC on a network, after a search if the config asks for one.

    Guard and advice are reported, not enforced: the search follows the protocol that OpenOOD has
    for every method.

    Args:
        net: the network.
        config: settings and sweep, or automatic layers; see `is_searched`.
        train: batches of training data, under the test transform.
        id_val: batches of ID validation data; needed for a search.
        ood_val: batches of OOD validation data; None makes surrogates of `id_val`.
        strategy: one of `nac_openood.search.STRATEGIES`.
        n_held_out: how many other training samples to read for the guard.
        seed: random seed.
        progress: whether to show progress bars; None shows them on a terminal.

    Returns:
        The detector, calibrated if its rule needs that; the result of the search, None without
        one; and how the detector compares with simpler methods, None without ID validation data
        that can be read again.
    """
    reader = NACDetector(net, config.layer_choice, rule=config.rule, fast=config.fast)
    if not is_searched(config):
        reader.fit(train, config.n_samples, progress=progress)
        if id_val is not None and rule_named(config.rule).needs_calibration:
            reader.calibrate(id_val, progress=progress)
        if id_val is None or isinstance(id_val, Iterator):  # can be read only once
            return reader, None, None
        again = None if isinstance(train, Iterator) else train
        sets: dict[str, Any] = {"train": again, "ood_val": ood_val}
        return reader, None, advice.advise(reader, id_val, **sets, seed=seed, progress=progress)
    if id_val is None:
        raise NACError("a search needs ID validation data: pass `id_val`, or turn the search off.")
    readings = gather(
        reader, train, id_val, ood_val,
        n_samples=config.n_samples, n_held_out=n_held_out, seed=seed, progress=progress,
    )  # fmt: skip
    found = search_settings(readings, config, strategy=strategy, seed=seed, progress=progress)
    detector = NACDetector(net, found.layers, fast=config.fast).fit_readings(readings.fit)
    return detector, found, advise_after_search(detector._fitted(), readings)


def is_searched(config: NACConfig) -> bool:
    """Whether the config asks for a search and there is something to search."""
    automatic = not config.layers and config.rule == "nac"
    return config.search and (bool(config.sweep) or automatic)


def advise_after_search(rule: Rule, readings: ReadingSet) -> Advice:
    """Compare a rule with simpler methods on the readings that its settings were searched on."""
    sets = readings.id_val, readings.ood_val, readings.fit
    against = advice.SURROGATE if readings.surrogate else advice.REAL
    layers, weight = readings.alternative_layers, readings.weight
    return advice.advise_on_readings(
        rule, *sets, layers=layers, weight=weight, against=against, searched=True
    )


def search_settings(readings: ReadingSet, config: NACConfig, **options: Any) -> SearchResult:
    """Search over the sweep of `config`; the guard is reported, and enforced only if it is given.

    Automatic layers have no sweep and are searched layer by layer over the paper's space.

    Args:
        readings: the readings to search on.
        config: the layers and their sweep.
        options: other options of `search`.
    """
    if config.rule != "nac":
        raise NACError(f"rule '{config.rule}' cannot be searched, only 'nac'. Turn the search off.")
    layers, sweep = config.layers, config.sweep
    if not layers:
        layers = {name: LayerConfig() for name in readings.fit}
        sweep = paper_space(list(layers), weights=False)
        options = {**options, "strategy": "layerwise", "leave_out": False}
    options = {"guard": None, **options, **readings.roles, "surrogate": readings.surrogate}
    return search(layers=layers, sweep=sweep, **options)


def gather(
    reader: NACDetector,
    train: Iterable[Any],
    id_val: Iterable[Any],
    ood_val: Optional[Iterable[Any]] = None,
    *,
    n_samples: Optional[int] = 1000,
    n_held_out: int = HELD_OUT,
    folder: Optional[files.PathLike] = None,
    names: Optional[Mapping[str, str]] = None,
    about: Optional[Mapping[str, Any]] = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    progress: Optional[bool] = None,
) -> ReadingSet:
    """Read the fitting subset, both validation sets and held-out training samples.

    Args:
        reader: a detector with the layers to read; it need not be fitted.
        train: batches of training data, under the test transform.
        id_val: batches of ID validation data.
        ood_val: batches of OOD validation data; None makes surrogates of `id_val`.
        n_samples: size of the fitting subset; None takes all training samples.
        n_held_out: how many other training samples to read for the guard.
        folder: where to write the readings, batch by batch; None keeps them in memory.
        names: names of the sets by role, for reports, in place of "ID validation" and so on.
        about: other information to store with the readings.
        seed: random seed for the surrogates.
        say: called with a line of text for each dataset that is read.
        progress: whether to show progress bars; None shows them on a terminal.
    """
    named, surrogate = {**_ROLES, **(names or {})}, ood_val is None
    if ood_val is None:
        named["ood_val"] = f"surrogates of {named['id_val']} ({', '.join(SURROGATES)})"
        ood_val = SurrogateLoader(id_val, seed=seed)
    held_out = held_out_of(train, n_samples, n_held_out)
    loaders = {"fit": train, "id_val": id_val, "ood_val": ood_val, "held_out": held_out}
    size = n_samples or len(getattr(train, "dataset", ()))
    if folder is None and size > _MAX_IN_MEMORY:  # as those of all of ImageNet
        raise NACError(
            f"a search over a fitting set of {size} samples would need too much memory. Set "
            "`n_samples` (the paper uses 1000, and 50000 for ViT), or fit without a search."
        )
    target = None if folder is None else _prepare_folder(folder)
    found: dict[str, Readings] = {}
    for role, loader in loaders.items():
        if loader is None:
            continue
        say(f"reading {named[role]}")
        found[role] = reader.read_loader(
            loader,
            n_samples if role == "fit" else None,
            save_to=None if target is None else target / f"{role}.safetensors",
            in_distribution=role != "ood_val",
            progress=progress,
        )
    row = recognize(reader.net)
    notes = {
        **(about or {}),
        "family": None if row is None else row[0].family,
        "network": found["fit"].network,
        "ood_val": {"name": named["ood_val"], "surrogate": surrogate},
        "samples": {role: readings.n_samples for role, readings in found.items()},
        "known": advice.alternative_layers(reader, reader._reader.sample)._asdict(),
    }
    if found["id_val"].accuracy is not None:
        notes["accuracy"] = found["id_val"].accuracy
    weight = advice.head_weight(reader.net, reader._reader.sample)
    readings = ReadingSet(**found, about=notes, weight=weight)
    if target is not None:
        readings._save_manifest(target)
    return readings


# -- defaults of `nac-openood search` -------------------------------------------------------


def config_for(net: nn.Module, benchmark: str, names: Optional[Sequence[str]] = None) -> NACConfig:
    """The shipped settings, or default settings of the layers `names`, deepest first."""
    if not names:
        return configs.preset_for(net, benchmark)
    order = [layer.alias for layer in table_layers(net)]
    if all(name in order for name in names):
        names = sorted(names, key=order.index)
    n_samples = configs.preset_or_auto(net, benchmark).n_samples
    return NACConfig({name: LayerConfig() for name in names}, n_samples=n_samples)


def search_space(
    readings: ReadingSet, space: str, names: Optional[Sequence[str]] = None
) -> NACConfig:
    """The layers to search and the values to try, for `search_settings`.

    Args:
        readings: the readings to search on.
        space: "paper", "preset" (the lists shipped for the readings' benchmark and network) or
            the path of a YAML file with a sweep.
        names: layers to search; None for all layers of the readings.
    """
    refuse_unknown(names or (), readings.fit, "layer of these readings")
    chosen = [name for name in readings.fit if not names or name in names]
    if space == "paper":
        return NACConfig({name: LayerConfig() for name in chosen}, sweep=paper_space(chosen))
    if space == "preset":
        benchmark, family = (readings.about.get(key) for key in ("id_data", "family"))
        if benchmark is None or family is None:
            raise NACError(
                "`space='preset'` needs readings that name their benchmark and architecture. Use "
                "`space='paper'`, or a YAML file with a sweep."
            )
        config = configs.preset(benchmark, family)
    elif Path(space).is_file():
        config = configs.read_config(space)
    else:
        raise NACError(f"`space`: expected 'paper', 'preset' or a YAML file, got '{space}'.")
    lists = {name: config.sweep[name] for name in chosen if name in config.sweep}
    if not lists:
        raise NACError(
            f"`space={space}` has no lists for the layers {chosen}, only for {list(config.sweep)}."
        )
    layers = {name: config.layers.get(name, LayerConfig()) for name in chosen}
    return NACConfig(layers, sweep=lists)
