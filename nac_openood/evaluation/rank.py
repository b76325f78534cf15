"""`nac_openood.rank_checkpoints`: which checkpoint of a run will generalize best."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from torch import nn

from nac_openood.core.layer_config import IntegralConfig, refuse_unknown
from nac_openood.detector.batches import Say, batches
from nac_openood.detector.config import AUTO
from nac_openood.errors import NACError
from nac_openood.evaluation.extraction import CheckpointReadings, SamplesByRole, domain_samples
from nac_openood.evaluation.ranking import Ranking, assemble_ranking
from nac_openood.files import locked, make_folder
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.probe import count_classes
from nac_openood.search.space import grid_points
from nac_openood.sources.checkpoints import Checkpoint, by_step, distinct, networks_by_name
from nac_openood.sources.sets import check_file_names

Networks = Union[Mapping[str, Any], Sequence[Any]]
Space = Union[str, Mapping[str, Sequence[Any]], IntegralConfig]

_BINS, _FULL = (50, 1000), (1, 500, 5000, 10000)
#: Table 13 of the paper; `all` has every steepness of it, for other data.
SPACES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "vlcs": {"n_bins": _BINS, "steepness": (1.0, 500.0, 5000.0), "full_count": _FULL},
    "pacs": {"n_bins": _BINS, "steepness": (0.01, 0.1, 0.5), "full_count": _FULL},
    "officehome": {"n_bins": _BINS, "steepness": (0.01, 1.0, 100.0), "full_count": _FULL},
    "terraincognita": {"n_bins": _BINS, "steepness": (0.01, 0.1), "full_count": (5, 10, 30, 50)},
    "all": {
        "n_bins": _BINS,
        "steepness": (0.01, 0.1, 0.5, 1.0, 100.0, 500.0, 5000.0),
        "full_count": _FULL,
    },
}


def rank_checkpoints(
    checkpoints: Networks,
    *,
    train: Mapping[str, Any],
    val: Mapping[str, Any],
    test: Optional[Mapping[str, Any]] = None,
    oracle: Optional[Mapping[str, Any]] = None,
    load: Optional[Callable[[str], nn.Module]] = None,
    layer: str = AUTO,
    space: Space = "all",
    out: Union[str, Path, None] = None,
    batch_size: int = 100,
    workers: int = 0,
    progress: Optional[bool] = None,
    say: Say = lambda text: None,
) -> Ranking:
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
            Paths whose names end in a number (`step_300.pt`) are put in the order of the numbers.
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
    samples = domain_samples(
        {"train": train, "val": val, "test": test or {}, "oracle": oracle or {}},
        batch_size=batch_size, workers=workers, progress=progress,
    )  # fmt: skip
    origins = _check(found, network, samples, {"layer": layer, "layout": configs[0].layout})
    readings = []
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="nac_rank_"))
        folder = make_folder(out)
        stack.enter_context(locked(folder))
        for number, (one, origin) in enumerate(zip(found, origins), start=1):
            path = make_folder(folder / "readings") / f"{one.name}.safetensors"
            stored = CheckpointReadings.load_if(path, samples, origin)
            if stored is None:
                say(f"reading checkpoint {number} of {len(found)}: {one.name}")
                stored = CheckpointReadings.extract(path, network(one), samples, origin)
            readings.append(stored)
        ranking = assemble_ranking(found, readings, configs)
        ranking.save(folder)
    return ranking


def networks_of(
    networks: Networks, load: Optional[Callable[[str], nn.Module]]
) -> tuple[list[Checkpoint], Callable[[Checkpoint], nn.Module]]:
    """The checkpoints in the order of training, and a function that makes their networks.

    Args:
        networks: two or more paths or modules, in a list or by name.
        load: makes a network from the path of a checkpoint.

    Raises:
        NACError: if there are fewer than two, or paths without `load`.
    """
    if not isinstance(networks, Mapping):
        names = [
            f"{type(one).__name__}-{number}" if isinstance(one, nn.Module) else Path(one).stem
            for number, one in enumerate(networks)
        ]
        networks = dict(zip(distinct(names), networks))
    check_file_names("a checkpoint", networks)
    if len(networks) < 2:
        raise NACError(
            f"expected at least two checkpoints to rank, got {len(networks)}: the rank correlation "
            "of one is undefined. For the coverage of a single network use coverage_integral."
        )
    checkpoints, network = networks_by_name(networks, load, "rank")
    if not any(isinstance(one, nn.Module) for one in networks.values()):
        checkpoints = by_step(checkpoints)
    return checkpoints, network


def _check(
    checkpoints: Sequence[Checkpoint],
    network: Callable[[Checkpoint], nn.Module],
    samples: SamplesByRole,
    settings: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Load every checkpoint before anything is written; returns the origin of their readings."""
    fingerprints: list[dict[str, str]] = []
    for one in checkpoints:
        net = network(one)
        if not fingerprints:
            first = next(iter(samples.values()))
            n_classes = count_classes(net, next(batches(first.loader())).data)
            for data in samples.values():
                data.check_labels(n_classes)
        fingerprints.append(fingerprint(net))
    structure = fingerprints[0]["structure"]
    others = [c.name for c, f in zip(checkpoints, fingerprints) if f["structure"] != structure]
    if others:
        raise NACError(
            f"expected checkpoints of one architecture; {', '.join(others)} differ from "
            f"{checkpoints[0].name}. Coverage of different architectures cannot be compared."
        )
    identities = {"/".join(key): data.identity for key, data in samples.items()}
    return [{"network": each, **settings, "data": identities} for each in fingerprints]


def space_named(name: str) -> str:
    """The space for a dataset by the name of its folder: `office_home` is `officehome`.

    Datasets that the paper does not have take `all`.
    """
    letters = "".join(sign for sign in name.lower() if sign.isalnum())
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
            raise NACError(f"`space` must be one of {list(SPACES)}, lists or a config: {space!r}.")
        space = SPACES[space]
    refuse_unknown(space, ("n_bins", "steepness", "full_count", "layout"), "setting")
    empty = [name for name, values in space.items() if isinstance(values, str) or not len(values)]
    if empty or not space:
        raise NACError(
            f"`space` needs a list of values for each setting; {empty or 'all'} is empty."
        )
    return [IntegralConfig(**point) for point in grid_points(space)]
