"""`nac_openood.rank_checkpoints`: which checkpoint of a run will generalize best.

`rank_runs` ranks many runs, each without its target domain, as DomainBed trains them.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np
from torch import nn
from torch.utils.data import Subset

from nac_openood.core.layer_config import IntegralConfig
from nac_openood.detector.batches import Say, batches
from nac_openood.detector.config import AUTO
from nac_openood.errors import NACError
from nac_openood.evaluation import ranking as results
from nac_openood.evaluation.integral import CheckpointReadings, SamplesByRole
from nac_openood.files import locked, make_folder
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.probe import count_classes
from nac_openood.search.run import grid_points
from nac_openood.sources import checkpoints as sources
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.images import Transform
from nac_openood.sources.readers import domain_classes, domain_folders, read_domain, split_domain
from nac_openood.sources.samples import SampleList, Samples
from nac_openood.sources.sets import check_file_names, check_mapping

Paths = Sequence[Union[str, Path]]
Networks = Union[Mapping[str, Any], Sequence[Any]]
Space = Union[str, Mapping[str, Sequence[Any]], IntegralConfig]
LoadNetwork = Callable[[str], nn.Module]
MakeNetwork = Callable[[Checkpoint], nn.Module]
#: The checkpoints of training runs, by target domain and number of the trial.
Runs = Mapping[tuple[str, int], Sequence[Checkpoint]]

_BINS, _FULL = (50, 1000), (1, 500, 5000, 10000)
#: Table 13 of the paper; `all` has every steepness of it, for other data.
SPACES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "vlcs": {"n_bins": _BINS, "steepness": (1.0, 500.0, 5000.0), "full_count": _FULL},
    "pacs": {"n_bins": _BINS, "steepness": (0.01, 0.1, 0.5), "full_count": _FULL},
    "officehome": {"n_bins": _BINS, "steepness": (0.01, 1.0, 100.0), "full_count": _FULL},
    "terraincognita": {"n_bins": _BINS, "steepness": (0.01, 0.1), "full_count": (5, 10, 30, 50)},
    "all": {"n_bins": _BINS, "steepness": (0.01, 0.1, 0.5, 1, 100, 500, 5000), "full_count": _FULL},
}


def rank_checkpoints(
    checkpoints: Networks,
    *,
    train: Mapping[str, Any],
    val: Mapping[str, Any],
    test: Optional[Mapping[str, Any]] = None,
    oracle: Optional[Mapping[str, Any]] = None,
    load: Optional[LoadNetwork] = None,
    layer: str = AUTO,
    space: Space = "all",
    out: Union[str, Path, None] = None,
    batch_size: int = 100,
    workers: int = 0,
    progress: Optional[bool] = None,
    say: Say = lambda text: None,
) -> results.Ranking:
    """Rank the checkpoints of a training run by their coverage on training data (NAC-ME).

    Each checkpoint is read once. Of the settings in `space`, those are chosen whose coverage agrees
    best with validation accuracy over the checkpoints (Spearman's rank correlation). Target data,
    if any, is only used to measure how well that worked.

    Examples:
        >>> ranking = nac_openood.rank_checkpoints(
        ...     {"step_300": "run/step_300.pt", "step_600": "run/step_600.pt"},
        ...     load=lambda path: load_checkpoint(build("resnet18", 7), path),
        ...     train={"photo": photo_train, "cartoon": cartoon_train},
        ...     val={"photo": photo_val, "cartoon": cartoon_val},
        ...     test={"sketch": sketch},
        ...     space="pacs", out="ranking",
        ... )
        >>> ranking.chosen().name                 # by NAC-ME
        >>> ranking.rc("nac-me"), ranking.rc("validation")
        >>> ranking.accuracy("nac-me"), ranking.accuracy("oracle")

    Repeat the call after an interruption to continue: readings in `out` are reused if they are of
    the same weights, data and layer.

    Args:
        checkpoints: two or more, in the order of training: paths or modules, in a list or by name.
            A folder stands for the checkpoints in it. Paths whose names end in a number
            (`step_300.pt`) are put in the order of the numbers.
        train: training data of the source domains by name, without augmentation: map-style datasets
            of `(x, y)`, or `DataLoader`s of them.
        val: held-out data of the source domains by name.
        test: data of the target domains by name; None ranks without measuring anything.
        oracle: other data of the target domains, by which the oracle chooses; None lets it choose
            by `test` itself.
        load: makes a network, on its device, from the path of a checkpoint.
        layer: as in `coverage_integral`.
        space: the settings to choose from: "pacs", "vlcs", "officehome", "terraincognita" (the
            paper's), "all", lists by setting, or one `IntegralConfig`.
        out: folder of the readings and of `ranking.json`; None uses a temporary one.
        batch_size: samples per batch.
        workers: number of processes that load samples.
        progress: whether to show progress bars; None shows them on a terminal.
        say: function that is called with status messages, e.g. `print`.

    Raises:
        NACError: there are fewer than two checkpoints, one does not fit the network or the data,
            or no setting can be chosen. Nothing is written then.
    """
    configs = integral_candidates(space)
    found, network = networks_of(checkpoints, load)
    roles = {"train": train, "val": val, "test": test or {}, "oracle": oracle or {}}
    for role, domains in roles.items():
        check_mapping(role, domains, "names of domains", "sketch")
        if not domains and role in ("train", "val"):
            raise NACError(f"`{role}` has no domain: expected at least one.")
    options: Any = {"batch_size": batch_size, "workers": workers, "progress": progress}
    samples = {
        (role, name): Samples(f"{role} domain {name}", data, **options)
        for role, domains in roles.items()
        for name, data in domains.items()
    }
    checked = _checked(found, network, samples, layer=layer, layout=configs[0].layout)
    readings: dict[Checkpoint, CheckpointReadings] = {}
    results_in: Any = tempfile.TemporaryDirectory() if out is None else nullcontext(out)
    with results_in as root, locked(make_folder(root)):
        folder = make_folder(Path(root) / "readings")
        for one, made_with in zip(found, checked):
            path = folder / f"{one.name}.safetensors"
            stored = CheckpointReadings.load_if(path, made_with)
            if stored is None:
                say(f"reading checkpoint {len(readings) + 1} of {len(found)}: {one.name}")
                stored = CheckpointReadings.extract(path, network(one), samples, made_with)
            readings[one] = stored
        ranking = _ranking(readings, configs)
        ranking.save(folder.parent)
    return ranking


def networks_of(
    networks: Networks, load: Optional[LoadNetwork]
) -> tuple[list[Checkpoint], MakeNetwork]:
    """The checkpoints in the order of training, and a function that makes their networks.

    Args:
        networks: two or more paths or modules, in a list or by name.
        load: makes a network from the path of a checkpoint.

    Raises:
        NACError: if there are fewer than two, or paths without `load`.
    """
    named = sources.named_networks(networks, sources.run_checkpoints)
    check_file_names("a checkpoint", named)
    if len(named) < 2:
        raise NACError(
            f"expected at least two checkpoints to rank, got {len(named)}: the rank correlation "
            "of one is undefined. For the coverage of a single network use coverage_integral."
        )
    checkpoints, network = sources.networks_by_name(named, load, "rank")
    if not any(isinstance(one, nn.Module) for one in named.values()):
        checkpoints = sources.by_step(checkpoints)
    return checkpoints, network


def _checked(
    checkpoints: Sequence[Checkpoint], network: MakeNetwork, samples: SamplesByRole, **settings: Any
) -> list[dict[str, Any]]:
    """Load and check all checkpoints before anything is written; return what readings depend on."""
    fingerprints = []
    for one in checkpoints:
        net = network(one)
        fingerprints.append(fingerprint(net))
    n_classes = count_classes(net, next(batches(next(iter(samples.values())).loader())).data)
    for data in samples.values():
        data.check_labels(n_classes)
    structure = fingerprints[0]["structure"]
    others = [c.name for c, f in zip(checkpoints, fingerprints) if f["structure"] != structure]
    if others:
        raise NACError(
            f"expected checkpoints of one architecture; {', '.join(others)} differ from "
            f"{checkpoints[0].name}. Coverage of different architectures cannot be compared."
        )
    identities = {"/".join(key): data.identity for key, data in samples.items()}
    return [{"network": each, **settings, "data": identities} for each in fingerprints]


def _ranking(
    readings: Mapping[Checkpoint, CheckpointReadings], configs: Sequence[IntegralConfig]
) -> results.Ranking:
    """Choose the settings and rank the checkpoints, from readings alone."""
    read = list(readings.values())
    val = [each.accuracy("val") or 0.0 for each in read]  # there is always validation data
    coverage = np.array([each.coverage(configs) for each in read])  # [checkpoints, settings]
    tried = [
        results.IntegralCandidate(config, tuple(values), results.rank_correlation(values, val))
        for config, values in zip(configs, coverage.T.tolist())
    ]
    notes: tuple[str, ...] = ()
    best = max(tried, key=lambda each: -2 if each.rc_val is None else each.rc_val)
    if best.rc_val is None:
        if len(tried) > 1:
            raise NACError(
                "the settings of NAC-ME cannot be chosen: all checkpoints have the same validation "
                "accuracy, or the same coverage with every setting. Rank checkpoints that differ, "
                "use more validation data, or give rank_checkpoints one IntegralConfig."
            )
        notes = ("RC with validation accuracy is undefined: all values are equal.",)
    roles = read[0].correct
    ranked = tuple(
        results.RankedCheckpoint(
            one.name, one.path, sources.training_step(one), g, accuracy, each.accuracy("test"),
            each.accuracy("oracle" if "oracle" in roles else "test"),
            {role: each.accuracies(role) for role in ("val", "test", "oracle") if role in roles},
        )
        for one, each, g, accuracy in zip(readings, read, best.coverage, val)
    )  # fmt: skip
    correct = [
        np.stack([each.correct["test"][name].numpy() for each in read])
        for name in roles.get("test", ())
    ]
    scores = {"validation": val, "nac-me": best.coverage}
    volume = tuple(results.rc_by_volume(scores, correct)) if correct else ()
    sizes = {role: {name: len(c) for name, c in found.items()} for role, found in roles.items()}
    return results.Ranking(ranked, tuple(tried), best.config, read[0].layer, sizes, volume, notes)


def space_named(name: str) -> str:
    """The space for a dataset by the name of its folder: `office_home` is `officehome`.

    Datasets that the paper does not have take `all`.
    """
    letters = "".join(filter(str.isalnum, name.lower()))
    return letters if letters in SPACES else "all"


def integral_candidates(space: Space) -> list[IntegralConfig]:
    """All settings of a space, in a fixed order; of equally good ones the first is chosen.

    Args:
        space: a name in `SPACES`, lists of values by setting, or one `IntegralConfig`.
    """
    if isinstance(space, IntegralConfig):
        return [space]
    if isinstance(space, str):
        if space not in SPACES:
            raise NACError(f"unknown `space` {space!r}; expected one of {', '.join(SPACES)}.")
        space = SPACES[space]
    found = [IntegralConfig.from_dict(point) for point in grid_points(space)]
    if not found:
        raise NACError("`space` needs at least one value for each setting.")
    return found


# -- many runs, each without its target domain -----------------------------------------------


def rank_runs(
    runs: Runs,
    domains: Mapping[str, Any],
    load: LoadNetwork,
    *,
    out: Union[str, Path],
    say: Say = lambda text: None,
    **options: Any,
) -> results.RankedRuns:
    """Rank the checkpoints of every run, with splits seeded by its trial.

    The settings are chosen for each run by itself, from its source domains only. Repeat the call
    after an interruption to continue.

    Examples:
        >>> domains = all_domains("PACS", domainbed_transform(64))
        >>> runs = find_runs("study/erm", list(domains))  # study/erm/sketch/trial_0/step_300.pt
        >>> ranked = rank_runs(runs, domains, load, out="ranking", space="pacs")
        >>> ranked.rc("nac-me"), ranked.accuracy("nac-me", "sketch")

    Args:
        runs: from `find_runs`.
        domains: datasets of all domains by name, in sorted order.
        load: makes a network, on its device, from the path of a checkpoint.
        out: folder of the readings and rankings, `out/<target>/trial_<number>`.
        say: function that is called with status messages.
        options: other settings of `rank_checkpoints`: `layer`, `space`, `batch_size`, `workers` and
            `progress`.
    """
    ranked = []
    for number, ((target, trial), checkpoints) in enumerate(runs.items(), start=1):
        name = f"{target}/trial_{trial}"
        say(f"run {number} of {len(runs)}: {name}")
        roles: Any = split_domains(domains, target, trial)
        ranking = rank_checkpoints(
            {each.name: each.path for each in checkpoints}, **roles,
            load=load, out=Path(out) / name, say=say, **options,
        )  # fmt: skip
        ranked.append(results.RankedRun(target, trial, ranking))
    return results.RankedRuns.of(ranked)


def find_runs(folder: Union[str, Path], domains: Sequence[str]) -> Runs:
    """Find the runs in `folder/<target domain>/trial_<number>`, sorted by domain and trial.

    Args:
        folder: with a folder for each target domain, in which each trial has a folder of
            checkpoints.
        domains: names of all domains of the dataset.

    Raises:
        NACError: if there is no run, or the name of a folder is not a domain.
    """
    runs = {}
    for path in Path(folder).glob("*/*"):
        number = re.search(r"trial[_-]?(\d+)$", path.name)
        if number and path.is_dir():
            runs[path.parent.name, int(number[1])] = sources.run_checkpoints([path])
    unknown = sorted({target for target, _ in runs} - set(domains))
    if unknown or not runs:
        found = f"runs of {', '.join(unknown)}, which are not domains" if unknown else "no runs"
        raise NACError(
            f"{folder} holds {found}; expected a folder for each target domain, some of "
            f"{', '.join(domains)}, as in {folder}/{domains[0]}/trial_0/step_300.pt."
        )
    return dict(sorted(runs.items()))


def split_domains(
    domains: Mapping[str, Any], target: str, trial: int
) -> dict[str, dict[str, Subset[Any]]]:
    """Split all domains for a run, as DomainBed does.

    Of each source domain, 80 % are training and 20 % validation data; of the target domain, 80 %
    are test data, and the oracle chooses by the other 20 %.

    Args:
        domains: datasets of all domains, in sorted order; the order is part of the seed.
        target: name of the target domain.
        trial: number of the trial.

    Returns:
        Keywords of `rank_checkpoints`: `train`, `val`, `test` and `oracle`.
    """
    roles: dict[str, dict[str, Subset[Any]]] = {"train": {}, "val": {}, "test": {}, "oracle": {}}
    for index, (name, data) in enumerate(domains.items()):
        first, second = ("test", "oracle") if name == target else ("train", "val")
        roles[first][name], roles[second][name] = split_domain(data, trial, index)
    return roles


def all_domains(root: Union[str, Path], transform: Transform) -> dict[str, SampleList]:
    """All domains of a dataset in DomainBed's layout, sorted by name, with the same classes."""
    folders = domain_folders(root)
    classes = domain_classes(folders.values())
    return {name: read_domain(path, classes, transform) for name, path in folders.items()}


def domains_by_role(
    train: Paths, val: Optional[Paths], test: Optional[Paths], transform: Transform, trial: int = 0
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read domains from folders, as keywords of `rank_checkpoints`, and their classes.

    Args:
        train: a folder `domain/class/image` for each source domain.
        val: the same with validation data; None holds out 20 % of each training domain, as
            DomainBed does.
        test: folders of target domains, or None.
        transform: turns an image into a tensor.
        trial: seeds the split, where `val` is None.
    """
    folders = {"train": train, "val": val or (), "test": test or ()}
    classes = domain_classes(path for paths in folders.values() for path in paths)
    roles: dict[str, dict[str, Any]] = {}
    for role, paths in folders.items():
        names = [Path(path).resolve().name for path in paths]
        if len(set(names)) < len(names):
            raise NACError(f"`{role}`: two domains have the same name: {names}. Rename a folder.")
        roles[role] = {n: read_domain(path, classes, transform) for n, path in zip(names, paths)}
    for path, name in zip(train, list(roles["train"])) if not val else ():
        index = list(domain_folders(Path(path).resolve().parent)).index(name)
        split = split_domain(roles["train"][name], trial, index)
        roles["train"][name], roles["val"][name] = split
    return roles, classes
