"""Measure how large the package is, and how many of its files one call passes through.

    python scripts/size.py             print both tables
    python scripts/size.py --save      write them into CONTRIBUTING.md, too

Code lines are lines without blanks, comments and docstrings. A call passes through a file if it
calls a function of it; importing does not count. `tests/test_size.py` fails where a figure is above
its limit in `LIMITS`. A change that needs more adds what it needs to `FEATURES`.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import io
import os
import re
import runpy
import shutil
import statistics
import sys
import tempfile
import threading
import tokenize
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, TESTS = ROOT / "nac_openood", ROOT / "tests"
OLD_FILES = TESTS / "data" / "v0.1"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

#: What later features have added: lines of code of the package, and of the tests.
FEATURES: dict[str, tuple[int, int]] = {
    "guarantees: conformal p-values, selections, drift, monitors": (670, 395),
    "changes and doubtful inputs of networks are noticed": (370, 405),
    "later methods, and the leaderboard": (450, 240),
    "errors of the service and the command line that tell more": (160, 0),
    "one set of defaults": (20, 25),
    "stored arrays": (85, 115),
    "advice that compares with later methods": (60, 0),
    "what results print and notebooks show": (220, 180),
    "confident mistakes in reports": (195, 0),
    "paired tests, LaTeX tables and loggers of comparisons": (280, 15),
    "what a fit finds of synthetic OOD images": (110, 0),
    "NAC+ 2: the alignment, and weights": (170, 135),
    "samples that count twice, and what fresh attacks found": (210, 230),
    "releases, the pull request for OpenOOD, the code of the FAQ": (0, 295),
    "mistakes of new users": (40, 85),
}
#: The most that each figure may be: what was reached without these features, and the features.
LIMITS: dict[str, int] = {
    "code lines": 15_860 + sum(code for code, _ in FEATURES.values()),
    "files": 145,
    "record types": 115,
    "modules below 120 lines with one importer": 14,
    "code lines of tests": 15_550 + sum(tests for _, tests in FEATURES.values()),
}
#: How many files each call may pass through. The advice after a search compares with methods that
#: read the head: three files more.
FILE_LIMITS: dict[str, int] = {
    "nac-openood score": 35,
    "nac-openood compare": 69,
    "plugin: setup with search": 29,
    "plugin: inference": 15,
    "NACDetector.fit": 17,
    "NACDetector.score": 13,
}


class Module:
    """One file: its code lines, the modules it imports, and the record types it defines."""

    def __init__(self, path: Path, package: Path) -> None:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        parts = path.relative_to(package.parent).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.room = parts[1] if len(parts) > 2 else "."
        nodes = list(ast.walk(tree))
        self.lines = len(_code(text) - _docstrings(nodes))
        self.raw_lines = len(text.splitlines())
        self.records = sum(isinstance(node, ast.ClassDef) and _is_record(node) for node in nodes)
        self.excepts = sum(isinstance(node, ast.ExceptHandler) for node in nodes)
        found = [n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
        self.import_lines = sum((n.end_lineno or n.lineno) - n.lineno + 1 for n in found)
        self.imports = set(_imported(found)) - {self.name}


def _code(text: str) -> set[int]:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines


def _docstrings(nodes: list[ast.AST]) -> set[int]:
    lines: set[int] = set()
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(node, _DOCUMENTED) and body and ast.get_docstring(node) is not None:
            lines |= set(range(body[0].lineno, (body[0].end_lineno or body[0].lineno) + 1))
    return lines


def _is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(mark) for mark in (*node.decorator_list, *node.bases)]
    return any("dataclass" in mark or mark.endswith(("NamedTuple", "TypedDict")) for mark in marks)


def _imported(nodes: list[Any]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(package: Path) -> list[Module]:
    """All modules below a folder, and the stub with the public names."""
    paths = [*package.rglob("*.py"), *package.rglob("*.pyi")]
    return [Module(path, package) for path in sorted(paths)]


def sizes(package: Path = PACKAGE, tests: Path = TESTS) -> dict[str, float]:
    """The figures of the table, by name."""
    found = modules(package)
    lines = sum(module.lines for module in found)
    importers = collections.Counter(name for module in found for name in module.imports)
    single = [
        module.name
        for module in found
        if importers[module.name] == 1 and module.lines < 120 and "__main__" not in module.name
    ]
    return {
        "code lines": lines,
        "files": len(found),
        "median lines of a file": statistics.median(module.raw_lines for module in found),
        "record types": sum(module.records for module in found),
        "modules below 120 lines with one importer": len(single),
        "lines that are imports, percent": 100 * sum(m.import_lines for m in found) / lines,
        "`except` per 1,000 lines": 1000 * sum(module.excepts for module in found) / lines,
        "code lines of tests": sum(module.lines for module in modules(tests)),
    }


def rooms(package: Path = PACKAGE) -> dict[str, tuple[int, int]]:
    """Code lines and files of each sub-package."""
    lines: collections.Counter[str] = collections.Counter()
    files: collections.Counter[str] = collections.Counter()
    for module in modules(package):
        lines[module.room] += module.lines
        files[module.room] += 1
    return {room: (count, files[room]) for room, count in lines.most_common()}


class Trace:
    """The package's files and functions that are called inside the block, also in threads."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self._prefix = str(PACKAGE) + os.sep

    def __enter__(self) -> Trace:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def _event(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        # class bodies and modules are run by imports
        if event == "call" and code.co_filename.startswith(self._prefix) and code.co_flags & 2:
            self.functions.add((code.co_filename, code.co_qualname if _QUALIFIED else code.co_name))

    @property
    def files(self) -> list[str]:
        """The Python files, relative to the package; templates are compiled to functions, too."""
        found = {file[len(self._prefix) :] for file, _ in self.functions}
        return sorted(name for name in found if name.endswith(".py"))


_QUALIFIED = sys.version_info >= (3, 11)


def crossings() -> dict[str, Trace]:
    """What each call passes through, by its name; the plugin's calls only with OpenOOD."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _write_images(Path("birds"))
            for name in ("net.py", "net.pt", "transform.yml", "plus.nac"):
                shutil.copy(OLD_FILES / name, name)
            return {**_commands(), **_python(), **_plugin()}
        finally:
            os.chdir(before)


def _write_images(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 12), ("test", 6), ("stripes", 6)):
        for name in ("bluejay", "cardinal", "goldfinch", "parrot"):
            target = folder / part / name
            target.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (36, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(target / f"{number}.png")


def _traced(work: Callable[[], Any]) -> Trace:
    silent = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(silent))
        stack.enter_context(contextlib.redirect_stderr(silent))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # about the few images
        trace = stack.enter_context(Trace())
        work()
    return trace


def _commands() -> dict[str, Trace]:
    def command(*words: str) -> None:
        from nac_openood.cli import main

        if main(list(words)) != 0:
            raise RuntimeError(f"nac-openood {' '.join(words)} failed")

    network = ["--arch", "net.py:make", "--checkpoint", "net.pt"]
    data = ["--transform", "transform.yml", "--train", "birds/train", "--val", "birds/val"]
    sets = ["--test", "birds/test", "--far", "stripes=birds/stripes"]
    methods = ["--methods", "nac", "nac_plus", "msp", "--backend", "pytorch-ood", "--no-search"]
    score = ["score", "--detector", "plus.nac", *network, "birds/test"]
    return {
        "nac-openood score": _traced(lambda: command(*score)),
        "nac-openood compare": _traced(
            lambda: command("compare", *network, *data, *sets, *methods, "--out", "results")
        ),
    }


def _python() -> dict[str, Trace]:
    import torch

    from nac_openood import NACDetector

    net = runpy.run_path("net.py")["make"](4).eval()
    images = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loader = [(images, torch.arange(32) % 4)]
    detector = NACDetector(net, ["pool", "middle"], rule="nac")
    return {
        "NACDetector.fit": _traced(lambda: detector.fit(loader)),
        "NACDetector.score": _traced(lambda: detector.score(images)),
    }


def _plugin() -> dict[str, Trace]:
    import torch

    from nac_openood import NACError
    from nac_openood.plugin.source import openood_ready

    try:
        with openood_ready():
            from nac_openood import NACPostprocessor
    except NACError:
        return {}

    def loader(seed: int, label: int = 0) -> list[dict[str, torch.Tensor]]:
        random = torch.Generator().manual_seed(seed)
        labels = torch.arange(16) % 4 if label == 0 else torch.full((16,), label)
        return [
            {"data": torch.rand(16, 3, 32, 32, generator=random) * (1 - label), "label": labels}
            for _ in range(3)
        ]

    settings = {"layers": {"pool": {}, "middle": {}}, "n_samples": 24}
    sweep = {"pool": {"full_count": [2, 5]}}
    config = {"name": "nac", "APS_mode": True, "postprocessor_args": settings}
    made = NACPostprocessor(
        {"postprocessor": {**config, "postprocessor_sweep": sweep}, "dataset": {"name": "cifar10"}}
    )
    net = runpy.run_path("net.py")["make"](4).eval()
    inside = {"train": loader(0), "val": loader(1), "test": loader(2)}
    outside = {"val": loader(3, -1), "near": {}, "far": {}}
    return {
        "plugin: setup with search": _traced(lambda: made.setup(net, inside, outside)),
        "plugin: inference": _traced(lambda: made.inference(net, inside["test"], progress=False)),
    }


def report() -> str:
    """All tables as Markdown."""
    rows = [
        f"| {name} | {value:,.1f} |" if value % 1 else f"| {name} | {value:,.0f} |"
        for name, value in sizes().items()
    ]
    lines = ["| size | |", "| --- | ---: |", *rows, ""]
    lines += ["| sub-package | code lines | files |", "| --- | ---: | ---: |"]
    lines += [f"| `{room}` | {count:,} | {files} |" for room, (count, files) in rooms().items()]
    lines += ["", "| feature since the size was set | code lines | of tests |"]
    lines += ["| --- | ---: | ---: |"]
    lines += [f"| {name} | {code} | {tests} |" for name, (code, tests) in FEATURES.items()]
    lines += ["", "| one call | files | functions |", "| --- | ---: | ---: |"]
    lines += [
        f"| {name} | {len(t.files)} | {len(t.functions)} |" for name, t in crossings().items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write them into CONTRIBUTING.md")
    parser.add_argument("--files", action="store_true", help="list the files of each call, too")
    options = parser.parse_args()
    text = report()
    print(text)
    if options.files:
        for name, trace in crossings().items():
            print(f"\n{name}:", *trace.files, sep="\n  ")
    if options.save:
        page = ROOT / "CONTRIBUTING.md"
        marks = r"(<!-- size -->\n).*?(<!-- /size -->)"
        page.write_text(re.sub(marks, rf"\1{text}\2", page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
