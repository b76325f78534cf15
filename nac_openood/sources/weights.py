"""Weights of a network out of a checkpoint file, without running code in it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Mapping, Union

import torch
from torch import Tensor, nn

from nac_openood.errors import NACError, some, why_unreadable
from nac_openood.files import check_encoding
from nac_openood.paths import is_file
from nac_openood.sources.archives import check_archive
from nac_openood.sources.domainbed import allowed_content, plain_state

#: Prefixes of the keys of a wrapped network.
_PREFIXES = ("module.", "_orig_mod.")
#: Where training scripts keep the state dict among other things.
_PLACES = ("state_dict", "model_state_dict", "model_dict", "model", "net")
_SHOWN = 4
#: How the archives and the pickles that `torch.save` writes begin.
_STARTS, _SHOWN_BYTES = (b"PK", b"\x80"), 30


def load_checkpoint(net: nn.Module, path: Union[str, Path]) -> nn.Module:
    """Load a checkpoint into `net`, in evaluation mode; code in the file is not run.

    The file holds a state dict, alone or under `state_dict`, with or without the prefix `module.`
    that `DataParallel` adds, as PyTorch or safetensors write it; or it is a checkpoint of DomainBed
    with a linear classifier.

    Raises:
        NACError: the file is missing or damaged, or does not fit; the message names the keys.
    """
    saved = _read_state(Path(path))
    state = {_bare(key): value for key, value in saved.items()}
    if len(state) < len(saved):
        raise NACError(
            f"{path} holds weights twice, with and without a prefix such as {_PREFIXES[0]}: save "
            "one of them."
        )
    wanted = net.state_dict()
    state = dict(plain_state(state, wanted))
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    shapes = [
        f"{key} {list(state[key].shape)} instead of {list(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    odd = [key for key, value in state.items() if value.is_meta or value.layout != torch.strided]
    problems = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape": shapes,
        "without values, or sparse": odd,
    }
    found = [f"{what}: {some(keys, _SHOWN)}" for what, keys in problems.items() if keys]
    if found:
        raise NACError(
            f"{path} does not fit {type(net).__name__}: {'; '.join(found)}. Expected weights of "
            "this architecture with this number of classes: check `arch` and the data."
        )
    net.load_state_dict(state)
    return net.eval()


def _read_state(path: Path) -> Mapping[str, Tensor]:
    if not is_file(path):
        raise NACError(f"there is no checkpoint {path}.")
    content = _safetensors(path) if path.suffix == ".safetensors" else _pytorch(path)
    for key in _PLACES:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        found = (
            sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        )
        raise NACError(
            f"{path}: expected a state dict of tensors, or {{'state_dict': ...}}; got {found}."
        )
    return content


def _pytorch(path: Path) -> Any:
    check_archive(path)
    _check_start(path)
    try:
        with allowed_content():
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise NACError(
            f"{path} holds more than tensors and is not loaded, because it could run code. Save "
            "net.state_dict() instead; of a DomainBed checkpoint that you trust, its 'model_dict' "
            "alone."
        ) from error  # whose own message advises to run the code
    except Exception as error:  # on a broken file torch's reader may raise anything
        raise NACError(f"{path} is damaged or not a checkpoint ({error}).") from error


def _check_start(path: Path) -> None:
    """Refuse what is saved in the place of a checkpoint, e.g. a web page."""
    try:
        with path.open("rb") as file:
            start = file.read(_SHOWN_BYTES)
    except OSError as error:
        raise NACError(f"cannot read {path}: {why_unreadable(error)}.") from error
    if not start.startswith(_STARTS):
        told = f"it begins with {str(start)[1:]}" if start else "it is empty"
        raise NACError(
            f"{path} is damaged or not a checkpoint ({told}). Get the file itself, not a web page "
            "or a pointer of Git LFS."
        )


def _safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_encoding(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise NACError(f"{path} is damaged or not a checkpoint ({error}).") from error


def _bare(key: str) -> str:
    while key.startswith(_PREFIXES):
        key = key.split(".", 1)[1]
    return key
