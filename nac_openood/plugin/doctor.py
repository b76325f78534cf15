"""Check what NAC inside OpenOOD needs: what is installed, what is missing, how to fix it.

Packages are looked up, not imported: a broken installation must not break its own diagnosis.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple

from nac_openood.files import PathLike
from nac_openood.plugin.source import find_openood

OK, MISSING, WARNING = "ok", "missing", "warning"
_PYTHON = Path(sys.executable).name or "python"
_PIP = f"{_PYTHON} -m pip install"
_COMPAT = "nothing to install: `nac-openood run` and register(compat=True) take care of it"
#: Without the current folder: a `torch.py` there must not be imported.
_IMPORT = "import sys; sys.path[:] = filter(None, sys.path); "
_IMPORT += "from nac_openood.plugin.source import openood_ready; openood_ready().__enter__()"

#: What `import openood.evaluation_api` needs beside our own requirements, much of it undeclared:
#: module -> (what pip installs, as in the extra `openood` of setup.cfg; what in OpenOOD needs it).
DEPENDENCIES = {
    # OpenOOD declares faiss-gpu, which has no wheel for a current Python (OpenOOD issue 254)
    "faiss": ("faiss-cpu", "KNN and others"),
    "cv2": ("opencv-python-headless", "preprocessors"),
    "imgaug": ("imgaug==0.4.0", "preprocessors"),
    "diffdist": ("diffdist", "trainers"),
    "gdown": ("gdown", "downloads"),
    "statsmodels": ("statsmodels", "AdaSCALE"),
    "foolbox": ("foolbox", "attacks"),
    "timm": ("timm", "attacks"),
    "pandas": ("pandas", "tables of results"),
    "scipy": ("scipy", "OpenMax, KLM, VIM and others"),
    "libmr": ("libmr", "OpenMax"),
}
# cannot be in the extra: its build needs packages that it does not declare
_LIBMR = f"{_PIP} Cython numpy 'setuptools>=70.1' && {_PIP} --no-build-isolation libmr"


class Check(NamedTuple):
    """One line of the diagnosis.

    Args:
        name: what was checked.
        status: `ok`, `missing` or `warning`.
        detail: what was found.
        fix: a command, or what else to do; empty if the status is `ok`.
    """

    name: str
    status: str
    detail: str
    fix: str = ""


def examine(
    *, data_root: PathLike = "./data", results_root: PathLike = "./results", deep: bool = False
) -> list[Check]:
    """Check everything that NAC inside OpenOOD needs.

    Args:
        data_root: the folder with OpenOOD's benchmarks.
        results_root: the folder with checkpoints, as `<run>/s<seed>/best.ckpt`.
        deep: also import OpenOOD's evaluation API in another process; takes some seconds.
    """
    found = [*examine_platform(), *examine_packages()]
    if deep:
        found.append(examine_import())
    return [*found, *examine_data(data_root), examine_checkpoints(results_root)]


def examine_platform() -> Iterator[Check]:
    """Python, NumPy, torch and the GPU."""
    yield Check("python", OK, platform.python_version())
    version = metadata.version("numpy")
    complete = tuple(int(part) for part in version.split(".")[:2]) < (1, 24)
    lacking = f"{version} lacks names that OpenOOD uses"
    yield _check("numpy", complete and version, lacking, _COMPAT, WARNING)
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that does not fit
        detail = f"cannot be imported: {error}"
        yield Check("torch", MISSING, detail, f"{_PIP} torch torchvision")
        return
    yield Check("torch", OK, str(torch.__version__))
    names = ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    yield _check("GPU", names, "none, but OpenOOD calls .cuda() anyway", _COMPAT, WARNING)


def examine_packages() -> Iterator[Check]:
    """OpenOOD, what it imports, and pytorch-ood, which has baselines where OpenOOD is missing."""
    tree, named = find_openood(), os.environ.get("OPENOOD_SRC")
    detail = f"no openood/__init__.py in OPENOOD_SRC={named}" if named else "not installed"
    # without its dependencies: it asks for a faiss-gpu that pip cannot find
    clone = "git clone https://github.com/Jingkang50/OpenOOD"
    yield _check("OpenOOD", tree, detail, f"{clone} && {_PIP} --no-deps -e ./OpenOOD")
    for module, (requirement, use) in DEPENDENCIES.items():
        version = _version(requirement.split("==")[0]) or "installed by another package"
        found = importlib.util.find_spec(module) is not None and version
        fix = _LIBMR if module == "libmr" else f"{_PIP} 'nac-openood[openood]'"
        yield _check(module, found, f"not installed; needed for {use}", fix)
    detail = "not installed; it provides baselines where OpenOOD is missing"
    fix = f"{_PIP} 'nac-openood[baselines]'"
    yield _check("pytorch-ood", _version("pytorch-ood"), detail, fix, WARNING)


def examine_import() -> Check:
    """Import OpenOOD's evaluation API with compat in another process."""
    command = [sys.executable, "-c", _IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    fix = "install what is missing; if nothing is, report this line as a bug"
    works = not done.returncode and "works with compat"
    return _check("import of OpenOOD", works, lines[-1], fix)


def examine_data(data_root: PathLike) -> Iterator[Check]:
    """The data folders. OpenOOD downloads a missing one, many gigabytes, without asking."""
    for name in ("benchmark_imglist", "images_classic", "images_largescale"):
        folder = Path(data_root) / name
        inside = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        # ImageNet is large, and the CIFAR benchmarks do not need it
        large = name == "images_largescale"
        data, status = ("imagenet-1k", WARNING) if large else ("cifar-10", MISSING)
        fix = _download(f"datasets --datasets {data} --save_dir {shlex.quote(str(data_root))}")
        found = inside and f"{folder}: {', '.join(inside)}"
        detail = f"{folder} is empty or does not exist"
        yield _check(f"data: {name}", found, detail, fix, status)


def examine_checkpoints(results_root: PathLike) -> Check:
    """Checkpoints in the layout that OpenOOD's evaluation script reads."""
    runs = sorted({path.parent.parent.name for path in Path(results_root).glob("*/s*/best.ckpt")})
    # the script wants a folder for data as well, though it does not use it here
    folders = f"./data {shlex.quote(str(results_root))}"
    fix = _download(f"checkpoints --checkpoints cifar10_res18_v1.5 --save_dir {folders}")
    found = runs and f"{results_root}: {', '.join(runs)}"
    return _check("checkpoints", found, f"no */s*/best.ckpt in {results_root}", fix)


def _check(name: str, found: Any, problem: str, fix: str, status: str = MISSING) -> Check:
    """`ok` with what was found; if that is empty, `status`, the problem and how to fix it."""
    return Check(name, OK, str(found)) if found else Check(name, status, problem, fix)


def checks_text(checks: Iterable[Check]) -> str:
    """The checks as a table with aligned columns, and below it each fix once."""
    checks = list(checks)
    width = max((len(check.name) for check in checks), default=0)
    lines = [f"{check.status:<7}  {check.name:<{width}}  {check.detail}" for check in checks]
    fixes = dict.fromkeys(check.fix for check in checks if check.fix)
    lines += ["", "How to fix it:"] if fixes else []
    for fix in fixes:
        names = [check.name for check in checks if check.fix == fix]
        lines += [f"  {', '.join(names)}:", f"      {fix}"]
    return "\n".join(lines)


def _download(contents: str) -> str:
    """A call of OpenOOD's own download script, which is in its source tree."""
    tree = find_openood() or Path("OpenOOD")
    script = tree / "scripts" / "download" / "download.py"
    return f"{_PYTHON} {shlex.quote(str(script))} --contents {contents}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
