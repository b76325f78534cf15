"""`nac_openood.compare`: OOD detection methods on your networks and data."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import torch
from torch import nn
from torch.utils.data import DataLoader

from nac_openood.benchmark.methods import AUTO_BACKEND
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.table import Method, chosen_methods
from nac_openood.benchmark.paper.published import SOURCES, published
from nac_openood.benchmark.run.compare import Study, run_study
from nac_openood.benchmark.run.results import Results, Row
from nac_openood.core.layer_config import whole_number
from nac_openood.detector.batches import Say, batches
from nac_openood.detector.config import NACConfig
from nac_openood.distributed import from_main
from nac_openood.errors import NACError
from nac_openood.network.probe import count_classes
from nac_openood.sources.checkpoints import find_checkpoints, named_networks, networks_by_name
from nac_openood.sources.samples import Samples
from nac_openood.sources.sets import Datasets, check_file_names

Network = Union[nn.Module, str, Path]
_BATCH = 100


def compare(
    networks: Union[Network, Sequence[Network], Mapping[str, Network]],
    *,
    train: Any,
    id_val: Any,
    test: Any,
    near: Optional[Mapping[str, Any]] = None,
    far: Optional[Mapping[str, Any]] = None,
    ood_val: Optional[Any] = None,
    shifted: Optional[Mapping[str, Any]] = None,
    methods: Optional[Sequence[Union[str, Method]]] = None,
    search: bool = True,
    out: Union[str, Path, None] = None,
    id_name: str = "in-distribution data",
    n_classes: Optional[int] = None,
    std: Optional[tuple[float, ...]] = None,
    load: Optional[Callable[[str], nn.Module]] = None,
    arch: Optional[str] = None,
    backend: str = AUTO_BACKEND,
    opengan: Union[str, Path, None] = None,
    nac_config: Optional[NACConfig] = None,
    nac_strategy: str = "grid",
    layers: Optional[Sequence[str]] = None,
    against: Optional[str] = None,
    batch_size: Optional[int] = None,
    workers: Optional[int] = None,
    seed: int = 0,
    skip_bad: bool = False,
    progress: Optional[bool] = None,
    say: Say = lambda text: None,
    on_result: Optional[Callable[[Row], None]] = None,
    command: str = "nac_openood.compare(...)",
) -> Results:
    """Run OOD detection methods on one or more networks and tabulate how well they do.

    Examples:
        >>> results = nac_openood.compare(
        ...     net, train=train_set, id_val=val_set, test=test_set,
        ...     near={"cifar100": cifar100}, far={"svhn": svhn}, ood_val=tin,
        ...     id_name="cifar10", methods=["msp", "knn", "nac"], out="results/mine",
        ... )
        >>> results.value("nac", "farood", "AUROC").mean
        >>> pandas.DataFrame(results.table())
        >>> from nac_openood.report.comparison import write_page, write_tables
        >>> write_tables(results)  # results.csv and results.md in results.folder
        >>> write_page(results)  # report.html; needs matplotlib

    A method that fails or cannot run becomes a row with its error; the others continue. Every
    result is saved as soon as it is available: repeat the call after an interruption to continue.
    Results of an earlier call are reused only if they were made with the same network, data,
    settings and versions. The networks and the caller's random state are left unchanged.

    Args:
        networks: a classifier, or several, in a list or by name: modules on their device, or
            checkpoints, which `load` turns into modules one after the other.
        train: training data without augmentation: a map-style dataset whose items are `(x, y)`,
            dicts `{'data', 'label'}` or tensors, or a `DataLoader` of one. Samples may be anything
            that the network takes: images, tables, text. See `sources.samples.Samples`.
        id_val: ID validation data.
        test: ID test data.
        near: near-OOD test sets by name.
        far: far-OOD test sets by name.
        ood_val: OOD validation data for the search of hyperparameters; None makes surrogates from
            the images of `id_val`, and the results mention it.
        shifted: covariate-shifted ID test sets by name, which count as in-distribution
            (full-spectrum detection).
        methods: names in the method table (`benchmark.methods.table`), your own rows, and "paper"
            (the methods in its tables), "all" or "fast" (all but the slow ones); None takes the
            paper's methods and the rules of this package.
        search: False uses default hyperparameters, without any OOD validation data.
        out: folder of the results; None makes a temporary one (`results.folder`).
        id_name: name of the in-distribution data; OpenOOD's ("cifar10", "imagenet") selects the
            NAC settings shipped for it.
        n_classes: number of classes; None asks the first network.
        std: standard deviation per channel by which images were normalized, for ODIN.
        load: makes a network from the path of a checkpoint.
        arch: name of the architecture; None takes the name of the class.
        backend: the library that runs the baselines: "openood", "pytorch-ood", or "auto" for
            OpenOOD if it is installed.
        opengan: OpenGAN's trained discriminator; None takes `best_DNet.ckpt` in the folder of the
            checkpoint.
        nac_config: NAC's settings and sweep; None takes those shipped for `id_name`.
        nac_strategy: strategy of NAC's search; "grid" is the authors'.
        layers: NAC's layers, out of those in its settings; None takes all.
        against: "paper" or "leaderboard" (OpenOOD's) puts the published numbers beside the
            measured ones; needs an `id_name` and `arch` for which there are some.
        batch_size: samples per batch; None takes the smallest of the loaders passed, else 100.
        workers: number of processes that load samples; None takes that of the loaders, else 0.
        seed: random seed.
        skip_bad: leave out image files that cannot be read.
        progress: whether to show progress bars; None shows them on a terminal.
        say: function that is called with status messages, e.g. `print`.
        on_result: function that is called with each `Row` of the results, as soon as a method is
            done on a network, e.g. `log_to_tensorboard(writer)` or `log_to_wandb(run)`, or one of
            your own.
        command: the command that repeats the comparison, for the report.

    Returns:
        The results, which are also saved as `results.json` in `out`.

    Raises:
        NACError: an argument is wrong, or the network cannot be run on the data.
    """
    rows = chosen_methods(methods)
    if against not in (None, *SOURCES):
        raise NACError(f"`against` must be 'paper', 'leaderboard' or None, got {against!r}.")
    if against is not None:  # raises early if not published
        published(id_name, arch or "an unnamed architecture", against)
    named = named_networks(networks, find_checkpoints)
    check_file_names("a network", named)
    if not named:
        raise NACError("expected at least one network in `networks`, got none.")
    runs, network = networks_by_name(named, load, "compare")
    if arch is None:
        arch = runs[0].path if isinstance(named[runs[0].name], nn.Module) else "network"
    sets = Datasets(
        id_name, n_classes or 0, train, id_val, test, ood_val, near or {}, far or {}, shifted or {},
        std,
    )  # fmt: skip
    data = (sets.train, sets.id_val, sets.ood_val, *sets.scored().values())
    loaders = [loader for loader in data if isinstance(loader, DataLoader)]
    if batch_size is None:
        batch_size = min((loader.batch_size or _BATCH for loader in loaders), default=_BATCH)
    if workers is None:
        workers = max((loader.num_workers for loader in loaders), default=0)
    nac = {"config": nac_config, "strategy": nac_strategy, "layers": layers}
    with torch.random.fork_rng(devices=[]):
        if n_classes is None:
            first = next(iter(batches(Samples("test", test, batch_size=1).loader())))
            sets = replace(sets, n_classes=count_classes(network(runs[0]), first.data))
        folder = out or from_main("folder", lambda: tempfile.mkdtemp(prefix="nac_compare_"))
        study = Study(
            sets=sets, arch=arch, network=network, runs=tuple(runs), methods=tuple(rows),
            make=scorers(rows, backend, nac=nac, opengan=opengan, say=say), out=Path(folder),
            search=search, reuse=out is not None,
            batch_size=whole_number("`batch_size`", batch_size, 1),
            workers=whole_number("`workers`", workers, 0), seed=seed, skip_bad=skip_bad,
            progress=progress, say=say, command=command, on_result=on_result,
        )  # fmt: skip
        return run_study(study, against=against)


def log_to_tensorboard(writer: Any) -> Callable[[Row], None]:
    """An `on_result` of `compare` that writes metrics to TensorBoard.

    Examples:
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> writer = SummaryWriter("runs/ood")
        >>> nac_openood.compare(nets, ..., on_result=log_to_tensorboard(writer))

    Args:
        writer: a `SummaryWriter`, or anything with `add_scalar(name, value, step)`. A scalar is
            named `METHOD/SET/METRIC`; the step is the number of the network.
    """
    runs: dict[str, int] = {}

    def write(row: Row) -> None:
        step = runs.setdefault(row.run, len(runs))
        for name, value in row.flat().items():
            writer.add_scalar(f"{row.method}/{name}", value, step)

    return write


def log_to_wandb(run: Any) -> Callable[[Row], None]:
    """An `on_result` of `compare` that logs metrics to Weights & Biases.

    Args:
        run: what `wandb.init` returned, or anything with `log(values)`. Values are named
            `NETWORK/METHOD/SET/METRIC`.
    """
    return lambda row: run.log({f"{row.run}/{row.method}/{n}": v for n, v in row.flat().items()})
