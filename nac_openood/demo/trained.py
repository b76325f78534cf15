"""Networks for the embedded benchmark, trained once and then taken from a cache."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path
from typing import Optional

import torch
from torch import nn

from nac_openood import files, tensor_files
from nac_openood.__about__ import __version__
from nac_openood.demo.embedded import N_CLASSES
from nac_openood.demo.training import recipe_of, train_embedded
from nac_openood.distributed import is_main
from nac_openood.errors import FileError, NACError
from nac_openood.files import mode_of
from nac_openood.network.fingerprint import difference, fingerprint
from nac_openood.ownership import refuse_foreign
from nac_openood.sources.networks import build

_KIND, _FORMAT = "embedded network", 1
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """The cache: `$NAC_CACHE`, or `nac_openood` in `$XDG_CACHE_HOME` or `~/.cache`."""
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
    """A network trained on digits 0 to 7, in evaluation mode, from the cache if it is there.

    If the file is damaged or another user's, the network is trained again. If the cache cannot be
    written, there is a warning.

    Args:
        arch: `resnet_embedded` or `vit_embedded`.
        cache: folder of the cache; None takes `cache_folder()`.
        seed: random seed of the training.
        epochs: number of epochs; None takes the recipe's.
        progress: whether to show a progress bar; None shows it on a terminal.
    """
    path = cached_file(arch, cache=cache, seed=seed, epochs=epochs)
    net = _read(path, arch) if path.is_file() else None
    if net is not None:
        return net
    net = train_embedded(arch, seed=seed, epochs=epochs, progress=progress)
    _keep(path, net)
    return net


def cached_file(
    arch: str,
    *,
    cache: Optional[files.PathLike] = None,
    seed: int = 0,
    epochs: Optional[int] = None,
) -> Path:
    """The file in which `trained` keeps a network, named after all that its weights depend on."""
    epochs = recipe_of(arch).epochs if epochs is None else epochs
    name = f"{arch}-seed{seed}-epochs{epochs}-torch{torch.__version__}-nac{__version__}"
    return Path(cache_folder() if cache is None else cache) / f"{name}.safetensors"


def _read(path: Path, arch: str) -> Optional[nn.Module]:
    """The network, or None with a warning if the file is damaged."""
    net = build(arch, N_CLASSES)
    try:
        refuse_foreign(path)
        tensors, about = tensor_files.read_tensors(path, _KIND, _FORMAT)
        net.load_state_dict(tensors)
        if difference(about, net):
            raise FileError(f"{path} is damaged: its weights have changed.")
    except (NACError, RuntimeError) as error:  # RuntimeError: other names or shapes
        warnings.warn(f"{error} The network is trained again.", UserWarning, stacklevel=3)
        return None
    return net


def _keep(path: Path, net: nn.Module) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.is_symlink() or mode_of(path) & _BY_OTHERS:  # which a new file would keep
            files.remove(path)
        tensor_files.write_tensors(path, _KIND, _FORMAT, net.state_dict(), fingerprint(net))
        if is_main():
            path.chmod(mode_of(path) & ~_BY_OTHERS)  # or `refuse_foreign` might refuse it
    except (FileError, OSError) as error:
        warnings.warn(
            f"the trained network cannot be saved ({error}) and will be trained again next time. "
            "Set NAC_CACHE to a writable folder.",
            UserWarning,
            stacklevel=3,
        )
