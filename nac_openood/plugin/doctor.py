"""What is installed for NAC inside OpenOOD, what is missing, and the command that mends it.

Looks without importing: a broken installation must not keep its own diagnosis from running.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Iterable, Mapping, Optional, Union

import torch

from nac_openood.plugin.compat import PATCHES, applied_patches

OK, MISSING, WARNING = "ok", "missing", "warning"
_PYTHON = Path(sys.executable).name or "python"
_PIP = f"{_PYTHON} -m pip install"
_CLONE = "git clone https://github.com/Jingkang50/OpenOOD"

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    Attributes:
        name: what was looked at.
        status: `ok`, `missing` or `warning`.
        detail: what was found.
        fix: the command that mends it, or the next thing to do; empty when all is well.
    """

    name: str
    status: str
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Dependency:
    """A package that OpenOOD imports.

    Attributes:
        module: the name it is imported by.
        packages: the names it may have on PyPI; the first is the one to install.
        use: what of OpenOOD fails without it.
        pin: the version that works, as pip writes it.
        flags: what pip needs beside the name.
        first: packages to install before it.
    """

    module: str
    packages: tuple[str, ...]
    use: str
    pin: str = ""
    flags: str = ""
    first: str = ""

    @property
    def command(self) -> str:
        """What to type to install it."""
        install = " ".join(part for part in (_PIP, self.flags, self.packages[0] + self.pin) if part)
        return f"{_PIP} {self.first} && {install}" if self.first else install


