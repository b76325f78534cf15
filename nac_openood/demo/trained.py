"""Small networks trained on the embedded benchmark's digits, in seconds on a CPU, and cached."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.__about__ import __version__
from nac_openood.demo.embedded import N_CLASSES, digit_splits, embedded_sets
from nac_openood.detector.batches import Say, bar
from nac_openood.errors import FileError, NACError
from nac_openood.files import PathLike, make_folder
from nac_openood.network.replica import kept_random_state
from nac_openood.sources.networks import build
from nac_openood.sources.sets import Datasets
from nac_openood.tensor_files import read_tensors, write_tensors

_KIND, _FORMAT = "embedded network", 1
_BATCH, _RATE, _DECAY = 64, 3e-3, 0.05
_SHIFT = 3  # less than a pixel of the original 8x8 images
#: The networks of the demo, and their names for `networks.build`.
NETWORKS = {"resnet": "resnet_embedded", "vit": "vit_embedded"}
#: For how many epochs they are trained.
EPOCHS = {"resnet_embedded": 15, "vit_embedded": 40}


def network_and_sets(arch: str, seed: int, say: Say) -> tuple[nn.Module, Datasets]:
    """One of `NETWORKS`, trained now or loaded from the cache, and the datasets of the demo."""
    # shifted digits count as in-distribution in full-spectrum detection only
    sets = replace(embedded_sets(say), shifted={})
    return trained(NETWORKS[arch], seed=seed, say=say), sets


def cache_folder() -> Path:
    """The cache: `$NAC_CACHE`, or `nac_openood` in `$XDG_CACHE_HOME` or `~/.cache`."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NAC_CACHE") or base / "nac_openood")


def trained(
    arch: str,
    *,
    cache: Optional[PathLike] = None,
    seed: int = 0,
    say: Say = lambda text: None,
) -> nn.Module:
    """Train a network on digits 0 to 7, or load it from the cache, in evaluation mode.

    If the file is damaged, the network is trained again. If the cache cannot be written, there is a
    warning.

    Args:
        arch: `resnet_embedded` or `vit_embedded`.
        cache: folder of the cache; None takes `cache_folder()`.
        seed: random seed of the training.
        say: function that is called with a message before the network is trained or once it is
            loaded.
    """
    path = cached_file(arch, cache=cache, seed=seed)
    if path.is_file():
        net = build(arch, N_CLASSES)
        try:
            net.load_state_dict(read_tensors(path, _KIND, _FORMAT)[0])
            say(f"loaded the network of an earlier run, {path}")
            return net
        except (FileError, RuntimeError) as error:  # RuntimeError: other names or shapes
            warnings.warn(f"{error} The network is trained again.", stacklevel=2)
    say(f"training a small network on the digits 0 to 7: {EPOCHS[arch]} epochs, some seconds")
    net = train_embedded(arch, seed=seed)
    try:
        write_tensors(make_folder(path.parent) / path.name, _KIND, _FORMAT, net.state_dict(), {})
    except FileError as error:
        warnings.warn(f"{error} Set NAC_CACHE to a writable folder.", stacklevel=2)
    return net


def cached_file(arch: str, *, cache: Optional[PathLike] = None, seed: int = 0) -> Path:
    """The file in which `trained` caches a network, named after all that its weights depend on."""
    if arch not in EPOCHS:
        raise NACError(f"expected one of {', '.join(EPOCHS)}, got '{arch}'.")
    name = f"{arch}-seed{seed}-epochs{EPOCHS[arch]}-torch{torch.__version__}-nac{__version__}"
    return Path(cache or cache_folder()) / f"{name}.safetensors"


def train_embedded(arch: str, *, seed: int = 0, epochs: Optional[int] = None) -> nn.Module:
    """Train a network on digits 0 to 7, without changing the caller's random state.

    Args:
        arch: `resnet_embedded` or `vit_embedded`.
        seed: random seed; on processors of one kind, equal seeds give equal weights.
        epochs: number of epochs; None takes those of `EPOCHS`.

    Returns:
        The network, in evaluation mode.
    """
    data, epochs = digit_splits()["train"], EPOCHS[arch] if epochs is None else epochs
    images, labels = data.tensors, torch.from_numpy(data.labels)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # how sums are rounded depends on the number of threads
    try:
        with kept_random_state(seed):
            net = build(arch, N_CLASSES).train()
            steps = epochs * -(-len(images) // _BATCH)
            optimizer = torch.optim.AdamW(net.parameters(), _RATE, weight_decay=_DECAY)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, max(steps, 1))
            for _ in bar(range(epochs), f"training {arch}", None):
                for rows in torch.randperm(len(images)).split(_BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(net(_shifted(images[rows])), labels[rows]).backward()
                    optimizer.step()
                    schedule.step()
    finally:
        torch.set_num_threads(threads)
    return net.eval()


def _shifted(images: Tensor) -> Tensor:
    """The batch moved by up to three pixels; the border is filled with background."""
    padded = F.pad(images, (_SHIFT,) * 4, value=float(images.amin()))
    down, right = torch.randint(0, 2 * _SHIFT + 1, (2,)).tolist()
    height, width = images.shape[2:]
    return padded[:, :, down : down + height, right : right + width]
