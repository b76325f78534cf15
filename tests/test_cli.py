"""The command line: quick answers, exit codes, and errors in the words of its users."""

import argparse
import ast
import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from nac_openood import cli
from nac_openood.cli import main
from nac_openood.cli.output import in_options, show

PACKAGE = Path(cli.__file__).parents[1]
#: What takes seconds to import, and what no help text needs.
SLOW = {"torch", "numpy", "torchvision", "sklearn", "tqdm", "PIL", "fastapi", "uvicorn"}


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert f"nac-openood {command}" in out.split("examples:")[1]
    assert command != "serve" or "size of a request's body" in out  # from a docstring, too
    if not command:
        assert "exit codes:" in out and all(f"\n    {name} " in out for name in cli.COMMANDS)


def test_a_mistyped_option_names_the_one_that_was_meant(capsys):
    for typed in (["--trian", "birds"], ["--trian=birds"]):
        with pytest.raises(SystemExit, match="2"):
            main(["fit", *typed])
        message = capsys.readouterr().err
        assert f"unrecognized arguments: {' '.join(typed)}. Did you mean --train?" in message
        assert "usage: nac-openood fit" in message
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--nothing-like-it"])
    assert "Did you mean" not in capsys.readouterr().err


def test_names_of_files_that_are_not_utf8(monkeypatch):
    """In many locales Python's streams refuse them."""
    streams = [io.TextIOWrapper(io.BytesIO(b"\xff.png"), "utf-8") for _ in range(2)]
    for name, stream in zip(("stdin", "stdout"), streams):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["nac-openood", "run"])  # which leaves warnings alone
    monkeypatch.setattr(cli, "main", lambda: print(sys.stdin.read(), end="", flush=True))
    cli.terminal()
    assert streams[1].buffer.getvalue() == b"\xff.png"


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("ascii", rb"\u0394 \xb1 \xe4"),
        ("cp1252", b"\\u0394 \xb1 \xe4"),
        ("utf-8", "\u0394 ± ä".encode()),
    ],
)
def test_characters_that_stdout_has_no_code_for(monkeypatch, encoding, message):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["nac-openood", "run"])
    monkeypatch.setattr(cli, "main", lambda: show("\u0394 ± ä"))
    cli.terminal()
    assert stream.buffer.getvalue() == message + b"\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve --detector d.nac --port 99999", "expected a whole number from 0 to 65535"),
        ("search --guard high", "expected a number, 'auto' or 'none', got 'high'"),
        ("search --budget-seconds nan", "expected a number above 0, got 'nan'"),
    ],
)
def test_values_that_no_option_takes(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert message in capsys.readouterr().err


def test_ctrl_c(monkeypatch, capsys, tmp_path):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("nac_openood.demo.trained.network_and_sets", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_doctor_prints_what_is_missing(capsys, tmp_path):
    code = main(["doctor", "--data-root", str(tmp_path), "--results-root", str(tmp_path)])
    out = capsys.readouterr().out
    assert code == 1  # there is no data in an empty folder
    assert "torch" in out and "benchmark_imglist" in out and "How to fix it:" in out


# ---- quick answers


RUN = """
import sys
from nac_openood.cli import main
for words in sys.argv[1:]:
    try:
        code = main(words.split())
    except SystemExit as stop:
        code = stop.code
    print(f"\\n{words}: {code}", *SLOW.intersection(sys.modules))
"""


def imports(*commands):
    """What each of several commands ends with: its exit code, and those of SLOW it imported."""
    code = f"SLOW = {SLOW}\n{RUN}"
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.partition(":")[0] in commands]


def test_what_needs_no_torch_does_not_import_it():
    codes = {"--help": 0, "--version": 0, "mistyped": 2}
    codes.update({f"{command} --help": 0 for command in cli.COMMANDS})
    codes.update({f"{command} --mistyped": 2 for command in cli.COMMANDS})
    codes["analyze mistyped --embedded"] = 1
    codes.update({"compare --backend mistyped": 2, "search --strategy mistyped": 2})
    assert imports(*codes) == [f"{words}: {code}" for words, code in codes.items()]


def test_names_of_choices_are_those_of_the_tables():
    from nac_openood.demo.trained import NETWORKS
    from nac_openood.search import OBJECTIVES, STRATEGIES

    commands = cli.build_parser()[1]
    for command, option, table in (
        ("search", "--strategy", STRATEGIES),
        ("search", "--objective", OBJECTIVES),
        ("compare", "--nac-strategy", STRATEGIES),
        ("demo", "--arch", NETWORKS),
    ):
        assert commands[command]._option_string_actions[option].choices == list(table)


# ---- Python arguments become options


OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("--skip-bad", action="store_true")
OPTIONS.add_argument("--no-compat", dest="compat", action="store_false")
OPTIONS.add_argument("--fsood", dest="full_spectrum", action="store_true")
OPTIONS.add_argument("--data-root")
OPTIONS.add_argument("-n", "--n-samples", type=int)
OPTIONS.add_argument("--methods", nargs="+")
TRANSLATED = {
    "`skip_bad=True`": "--skip-bad",
    "`skip_bad`": "--skip-bad",
    "`compat=False`": "--no-compat",
    "`full_spectrum=True`": "--fsood",
    "`data_root`": "--data-root",
    "`data_root='my/data'`": "--data-root my/data",
    "`data_root=FOLDER`": "--data-root FOLDER",
    "`n_samples=100`": "--n-samples 100",
    "`methods=['msp', \"nac\"]`": "--methods msp nac",
    "Check `data_root`, or pass `skip_bad=True`.": "Check --data-root, or pass --skip-bad.",
}
UNCHANGED = (
    *("`layers`", "`layers=['avgpool']`", "`nac-openood doctor`"),  # no options of this command
    *("`n_samples=None`", "`skip_bad=False`", "`compat=True`"),  # cannot be typed
    *("data_root, skip_bad=True", "`data_root/cifar10`"),  # not arguments in backticks
)


@pytest.mark.parametrize(("python", "typed"), [*TRANSLATED.items(), *zip(UNCHANGED, UNCHANGED)])
def test_arguments_become_options(python, typed):
    assert in_options(python, OPTIONS) == typed


def test_errors_name_the_options_of_the_running_command(capsys, tmp_path):
    """`batch_size` is an option of `compare`; `report` has none of that name."""
    for name in ("a", "b"):
        (tmp_path / name).touch()
    base = ["compare", "--id-data", "cifar10", "--arch", "resnet_embedded", "--out", str(tmp_path)]
    assert main([*base, "--checkpoint", str(tmp_path / "a"), "--data-root", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "--data-root" in message and "`" not in message


def test_the_library_does_not_know_the_command_line():
    """Errors name Python arguments; only doctor.py prints options, those of other programs."""
    for path in PACKAGE.rglob("*.py"):
        if "cli" in path.relative_to(PACKAGE).parts or path.name == "doctor.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                # a word alone may be a CSS variable
                assert not re.search(r"\s--[a-z]|^--[a-z-]+\s", node.value), f"{path}:{node.lineno}"


@pytest.mark.parametrize("command", ["fit", "run"])
def test_warnings_are_one_line_each_and_once(command, monkeypatch, capsys):
    def warn():
        for text in ("few samples", "few samples"):
            warnings.showwarning(UserWarning(text), UserWarning, "file.py", 1)
        warnings.showwarning(FutureWarning("old"), FutureWarning, "file.py", 1)

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored at the end
    monkeypatch.setattr(sys, "argv", ["nac-openood", command])
    monkeypatch.setattr(cli, "main", warn if command == "fit" else lambda: 0)
    original = warnings.showwarning
    cli.terminal()
    if command == "run":
        assert warnings.showwarning is original, "scripts of others warn as they do"
    else:
        assert capsys.readouterr().err.splitlines() == [
            "nac-openood: warning: few samples",
            "nac-openood: warning: FutureWarning: old",
        ]


@pytest.fixture
def table(tmp_path):
    """A shard of `score`, which `merge` prints."""
    path = tmp_path / "shard.csv"
    path.write_text(
        f"# nac-openood score, shard 1/1 of {'0' * 16}\npath\n# batch 0, 1 lines\nx.png\n# end\n"
    )
    return str(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["merge", "doctor"])
def test_a_full_disk_behind_stdout(command, table, monkeypatch, capsys):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([command, table] if command == "merge" else [command]) == 1
    message = "nac-openood: cannot write to stdout: No space left on device.\n"
    assert capsys.readouterr().err == message


def test_a_reader_that_has_seen_enough(table, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["merge", table]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["merge", "score"])
def test_a_closed_stdout(command, table, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    options = ["--detector", "x.nac"] if command == "score" else []
    assert main([command, *options, table]) == 1
    assert "nac-openood: stdout is closed" in capsys.readouterr().err


def test_python_m_does_not_import_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as `python -m` does
    monkeypatch.setattr(sys, "argv", ["nac_openood", "--version"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # or it would be replaced
    with pytest.raises(SystemExit):
        runpy.run_module("nac_openood", run_name="__main__")
    assert str(tmp_path) not in sys.path
