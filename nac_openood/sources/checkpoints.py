"""Checkpoints: finds them in files and folders, and loads them without running code in them."""

from __future__ import annotations

import os
import pickle
import re
import textwrap
import zipfile
from collections import Counter
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, Callable, Collection, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nac_openood.errors import NACError, some
from nac_openood.files import entries
from nac_openood.network.replica import unwrap

_BEST = "best.ckpt"
_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl")
#: Prefix of the names of weights that torchvision publishes.
PUBLISHED = "torchvision:"
#: Prefixes of the keys of a wrapped network.
_PREFIXES = re.compile(r"^(module\.|_orig_mod\.)+")
#: The entries in which training scripts save a state dict.
_ENTRIES = ("state_dict", "model_state_dict", "model_dict", "model", "net")
#: The first bytes of the archives and pickles that `torch.save` writes.
_STARTS = (b"PK", b"\x80")
#: Featurizer and classifier of DomainBed's algorithms; a moving average comes before its source.
_DOMAINBED = (
    ("network_sma.0.", "network_sma.1."),
    ("featurizer.", "classifier."),
    ("network.0.", "network.1."),
)


class Checkpoint(NamedTuple):
    """The weights of a run: a file, or published ones such as `torchvision:IMAGENET1K_V1`."""

    name: str
    path: str


