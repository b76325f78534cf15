"""The house: which way imports point, what an import drags in, what a wheel holds."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "nac_openood"

#: A file may import from its own rank or below.
RANKS = [
    {
        "__about__",
        "errors",
        "core",
        "config",
        "presets",
        "ranking",
        "thresholds",
        "data",
        "choose",
        "store",
    },
    {"progress", "fitting"},
    {"detector"},
    {"search", "evaluation", "training", "distributed"},
    {"plugin", "bench"},
    {"compare", "demo"},
    {"report"},
    {"cli", "__main__"},
]


def room(path):
    return (
        path.relative_to(PACKAGE).parts[0].removesuffix(".py") if sys.version_info >= (3, 9) else ""
    )


def rank(name):
    for level, names in enumerate(RANKS):
        if name in names:
            return level
    raise AssertionError(f"{name} has no place in RANKS: give it one")


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "nac_openood":
            names += [f"nac_openood.{a.name}" for a in node.names]
        for name in names:
            parts = (name or "").split(".")
            if parts[0] == "nac_openood" and len(parts) > 1 and parts[1][0].islower():
                yield parts[1]


def violations(files):
    return [
        f"{path.name} imports {other}"
        for path in files
        for other in imported_rooms(path)
        if rank(other) > rank(room(path))
    ]


def test_imports_point_one_way():
    assert not violations(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def test_that_test_can_fail(tmp_path, monkeypatch):
    (tmp_path / "errors.py").write_text("from nac_openood import cli")
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    assert violations([tmp_path / "errors.py"]) == ["errors.py imports cli"]


def test_the_core_never_sees_a_network_or_a_bin_where_it_should_not():
    assert "probe" not in (PACKAGE / "core" / "coverage.py").read_text().split('"""', 2)[2]
    assert "bins" not in "".join((PACKAGE / "core" / "probe.py").read_text().split('"""')[2:])


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'openood':
            raise ImportError('openood was imported')
sys.meta_path.insert(0, Block())
"""


def test_the_package_imports_without_openood():
    assert run(BLOCKED + "import nac_openood").returncode == 0


def test_and_that_test_can_fail():
    assert "openood was imported" in run(BLOCKED + "import openood").stderr


def test_asking_for_the_postprocessor_without_openood_says_what_to_do():
    done = run(BLOCKED + "import nac_openood; nac_openood.NACPostprocessor")
    assert "NACPostprocessor needs OpenOOD" in done.stderr
    assert "nac-openood doctor" in done.stderr


def test_only_the_cli_prints():
    for path in PACKAGE.rglob("*.py"):
        if room(path) != "cli":
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not [c for c in calls if getattr(c.func, "id", "") == "print"], path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "src"
    import shutil

    ignore = shutil.ignore_patterns(
        ".venv", ".git", "*.egg-info", "build", ".*cache", "__pycache__", "artifacts"
    )
    shutil.copytree(ROOT, source, ignore=ignore)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


def test_the_wheel_works_on_its_own(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path)
    for config in (ROOT / "configs" / "postprocessors").glob("*.yml"):
        assert f"nac_openood/configs/postprocessors/{config.name}" in names
    for table in (PACKAGE / "bench" / "tables").glob("*.yml"):
        assert f"nac_openood/bench/tables/{table.name}" in names
    packaged = {n for n in names if n.endswith(".py")}
    assert packaged == {str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*.py")}
    assert "nac_openood/py.typed" in names
    for asset in (PACKAGE / "report" / "assets").iterdir():
        assert f"nac_openood/report/assets/{asset.name}" in names
    code = (
        "import nac_openood, nac_openood.presets as p; print(nac_openood.__file__);"
        "print(len(p.preset('cifar10', 'resnet').layers));"
        "from nac_openood.bench import published; print(len(published.tables()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    where = str(tmp_path / "nac_openood" / "__init__.py")
    assert done.stdout.split() == [where, "4", "18"], done.stderr
