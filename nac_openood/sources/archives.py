"""The archives in which PyTorch keeps weights and programs: intact, and not run as code."""

from __future__ import annotations

import logging
import os
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union

from nac_openood.errors import NACError

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
#: Parts of a program that run when it is loaded: compiled code, and pickled objects of any kind.
_CODE = ("data/aotinductor/", "data/constants/opaque_obj", "data/constants/custom_obj")


def refuse_code(path: Union[str, Path]) -> None:
    """Refuse a program of torch.export with parts that would run as code while it is loaded."""
    with zipfile.ZipFile(path) as archive:
        found = [name for name in archive.namelist() if any(part in name for part in _CODE)]
    if found:
        raise NACError(
            f"{path} holds compiled code or pickled objects ('{found[0]}') and is not loaded, "
            "because it could run any code. Export the network alone."
        )


def check_archive(path: Union[str, Path]) -> None:
    """Compare every part of an archive with its checksum, which PyTorch itself does not do.

    Files of other formats have no checksums and are not looked at.

    Raises:
        NACError: the archive is damaged.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except Exception as error:  # of a broken archive, zipfile raises many kinds
        raise NACError(f"{path} is damaged ({error}).") from error
    if bad is not None:
        raise NACError(
            f"{path} is damaged: '{bad}' does not match its checksum. Copy or save it again, with "
            "checksums (PyTorch's default)."
        )


@contextmanager
def no_code_run() -> Iterator[None]:
    """A block in which `torch.load` reads tensors only, whatever PyTorch asks it for.

    `torch.export.load` tries again with pickles, which can run code, where that fails; and it logs
    and warns about its own formats.
    """
    log = logging.getLogger("torch.export")
    before, quiet = os.environ.get(_FORCE), log.disabled
    os.environ[_FORCE], log.disabled = "1", True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = quiet
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before
