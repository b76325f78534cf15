"""NAC-ME on domains of handwritten digits: train small networks, rank their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional

import torch
from torch.utils.data import DataLoader

from nac_openood.demo.domains import N_DIGITS, digit_domains
from nac_openood.demo.embedded import EmbeddedImages
from nac_openood.errors import FileError
from nac_openood.evaluation.leave_one_out import RankedRuns, rank_runs, with_origin
from nac_openood.evaluation.runs import find_runs, split_domains
from nac_openood.files import PathLike, make_folder, read_json, write_json
from nac_openood.network.random_state import kept_random_state
from nac_openood.progress import Say
from nac_openood.sources.networks import build
from nac_openood.sources.samples import Samples
from nac_openood.sources.weights import load_checkpoint
from nac_openood.training import SaveCheckpoints, train

ARCH = "resnet_embedded"
_EVERY, _BATCH, _RATE = 20, 32, 1e-3
_DONE = "training.json"


def run_rank_demo(
    out: PathLike,
    *,
    seed: int = 0,
    steps: int = 240,
    command: str = "nac_openood.demo.ranking.run_rank_demo",
    progress: Optional[bool] = None,
    say: Say = lambda text: None,
) -> RankedRuns:
    """Leave each domain of digits out once, train on the others, rank the checkpoints by NAC-ME.

    Repeat the call after an interruption to continue: complete runs and readings are used again.

    Args:
        out: folder of the checkpoints (`runs`) and the readings (`rankings`).
        seed: random seed of weights, splits and training; the number of the trial.
        steps: training steps; every 20 steps there is a checkpoint.
        command: the command that repeats the demo.
        progress: whether to show progress bars; None shows them on a terminal.
        say: is told what is going on.
    """
    folder = make_folder(out)
    domains = digit_domains(say)
    for target in domains:
        run_folder = folder / "runs" / target / f"trial_{seed}"
        _train(run_folder, domains, target, seed=seed, steps=steps, progress=progress, say=say)
    runs = [run for run in find_runs(folder / "runs", list(domains)) if run.trial == seed]
    ranked = rank_runs(
        runs, domains, lambda path: load_checkpoint(build(ARCH, N_DIGITS), path),
        out=folder / "rankings", space="all", progress=progress, say=say,
    )  # fmt: skip
    return with_origin(ranked, dataset="digits", arch=ARCH, command=command)


def _train(
    folder: Path,
    domains: Mapping[str, EmbeddedImages],
    target: str,
    *,
    seed: int,
    steps: int,
    progress: Optional[bool],
    say: Say,
) -> None:
    """Train without the target domain, unless a complete run with the same settings is there."""
    sources = split_domains(domains, target, seed)["train"]
    settings = {
        "arch": ARCH, "steps": steps, "every": _EVERY, "batch": _BATCH, "rate": _RATE,
        "seed": seed, "torch": torch.__version__,
        "data": {name: Samples(name, data).identity for name, data in sources.items()},
    }  # fmt: skip
    if _complete(folder, settings):
        return
    say(f"training on {', '.join(sources)}; {target} is left out")
    for old in folder.glob("step_*.pt"):  # of other settings, or of an interrupted run
        old.unlink()
    with kept_random_state(seed):
        net = build(ARCH, N_DIGITS)
    loaders: list[DataLoader[Any]] = [
        DataLoader(data, _BATCH, shuffle=True, drop_last=True) for data in sources.values()
    ]
    train(
        net, loaders, steps=steps, every=_EVERY, rate=_RATE, seed=seed, progress=progress,
        on_checkpoint=SaveCheckpoints(folder),
    )  # fmt: skip
    write_json(folder / _DONE, settings)


def _complete(folder: Path, settings: Mapping[str, Any]) -> bool:
    try:
        known = read_json(folder / _DONE)
    except (OSError, FileError):
        return False
    steps = int(settings["steps"])
    wanted = {*range(_EVERY, steps + 1, _EVERY), steps}
    return known == settings and all((folder / f"step_{n:05d}.pt").is_file() for n in wanted)