def find_checkpoints(paths: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """Find the checkpoints in files and folders, each with its own name.

    A folder stands for the `best.ckpt` of its runs `s0`, `s1`, ... or for its own `best.ckpt`.
    """
    found: list[str] = []
    for path in map(str, paths):
        if path.startswith(PUBLISHED) or Path(path).is_file():
            found.append(path)
            continue
        if not Path(path).is_dir():
            raise NACError(f"there is no checkpoint {path}.")
        runs = sorted(Path(path).glob(f"s*/{_BEST}"), key=lambda p: (len(str(p)), p))
        best = runs or list(Path(path).glob(_BEST))
        if not best:
            others = ", ".join(sorted(p.name for p in Path(path).glob("*.ckpt")))
            hint = f" Name one of its files: {others}." if others else ""
            raise NACError(f"{path} holds neither s*/{_BEST} nor {_BEST}.{hint}")
        found += map(str, best)
    return _named(found)


def run_checkpoints(paths: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """Find all checkpoints of a training run, in the order of their steps.

    Args:
        paths: files, or folders with files such as `step_300.pt` or `model_step300.pkl`.
    """
    found: list[str] = []
    for path in map(Path, paths):
        inside = [path] if path.is_file() else [p for p in entries(path) if p.suffix in _SUFFIXES]
        if not inside:
            raise NACError(f"{path} holds no checkpoints ({', '.join(_SUFFIXES)}).")
        found += map(str, inside)
    return by_step(_named(found))


def _named(paths: Sequence[str]) -> list[Checkpoint]:
    """Name checkpoints for folders of results: `s0` for `.../s0/best.ckpt`, else by their files."""
    twice = [path for path, count in Counter(map(os.path.realpath, paths)).items() if count > 1]
    if twice:  # means and rankings would count it twice
        raise NACError(f"expected each checkpoint once, got {some(twice)} more than once.")
    names = []
    for path in paths:
        folder, stem = Path(path).resolve().parent.name, Path(path).stem
        name = folder if f"{stem}.ckpt" == _BEST and folder else stem
        if path.startswith(PUBLISHED):
            name = path[len(PUBLISHED) :].lower()
        names.append(re.sub(r"[^\w.-]", "_", name).lstrip(".") or "run")
    if len(set(names)) < len(names):  # as `s0` of two folders
        names = [f"{number}-{name}" for number, name in enumerate(names)]
    return list(map(Checkpoint, names, paths))


def by_step(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Sort checkpoints by their steps; keep their order if some have none."""
    if any(training_step(each) is None for each in checkpoints):
        return list(checkpoints)
    return sorted(checkpoints, key=lambda each: training_step(each) or 0)


def named_networks(
    networks: Any, find: Callable[[Sequence[Any]], list[Checkpoint]]
) -> Mapping[str, Any]:
    """Name each network after its class or its checkpoint, unless it has a name.

    Args:
        networks: a module or the path of a checkpoint, or several, in a list or by name.
        find: `find_checkpoints` or `run_checkpoints`, for paths without names.
    """
    if isinstance(networks, Mapping):
        return networks
    if not isinstance(networks, (nn.Module, str, Path, Sequence)):
        raise NACError(f"expected a network, or several, got {type(networks).__name__}.")
    several: Any = [networks] if isinstance(networks, (nn.Module, str, Path)) else list(networks)
    modules = [net for net in several if isinstance(net, nn.Module)]
    files = find([path for path in several if not isinstance(path, nn.Module)])
    names = [type(unwrap(net)).__name__ for net in modules]
    if len(modules) > 1:
        names = [f"{name}-{number}" for number, name in enumerate(names)]
    return {**dict(zip(names, modules)), **{file.name: file.path for file in files}}


def networks_by_name(
    named: Mapping[str, Any], load: Optional[Callable[[str], nn.Module]], verb: str
) -> tuple[list[Checkpoint], Callable[[Checkpoint], nn.Module]]:
    """Turn modules and paths into checkpoints, and a function that makes their networks.

    Args:
        named: modules and paths of checkpoints by name.
        load: makes a network from the path of a checkpoint.
        verb: what is done with them, for errors.

    Returns:
        Checkpoints, in which the path of a module is the name of its class.
    """
    modules = {name: net for name, net in named.items() if isinstance(net, nn.Module)}
    if load is None and len(modules) < len(named):
        raise NACError(f"to {verb} files, pass `load`, which makes a network from a path.")
    paths = {**named, **{name: type(unwrap(net)).__name__ for name, net in modules.items()}}

    def network(checkpoint: Checkpoint) -> nn.Module:
        module = modules.get(checkpoint.name)
        return load(checkpoint.path) if module is None else module  # type: ignore[misc]

    return [Checkpoint(name, str(path)) for name, path in paths.items()], network


def training_step(checkpoint: Checkpoint) -> Optional[int]:
    """The number at the end of a checkpoint's name, 300 of `model_step300.pkl`, or None.

    For a network that was passed as a module, it is in the name: the path is that of a class.
    """
    path = Path(checkpoint.path)
    number = re.search(r"(\d+)$", path.stem if path.suffix else checkpoint.name)
    return None if number is None else int(number[1])


def load_checkpoint(net: nn.Module, path: Union[str, Path]) -> nn.Module:
    """Load a checkpoint into `net`, in evaluation mode; code in the file is not run.

    The file holds a state dict, alone or under `state_dict`, with or without the prefix `module.`
    that `DataParallel` adds, as PyTorch or safetensors write it; or it is a checkpoint of DomainBed
    with a linear classifier.

    Raises:
        NACError: the file is missing or damaged, or does not fit; the message names the keys.
    """
    state = {_PREFIXES.sub("", key): value for key, value in _read_state(Path(path)).items()}
    try:
        net.load_state_dict(_from_domainbed(state, net.state_dict()))
    except RuntimeError as error:
        reason = textwrap.shorten(str(error).partition(":")[2], 400, placeholder=" ...")
        raise NACError(
            f"{path} does not fit {type(net).__name__}: {reason} Expected weights of this "
            "architecture with this number of classes: check `arch` and the data."
        ) from error
    return net.eval()


def check_archive(path: Union[str, Path]) -> list[str]:
    """Compare every part of a PyTorch archive with its checksum, which PyTorch does not do.

    Returns:
        The names of the parts; empty for files of other formats, which have no checksums.
    """
    if not zipfile.is_zipfile(path):
        return []
    try:
        with zipfile.ZipFile(path) as archive:
            bad, names = archive.testzip(), archive.namelist()
    except Exception as error:  # zipfile raises many kinds of errors for a broken archive
        raise NACError(f"{path} is damaged ({error}).") from error
    if bad is not None:
        raise NACError(f"{path} is damaged: '{bad}' does not match its checksum. Copy it again.")
    return names


def _read_state(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise NACError(f"there is no checkpoint {path}.")
    check_archive(path)
    try:
        content = _read_file(path)
    except pickle.UnpicklingError as error:  # its own message advises to run the code
        raise NACError(
            f"{path} holds more than tensors and is not loaded, because it could run code. Save "
            "net.state_dict() instead; of a DomainBed checkpoint that you trust, its 'model_dict'."
        ) from error
    except Exception as error:  # torch may raise anything on a broken file
        raise NACError(f"{path} is damaged or not a checkpoint ({error}).") from error
    inside = content if isinstance(content, Mapping) else {}
    state = next((inside[k] for k in _ENTRIES if isinstance(inside.get(k), Mapping)), inside)
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        found = sorted(map(str, inside)) or type(content).__name__
        raise NACError(f"{path}: expected a state dict of tensors, got {found}.")
    return state


def _read_file(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    with path.open("rb") as file:
        start = file.read(30)
    if not start.startswith(_STARTS):
        found = f"it begins with {str(start)[1:]}" if start else "it is empty"
        raise NACError(f"{found}; get the file itself, not a web page or a Git LFS pointer")
    with _domainbed_content():
        return torch.load(path, map_location="cpu", weights_only=True)


def _from_domainbed(state: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Turn the weights of a DomainBed algorithm into those of one classifier.

    Args:
        state: `model_dict` of a checkpoint; anything else is returned unchanged.
        wanted: names of the classifier's weights. Those that the featurizer does not have are its
            head: `fc` in a ResNet, `head` in a ViT.
    """
    for prefixes in _DOMAINBED if set(state) != set(wanted) else ():
        features, classifier = (_under(prefix, state) for prefix in prefixes)
        if features and classifier:
            features = _under("network.", features) or features
            heads = {key.rpartition(".")[0] for key in wanted if key not in features}
            head = heads.pop() if len(heads) == 1 else "classifier"
            return {**features, **{f"{head}.{key}": value for key, value in classifier.items()}}
    return state


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n[len(prefix) :]: value for n, value in state.items() if n.startswith(prefix)}


def _domainbed_content() -> torch.serialization.safe_globals:
    """Let `torch.load(weights_only=True)` read DomainBed's `args`: paths and numpy's numbers.

    Making these runs no code of the file.
    """
    numpy_core = (getattr(np, "_core", None) or np.core).multiarray  # numpy 2 has moved it
    makers = [numpy_core.scalar, numpy_core._reconstruct]
    old_names = [(maker, f"numpy.core.multiarray.{maker.__name__}") for maker in makers]
    types = [type(np.dtype(name)) for name in ("float64", "float32", "int64", "bool")]
    classes = [PosixPath, PurePosixPath, np.ndarray, np.dtype, *types]
    return torch.serialization.safe_globals([*classes, *makers, *old_names])
