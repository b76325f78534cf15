"""Checkpoints: finds them in files and folders, and loads them without running code in them."""

from __future__ import annotations

import pathlib
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Optional, Sequence, Union

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nac_openood.errors import NACError, some
from nac_openood.files import check_encoding, entries, is_file, is_folder
from nac_openood.network.replica import unwrap

_BEST = "best.ckpt"
_SUFFIXES = (".pt", ".pth", ".ckpt", ".pkl")
#: Prefix of the names of weights that torchvision publishes.
PUBLISHED = "torchvision:"
#: Prefixes of the keys of a wrapped network.
_PREFIXES = ("module.", "_orig_mod.")
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


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a run: a file, or published ones such as `torchvision:IMAGENET1K_V1`."""

    name: str
    path: str


def find_checkpoints(paths: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """Find the checkpoints in files and folders, each with its own name.

    A folder stands for the `best.ckpt` of its runs `s0`, `s1`, ... or for its own `best.ckpt`.
    """
    found = [path for entry in paths for path in _best_in(str(entry))]
    if not found:
        raise NACError("expected at least one checkpoint, got none.")
    return _named(found)


def run_checkpoints(paths: Sequence[Union[str, Path]]) -> list[Checkpoint]:
    """Find all checkpoints of a training run, in the order of their steps.

    Args:
        paths: files, or folders with files such as `step_300.pt` or `model_step300.pkl`.
    """
    found: list[str] = []
    for path in map(Path, paths):
        if not is_file(path) and not is_folder(path):
            raise NACError(f"there is no checkpoint {path}.")
        inside = [path] if is_file(path) else [p for p in entries(path) if p.suffix in _SUFFIXES]
        if not inside:
            raise NACError(
                f"{path} holds no checkpoints: expected files that end in {', '.join(_SUFFIXES)}."
            )
        found += map(str, filter(is_file, inside))
    return by_step(_named(found))


def by_step(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Sort checkpoints by their steps; keep their order if some have none."""
    if any(training_step(each) is None for each in checkpoints):
        return list(checkpoints)
    return sorted(checkpoints, key=lambda each: training_step(each) or 0)


def distinct(names: Sequence[str]) -> list[str]:
    """Number the names if any occurs twice, as `s0` of two folders does."""
    repeated = len(set(names)) < len(names)
    return [f"{i}-{name}" for i, name in enumerate(names)] if repeated else list(names)


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
        raise NACError(
            f"to {verb} checkpoint files, pass `load`: a function that makes a network from the "
            "path of a checkpoint. Or pass the networks themselves."
        )
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


def _best_in(entry: str) -> list[str]:
    path = Path(entry)
    if entry.startswith(PUBLISHED) or is_file(path):
        return [entry]
    if not is_folder(path):
        raise NACError(f"there is no checkpoint {path}.")
    runs = sorted(path.glob(f"s*/{_BEST}"), key=lambda p: (len(p.parent.name), p.parent.name))
    best = runs or [p for p in [path / _BEST] if is_file(p)]
    if not best:
        others = sorted(p.name for p in path.glob("*.ckpt"))
        hint = f" Name one of its files: {', '.join(others)}." if others else ""
        raise NACError(f"{path} holds neither s*/{_BEST} nor {_BEST}.{hint}")
    return [str(p) for p in best]


def _named(paths: Sequence[str]) -> list[Checkpoint]:
    names = distinct([_name(path) for path in paths])
    return [Checkpoint(name, path) for name, path in zip(names, paths)]


def _name(path: str) -> str:
    """A name for a folder of results: `s0` for `.../s0/best.ckpt`, otherwise the file's name."""
    if path.startswith(PUBLISHED):
        return path[len(PUBLISHED) :].lower()
    folder, stem = Path(path).resolve().parent.name, Path(path).stem
    name = folder if stem == Path(_BEST).stem and folder else stem
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "run"


