"""What the package needs, and what it is shipped as: bounds, wheel, types."""

import ast
import configparser
import hashlib
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from script_module import script_module

ROOT = Path(__file__).parents[1]
#: What is imported, where pip knows it by another name.
IMPORTED = {"pyyaml": "yaml", "scikit-learn": "sklearn", "pillow": "PIL"}


def requirements(text):
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {r.name: r for r in (Requirement(line) for line in lines if line)}


@pytest.fixture(scope="module")
def runtime():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return requirements(parser["options"]["install_requires"])


# -- bounds --------------------------------------------------------------------------------


def test_bounds(runtime):
    """The oldest versions are pinned, the next major version is refused, what is installed fits."""
    oldest = requirements((ROOT / "constraints" / "oldest.txt").read_text())
    assert oldest.keys() == runtime.keys()
    for name, requirement in runtime.items():
        by_operator = {s.operator: s.version for s in requirement.specifier}
        (pinned,) = oldest[name].specifier
        assert pinned.operator == "==" and Version(by_operator[">="]) == Version(pinned.version)
        upper = by_operator.get("<")
        # pillow's major version counts its releases
        assert upper is None if name == "pillow" else Version(upper).release[1:] in ((), (0,)), name
        installed = Version(metadata.version(name)).public
        assert requirement.specifier.contains(installed, prereleases=True), name


def test_what_every_user_imports_is_declared(runtime):
    """At the top of a module, that is, without an extra."""
    found = set()
    for path in (ROOT / "nac_openood").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).split(".")[0])
    known = {IMPORTED.get(name, name) for name in runtime}
    extra = {"fastapi", "fastapi_offline", "h11", "starlette", "pydantic", "uvicorn", "lightning"}
    extra |= {"matplotlib", "openood", "prometheus_client", "pyarrow", "pytorch_ood", "ray"}
    extra |= {"python_multipart"}
    own = {"nac_openood", *sys.stdlib_module_names}
    assert not found - known - own - extra


def test_a_detector_imports_little(tmp_path):
    code = (
        "import sys, torch\n"
        "from nac_openood import NACDetector\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))\n"
        "x = torch.randn(200, 4)\n"
        "det = NACDetector(net.eval(), ['1'], rule='nac_plus').fit([x]).calibrate([x + 1])\n"
        "det.p_value(x), det.explain(x), det.save('nac.safetensors'), det.load('nac.safetensors', net)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    found = set(done.stdout.split())
    assert "safetensors" in found, done.stderr
    heavy = {"torchvision", "PIL", "scipy", "sklearn", "jinja2", "pandas", "matplotlib"}
    assert not found & heavy


def test_what_is_audited_is_what_runs():
    packages = script_module("runtime_packages").runtime_packages()
    assert packages.keys() >= {"torch", "numpy", "markupsafe", "joblib", "sympy"}
    assert not packages.keys() & {"nac-openood", "pytest", "ruff", "mkdocs", "matplotlib"}
    assert all(Version(v).local is None for v in packages.values())


# -- wheel ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist of the last commit, which the script builds twice to compare them."""
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True).returncode:
        pytest.skip("not in a git repository: there is no commit to build")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, ROOT / "scripts" / "build_wheel.py", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode == 0, done.stderr
    sums = {Path(line.split()[1]).name: line.split()[0] for line in done.stdout.splitlines()}
    assert sorted(Path(name).suffix for name in sums) == [".gz", ".whl"]
    for name, digest in sums.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    return out


def test_the_wheel_works_on_its_own(built, tmp_path):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
    listed = ["git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD"]
    committed = subprocess.check_output(listed, text=True).splitlines()
    expected = {name for name in committed if name.startswith("nac_openood/")}
    expected |= {f"nac_openood/{n}" for n in committed if n.startswith("configs/postprocessors/")}
    assert {name for name in names if not name.startswith("nac_openood-")} == expected
    code = (
        "import nac_openood, nac_openood.detector.config as p; print(nac_openood.__file__);"
        "print(len(p.preset('cifar10', 'resnet').layers));"
        "from nac_openood.benchmark.paper import published; print(len(published.tables()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    where = str(tmp_path / "nac_openood" / "__init__.py")
    assert done.stdout.split() == [where, "4", "26"], done.stderr


def test_nothing_in_them_tells_who_built_them_or_when(built):
    epoch = int(subprocess.check_output(["git", "-C", ROOT, "log", "-1", "--format=%ct"]))
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        members = sdist.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", epoch)}
    assert {m.mode for m in members} <= {0o644, 0o755}
    assert any(m.name.endswith("configs/postprocessors/nac.yml") for m in members)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        assert len({entry.date_time for entry in wheel.infolist()}) == 1
        assert {entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()} <= {0o644, 0o664}


def test_the_readme_example_needs_only_what_the_wheel_declares(built, tmp_path):
    """An environment with the packages of `install_requires`, what they need, and the wheel.

    Links to the packages of this environment stand for downloading them.
    """
    venv.create(tmp_path / "empty", with_pip=False, symlinks=True)
    python, site = tmp_path / "empty/bin/python", next(tmp_path.glob("empty/lib/*/site-packages"))
    for name in script_module("runtime_packages").runtime_packages():
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", site, next(built.glob("*.whl"))], check=True)
    example = [python, "-I", ROOT / "tests" / "readme_example.py"]
    done = subprocess.run(example, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == str(site / "nac_openood" / "__init__.py"), done.stderr


# -- types ---------------------------------------------------------------------------------

USER = """\
from typing import Optional
from nac_openood import NACDetector, NACError

def threshold(detector: NACDetector) -> Optional[float]:
    try:
        return detector.fit([], n_samples=10).calibrate([], tpr=0.9).threshold_
    except NACError:
        return None

def wrong(detector: NACDetector) -> None:
    detector.calibrate([], tpr="0.9")
"""


def test_users_get_types(built, tmp_path):
    """From the wheel and nothing else; one argument of the user's file has another type."""
    pytest.importorskip("mypy")
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python, site = tmp_path / "venv/bin/python", next(tmp_path.glob("venv/lib/*/site-packages"))
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (tmp_path / "user.py").write_text(USER)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "user.py"],
        capture_output=True, text=True, cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    message, summary = done.stdout.splitlines()
    assert 'incompatible type "str"; expected "float"' in message and "Found 1 error" in summary
