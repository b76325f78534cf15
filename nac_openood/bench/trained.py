"""Trained networks for the embedded benchmark: trained once, then taken from a cache."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Optional

import torch
from torch import nn

from nac_openood.__about__ import __version__
from nac_openood.bench.embedded import N_CLASSES
from nac_openood.bench.embedded_training import recipe_of, train
from nac_openood.bench.networks import build
from nac_openood.core import files
from nac_openood.core.fingerprint import fingerprint
from nac_openood.errors import FileError

_KIND, _FORMAT = "embedded network", 1


def cache_folder() -> Path:
    """`$NAC_CACHE`, or `nac_openood` in `$XDG_CACHE_HOME` or `~/.cache`."""
    named = os.environ.get("NAC_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nac_openood"


def trained(
    arch: str = "resnet_embedded",
    *,
    cache: Optional[files.PathLike] = None,
    seed: int = 0,
    epochs: Optional[int] = None,
    progress: Optional[bool] = None,
) -> nn.Module:
    """A network that knows digits 0..7, in evaluation mode, from the cache where it is there.

    A damaged file is made again; a cache that cannot be written costs a warning, not the network.

    Args:
        arch: `resnet_embedded` or `vit_embedded`.
        cache: the folder; None takes `cache_folder()`.
        seed: of the training.
        epochs: None takes the recipe's.
        progress: a bar while training; None shows it on a terminal.
    """
    path = cached_file(arch, cache=cache, seed=seed, epochs=epochs)
    net = _read(path, arch) if path.is_file() else None
    if net is not None:
        return net
    net = train(arch, seed=seed, epochs=epochs, progress=progress)
    _keep(path, net)
    return net


def cached_file(
    arch: str,
    *,
    cache: Optional[files.PathLike] = None,
    seed: int = 0,
    epochs: Optional[int] = None,
) -> Path:
    """Where `trained` keeps a network: the name holds everything that decides its weights."""
    epochs = recipe_of(arch).epochs if epochs is None else epochs
    name = f"{arch}-seed{seed}-epochs{epochs}-torch{torch.__version__}-nac{__version__}"
    return Path(cache_folder() if cache is None else cache) / f"{name}.safetensors"


def _read(path: Path, arch: str) -> Optional[nn.Module]:
    """The network, or None with a warning where the file is not what was written."""
    net = build(arch, N_CLASSES).eval()
    try:
        tensors, about = files.read(path, _KIND, _FORMAT)
        net.load_state_dict(tensors)
        if about != fingerprint(net):  # safetensors itself would not notice a flipped bit
            raise FileError(f"{path} is damaged: its weights are not those that were written.")
    except (FileError, RuntimeError) as error:  # RuntimeError: other names or shapes
        warnings.warn(f"{error} The network is trained again.", UserWarning, stacklevel=3)
        return None
    return net


def _keep(path: Path, net: nn.Module) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, _KIND, _FORMAT, net.state_dict(), fingerprint(net))
    except (FileError, OSError) as error:
        warnings.warn(
            f"the trained network is not kept ({error}) and will be trained again next time. Set "
            "NAC_CACHE to a folder that can be written.",
            UserWarning,
            stacklevel=3,
        )
