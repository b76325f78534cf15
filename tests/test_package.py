"""The sub-packages: which way imports point, and what an import brings in."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "nac_openood"

#: A file imports from its own subpackage and from subpackages on lower levels, never from a neighbour.
LEVELS = [
    {"__about__", "errors"},
    {"distributed", "records"},
    {"files", "tables"},
    {"tensor_files"},
    {"core"},
    {"network"},
    {"detector"},
    {"search", "sources", "adapters"},
    {"plugin", "benchmark", "evaluation", "training", "serving", "ray_data"},
    {"analysis"},
    {"report"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
#: What may be imported inside a function and not at the top of a file.
LAZY = {("benchmark", "plugin")}
#: What a subpackage may import from outside; others may import whatever is a dependency.
LIBRARIES = {"core": {"torch", "numpy"}, "errors": set(), "__about__": set()}


def subpackage(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def level(name):
    return next(number for number, names in enumerate(LEVELS) if name in names)


def imports(path):
    """(module name, whether at the top of the file) of every import outside TYPE_CHECKING."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    at_top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module]
            if node.module == "nac_openood":
                names = [f"nac_openood.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) in at_top


def violations(files):
    for path in files:
        here = subpackage(path)
        for name, at_top in imports(path):
            parts = name.split(".")
            if parts[0] != "nac_openood":
                allowed = LIBRARIES.get(here)
                if allowed is not None and parts[0] not in allowed | sys.stdlib_module_names:
                    yield f"{here}: {path.name} imports {parts[0]}"
                continue
            other = parts[1] if len(parts) > 1 else here
            fine = other == here or level(other) < level(here) or other[0].isupper()
            if not fine and (at_top or (here, other) not in LAZY):
                yield f"{here}: {path.name} imports {other}"


def modules():
    return [p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py"]


def test_every_subpackage_has_a_level_and_every_level_a_subpackage():
    subpackages = {subpackage(p) for p in modules()}
    assert subpackages == set().union(*LEVELS)


def test_imports_point_one_way():
    assert not list(violations(modules()))


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
    assert "openood was imported" in run(BLOCKED + "import openood").stderr
    assert run(BLOCKED + "import nac_openood").returncode == 0
    done = run(BLOCKED + "import nac_openood; nac_openood.NACPostprocessor")
    assert "NACPostprocessor needs OpenOOD" in done.stderr
    assert "nac-openood doctor" in done.stderr


#: Names that several modules may define.
SHARED_NAMES = {"add": "each command of `cli` has one, which the parser calls"}


def public_names(body):
    """The classes, functions and constants that statements at the top of a module define."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = [name for target in targets for name in ast.walk(target)]
            yield from (name.id for name in found if isinstance(name, ast.Name))
        elif isinstance(node, (ast.If, ast.Try)):
            yield from public_names([*node.body, *node.orelse])


def test_a_name_has_one_meaning():
    homes = {}
    for path in modules():
        for name in set(public_names(ast.parse(path.read_text()).body)):
            if not name.startswith("_") and name not in SHARED_NAMES:
                homes.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