def load_checkpoint(net: nn.Module, path: Union[str, Path]) -> nn.Module:
    """Load a checkpoint into `net`, in evaluation mode; code in the file is not run.

    The file holds a state dict, alone or under `state_dict`, with or without the prefix `module.`
    that `DataParallel` adds, as PyTorch or safetensors write it; or it is a checkpoint of DomainBed
    with a linear classifier.

    Raises:
        NACError: the file is missing or damaged, or does not fit; the message names the keys.
    """
    saved, wanted = _read_state(Path(path)), net.state_dict()
    bare = {_without_prefixes(key): value for key, value in saved.items()}
    state = _from_domainbed(bare, wanted)
    problems = {
        "missing": [key for key in wanted if key not in state],
        "unexpected": [key for key in state if key not in wanted],
        "of another shape": [
            f"{key} {list(state[key].shape)} instead of {list(value.shape)}"
            for key, value in wanted.items()
            if key in state and state[key].shape != value.shape
        ],
        "without values, or sparse": [
            key for key, value in state.items() if value.is_meta or value.layout != torch.strided
        ],
        "both with and without a prefix": [
            key for key in saved if key not in bare and _without_prefixes(key) in saved
        ],
    }
    found = [f"{what}: {some(keys, 4)}" for what, keys in problems.items() if keys]
    if found:
        raise NACError(
            f"{path} does not fit {type(net).__name__}: {'; '.join(found)}. Expected weights of "
            "this architecture with this number of classes: check `arch` and the data."
        )
    net.load_state_dict(state)
    return net.eval()


def check_archive(path: Union[str, Path]) -> None:
    """Compare every part of a PyTorch archive with its checksum, which PyTorch does not do.

    Files of other formats have no checksums and are not checked.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except Exception as error:  # zipfile raises many kinds of errors for a broken archive
        raise NACError(f"{path} is damaged ({error}).") from error
    if bad is not None:
        raise NACError(
            f"{path} is damaged: '{bad}' does not match its checksum. Copy or save it again, with "
            "checksums (PyTorch's default)."
        )


def _read_state(path: Path) -> Mapping[str, Tensor]:
    if not is_file(path):
        raise NACError(f"there is no checkpoint {path}.")
    content = _read_file(path)
    for key in _ENTRIES:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        return content
    found = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
    raise NACError(
        f"{path}: expected a state dict of tensors, or {{'state_dict': ...}}; got {found}."
    )


def _read_file(path: Path) -> Any:
    check_archive(path)
    if path.suffix == ".safetensors":
        check_encoding(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as file:
            start = file.read(30)
        if not start.startswith(_STARTS):
            found = f"it begins with {str(start)[1:]}" if start else "it is empty"
            raise NACError(f"{found}; get the file itself, not a web page or a Git LFS pointer")
        with _domainbed_content():
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its own message advises to run the code
        raise NACError(
            f"{path} holds more than tensors and is not loaded, because it could run code. Save "
            "net.state_dict() instead; of a DomainBed checkpoint that you trust, its 'model_dict'."
        ) from error
    except Exception as error:  # torch may raise anything on a broken file
        raise NACError(f"{path} is damaged or not a checkpoint ({error}).") from error


def _without_prefixes(key: str) -> str:
    while key.startswith(_PREFIXES):
        key = key.split(".", 1)[1]
    return key


def _from_domainbed(state: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Turn the weights of a DomainBed algorithm into those of one classifier.

    Args:
        state: `model_dict` of a checkpoint; anything else is returned unchanged.
        wanted: names of the classifier's weights. Those that the featurizer does not have are its
            head: `fc` in a ResNet, `head` in a ViT.
    """
    if set(state) == set(wanted):
        return state
    for prefixes in _DOMAINBED:
        features, classifier = (_under(prefix, state) for prefix in prefixes)
        if features and classifier:
            break
    else:
        return state
    inner = _under("network.", features)
    features = inner if len(inner) == len(features) else features
    if set(classifier) != {"weight", "bias"}:
        raise NACError(
            f"this DomainBed checkpoint has a nonlinear classifier ({', '.join(classifier)}), "
            "expected a linear one. Build the network yourself and pass it instead."
        )
    heads = {key.rpartition(".")[0] for key in wanted if key not in features}
    head = heads.pop() if len(heads) == 1 else "classifier"
    return {**features, **{f"{head}.{key}": value for key, value in classifier.items()}}


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
    paths = [pathlib.PosixPath, pathlib.PurePosixPath]
    return torch.serialization.safe_globals(
        [*paths, *makers, *old_names, np.ndarray, np.dtype, *types]
    )
