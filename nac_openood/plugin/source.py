"""Where OpenOOD is: importable, or a source tree named by OPENOOD_SRC."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from nac_openood.errors import NACError
from nac_openood.plugin.compat import compat


@contextmanager
def openood_ready(on_cpu: bool = False) -> Iterator[Path]:
    """OpenOOD can be imported and runs on this machine until the block ends; yields its tree.

    Args:
        on_cpu: keep it there also where a GPU is.

    Raises:
        NACError: it is not here, or one of its dependencies is not.
    """
    _find()
    with compat(on_cpu):
        try:
            module = importlib.import_module("openood.evaluation_api")
        except ImportError as error:
            raise NACError(
                f"Expected an OpenOOD that can be imported, but: {error}. `nac-openood doctor` "
                "tells what is missing and the command that mends it."
            ) from error
        yield Path(str(module.__file__)).parents[2]


@functools.cache
def code_of(tree: Path) -> str:
    """A hash of OpenOOD's code that scores depend on: another checkout, another hash."""
    digest = hashlib.sha256()
    for path in sorted((tree / "openood").rglob("*.py")):
        digest.update(path.relative_to(tree).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def has_openood() -> bool:
    """Whether OpenOOD is here, with everything that it imports."""
    try:
        with openood_ready():
            return True
    except NACError:
        return False


def _find() -> None:
    spec = importlib.util.find_spec("openood")
    if spec is not None and spec.origin is not None:  # any folder of that name has a spec
        return
    named = os.environ.get("OPENOOD_SRC")
    if not named or not (Path(named) / "openood" / "__init__.py").is_file():
        told = f"OPENOOD_SRC={named} has no openood/__init__.py" if named else "it is not installed"
        raise NACError(
            f"expected OpenOOD, but {told}. `nac-openood doctor` tells how to get it; "
            "--backend pytorch-ood does without."
        )
    sys.path.append(named)
    importlib.invalidate_caches()