_EVALUATION = "import openood.evaluation_api"
# faiss-gpu, which OpenOOD declares, has no wheel for a current Python (OpenOOD issue 254).
DEPENDENCIES: tuple[Dependency, ...] = (
    Dependency("faiss", ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12"), "KNN, CIDER and others"),
    Dependency("cv2", ("opencv-python-headless", "opencv-python"), "preprocessors"),
    Dependency("imgaug", ("imgaug",), "preprocessors", pin="==0.4.0"),
    Dependency(
        "libmr",
        ("libmr",),
        "OpenMax",
        flags="--no-build-isolation",
        first="Cython numpy setuptools",
    ),
    Dependency("diffdist", ("diffdist",), "trainers"),
    Dependency("gdown", ("gdown",), "download of data"),
    Dependency("statsmodels", ("statsmodels",), "AdaSCALE"),
    Dependency("foolbox", ("foolbox",), "attacks"),
    Dependency("git", ("GitPython",), "foolbox"),
    Dependency("timm", ("timm",), "attacks"),
    Dependency("pandas", ("pandas",), "tables of results"),
    Dependency("scipy", ("scipy",), "OpenMax, KLM, VIM and others"),
    Dependency("sklearn", ("scikit-learn",), "metrics"),
    Dependency("matplotlib", ("matplotlib",), "OpenOOD's declared requirements"),
    Dependency("json5", ("json5",), "OpenOOD's declared requirements"),
    Dependency("yaml", ("PyYAML",), "configs"),
    Dependency("tqdm", ("tqdm",), "progress bars"),
    Dependency("PIL", ("pillow",), "images"),
)


def examine(
    *, data_root: PathLike = "./data", results_root: PathLike = "./results", deep: bool = False
) -> list[Finding]:
    """Look at everything that NAC inside OpenOOD needs.

    Args:
        data_root: where OpenOOD's benchmarks lie.
        results_root: where checkpoints lie, as `<run>/s<seed>/best.ckpt`.
        deep: also import OpenOOD's evaluation API in a process of its own, some seconds.
    """
    found = [*examine_platform(), examine_openood()]
    found += [examine_dependency(dependency) for dependency in DEPENDENCIES]
    if deep:
        found.append(examine_import())
    return [*found, *examine_data(data_root), examine_checkpoints(results_root)]


def examine_platform() -> list[Finding]:
    """Python, torch, CUDA, torchvision and NumPy."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        cuda = Finding("cuda", OK, ", ".join(names))
    else:
        cuda = Finding(
            "cuda",
            WARNING,
            "no GPU: OpenOOD calls .cuda() all the same",
            "nothing to install: `nac-openood run` and register(compat=True) run it on the CPU",
        )
    return [
        Finding("python", OK, platform.python_version()),
        Finding("torch", OK, str(torch.__version__)),
        cuda,
        _package("torchvision", ("torchvision",), f"{_PIP} torchvision"),
        examine_numpy(),
    ]


def examine_numpy() -> Finding:
    """NumPy, and whether OpenOOD can live with it as it is."""
    version = metadata.version("numpy")
    patches = [patch for patch in PATCHES if patch.name.startswith("numpy")]
    if not any(patch.name in applied_patches() or patch.needed() for patch in patches):
        return Finding("numpy", OK, version)
    return Finding(
        "numpy",
        WARNING,
        f"{version}: OpenOOD was written for NumPy 1",
        "nothing to install: `nac-openood run` and register(compat=True) make up for it",
    )


def examine_openood(environ: Optional[Mapping[str, str]] = None) -> Finding:
    """OpenOOD itself: importable, or a source tree named by OPENOOD_SRC."""
    environ = os.environ if environ is None else environ
    spec = importlib.util.find_spec("openood")
    if spec is not None and spec.origin is not None:
        return Finding("openood", OK, str(Path(spec.origin).parent))
    named = environ.get("OPENOOD_SRC")
    if not named:
        # Without its dependencies: it asks for a faiss-gpu that pip cannot find.
        fix = f"{_CLONE} && {_PIP} --no-deps -e ./OpenOOD"
        return Finding("openood", MISSING, "not importable, and OPENOOD_SRC is not set", fix)
    if (Path(named) / "openood" / "__init__.py").is_file():
        return Finding("openood", OK, f"{Path(named) / 'openood'} (OPENOOD_SRC)")
    detail = f"OPENOOD_SRC={named} has no openood/__init__.py"
    return Finding("openood", MISSING, detail, f"{_CLONE} {shlex.quote(named)}")


def examine_dependency(dependency: Dependency) -> Finding:
    """One package that OpenOOD imports."""
    found = _package(dependency.module, dependency.packages, dependency.command)
    if found.status == MISSING:
        return Finding(found.name, MISSING, f"needed for {dependency.use}", found.fix)
    return found


def examine_import(timeout: float = 300.0) -> Finding:
    """Import OpenOOD's evaluation API with `compat` in another process, and tell what it said."""
    code = f"from nac_openood.plugin.compat import apply_compat; apply_compat(); {_EVALUATION}"
    paths = [os.environ.get("OPENOOD_SRC", ""), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(_EVALUATION, WARNING, f"took more than {timeout:.0f} s", "try it by hand")
    if done.returncode == 0:
        return Finding(_EVALUATION, OK, "works with compat")
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    fix = "install what is missing above; else report this line"
    return Finding(_EVALUATION, MISSING, lines[-1], fix)


def examine_data(data_root: PathLike) -> list[Finding]:
    """The folders OpenOOD reads; it downloads what is missing, many gigabytes, without asking."""
    root = Path(data_root)
    found = []
    for name in ("benchmark_imglist", "images_classic", "images_largescale"):
        folder = root / name
        inside = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        if inside:
            found.append(Finding(f"data: {name}", OK, f"{folder}: {', '.join(inside)}"))
            continue
        detail = f"{folder} {'is empty' if folder.is_dir() else 'does not exist'}"
        # ImageNet is large and the CIFAR benchmarks do without it.
        large = name == "images_largescale"
        what = f"--contents datasets --datasets {'imagenet-1k' if large else 'cifar-10'}"
        fix = _download(f"{what} --save_dir {shlex.quote(str(data_root))}")
        found.append(Finding(f"data: {name}", WARNING if large else MISSING, detail, fix))
    return found


def examine_checkpoints(results_root: PathLike) -> Finding:
    """The checkpoints that `scripts/eval_ood.py --root` could be given."""
    runs = sorted({path.parent.parent.name for path in Path(results_root).glob("*/s*/best.ckpt")})
    if runs:
        return Finding("checkpoints", OK, f"{results_root}: {', '.join(runs)}")
    detail = f"no */s*/best.ckpt in {results_root}"
    what = "--contents checkpoints --checkpoints cifar10_res18_v1.5"
    # The first of --save_dir is for data and not used here, but must be given.
    fix = _download(f"{what} --save_dir ./data {shlex.quote(str(results_root))}")
    return Finding("checkpoints", MISSING, detail, fix)


def install_command(findings: Iterable[Finding]) -> str:
    """One command for all of OpenOOD's dependencies that are missing; empty if none is."""
    missing = {finding.name for finding in findings if finding.status == MISSING}
    wanted = [dependency for dependency in DEPENDENCIES if dependency.module in missing]
    plain = [f"{d.packages[0]}{d.pin}" for d in wanted if not d.first]
    commands = [f"{_PIP} {' '.join(plain)}"] if plain else []
    return " && ".join([*commands, *(d.command for d in wanted if d.first)])


def render(findings: Iterable[Finding]) -> str:
    """The findings as a table with aligned columns, each fix below the line it belongs to."""
    findings = list(findings)
    if not findings:
        return ""
    name = max(len(finding.name) for finding in findings)
    status = max(len(finding.status) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<{status}}  {finding.name:<{name}}  {finding.detail}")
        if finding.fix:
            lines.append(f"{'':<{status}}  {'':<{name}}  -> {finding.fix}")
    return "\n".join(line.rstrip() for line in lines)


def _download(arguments: str) -> str:
    """A call of OpenOOD's own download script, which lies in its source tree."""
    spec = importlib.util.find_spec("openood")
    trees = [Path(spec.origin).parent.parent] if spec is not None and spec.origin else []
    trees += [Path(os.environ["OPENOOD_SRC"])] if os.environ.get("OPENOOD_SRC") else []
    scripts = [tree / "scripts" / "download" / "download.py" for tree in (*trees, Path("OpenOOD"))]
    script = next((script for script in scripts if script.is_file()), scripts[-1])
    return f"{_PYTHON} {shlex.quote(str(script))} {arguments}"


def _package(module: str, packages: Iterable[str], command: str) -> Finding:
    """Whether `module` can be found, and the version of the package that brought it."""
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a module without a spec, such as a stub in sys.modules
        found = module in sys.modules
    if not found:
        return Finding(module, MISSING, "not installed", command)
    for package in packages:
        try:
            return Finding(module, OK, f"{metadata.version(package)} ({package})")
        except metadata.PackageNotFoundError:
            continue
    return Finding(module, OK, "installed, version unknown")
