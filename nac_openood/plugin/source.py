"""Find OpenOOD and make it importable: installed, or a source tree named by OPENOOD_SRC."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Optional

from nac_openood.errors import NACError

#: What importing OpenOOD may raise; AttributeError: on NumPy 2, without `compat`.
IMPORT_ERRORS = (ImportError, AttributeError)


@contextmanager
def openood_ready(on_cpu: bool = False) -> Iterator[Path]:
    """Make OpenOOD importable and let it run on this machine until the block ends.

    Args:
        on_cpu: keep OpenOOD on the CPU even if there is a GPU.

    Yields:
        The folder that holds the package `openood`.

    Raises:
        NACError: OpenOOD or one of its dependencies is missing.
    """
    from nac_openood.plugin.compat import compat

    tree, named = find_openood(), os.environ.get("OPENOOD_SRC")
    if tree is None:
        known = "it is not installed"
        if named:
            known = f"OPENOOD_SRC={named} has no openood/__init__.py"
        raise NACError(
            f"Expected OpenOOD, but {known}. `nac-openood doctor` shows how to install it; "
            '`backend="pytorch-ood"` does not need it.'
        )
    if str(tree) not in sys.path:
        sys.path.append(str(tree))
    with compat(on_cpu):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings of OpenOOD's dependencies
                importlib.import_module("openood.evaluation_api")
        except ImportError as error:
            raise NACError(import_failure(error)) from error
        yield tree


def find_openood() -> Optional[Path]:
    """The folder of the package `openood`: where it is installed, else OPENOOD_SRC; or None."""
    spec, named = importlib.util.find_spec("openood"), os.environ.get("OPENOOD_SRC")
    # a folder without an __init__.py has a spec, too, but no origin
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parents[1]
    if named and (Path(named) / "openood" / "__init__.py").is_file():
        return Path(named).resolve()
    return None


def import_failure(error: Exception) -> str:
    """The error message if OpenOOD cannot be imported."""
    text = f"OpenOOD cannot be imported: {error}"
    if isinstance(error, AttributeError):  # of imgaug, which OpenOOD imports
        return f"{text} On NumPy 2 OpenOOD needs patches: call nac_openood.register(compat=True)."
    return f"{text}. `nac-openood doctor` shows what is missing and how to fix it."


@functools.cache
def openood_code(tree: Path) -> tuple[str, str]:
    """OpenOOD and its version, e.g. "OpenOOD 1.5", and a hash of its code."""
    setup, digest = tree / "setup.py", hashlib.sha256()
    text = setup.read_text(encoding="utf-8", errors="replace") if setup.is_file() else ""
    found = re.search(r"""\bversion=['"]([\w.+-]+)['"]""", text)
    for path in sorted((tree / "openood").rglob("*.py")):
        digest.update(path.relative_to(tree).as_posix().encode() + path.read_bytes())
    version = found[1] if found else "of unknown version"
    return f"OpenOOD {version}", digest.hexdigest()[:16]


def has_openood() -> bool:
    """Whether OpenOOD and everything it imports are installed."""
    try:
        with openood_ready():
            return True
    except NACError:
        return False
