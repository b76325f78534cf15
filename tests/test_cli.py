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

from nac_openood import __version__, cli
from nac_openood.cli import inputs, main
from nac_openood.cli.output import in_options
from nac_openood.errors import NACError

PACKAGE = Path(cli.__file__).parents[1]
COMMANDS = (
    "demo", "fit", "score", "serve", "export", "run", "search", "compare", "analyze",
    "rank", "report", "doctor",
)  # fmt: skip
#: What takes seconds to import, and what no help text needs.
SLOW = {"torch", "numpy", "torchvision", "sklearn", "tqdm"}


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert "examples:" in out and "exit codes:" in out
    for command in COMMANDS:
        assert f"\n    {command} " in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_examples(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"nac-openood {command}" in capsys.readouterr().out.split("examples")[1]


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


def test_a_mistyped_option_names_the_one_that_was_meant(capsys):
    for typed in (["--trian", "birds"], ["--trian=birds"]):
        with pytest.raises(SystemExit, match="2"):
            main(["fit", *typed])
        told = capsys.readouterr().err
        assert f"unrecognized arguments: {' '.join(typed)}. Did you mean --train?" in told
        assert "usage: nac-openood fit" in told
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--nothing-like-it"])
    assert "Did you mean" not in capsys.readouterr().err


def test_errors_are_a_sentence_and_an_exit_code(capsys):
    assert main(["run", "no/such/script.py"]) == 1
    assert "no/such/script.py does not exist" in capsys.readouterr().err


def test_names_of_files_that_are_not_utf8(monkeypatch):
    """In many locales Python's streams refuse them."""
    streams = [io.TextIOWrapper(io.BytesIO(b"\xff.png"), "utf-8") for _ in range(2)]
    for name, stream in zip(("stdin", "stdout"), streams):
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["nac-openood", "run"])  # which leaves warnings alone
    monkeypatch.setattr(cli, "main", lambda: print(sys.stdin.read(), end="", flush=True))
    cli.terminal()
    assert streams[1].buffer.getvalue() == b"\xff.png"


def test_ctrl_c(monkeypatch, capsys, tmp_path):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("nac_openood.demo.run_demo", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_doctor_prints_what_is_missing(capsys, tmp_path):
    code = main(["doctor", "--data-root", str(tmp_path), "--results-root", str(tmp_path)])
    out = capsys.readouterr().out
    assert code == 1  # there is no data in an empty folder
    assert "torch" in out
    assert "benchmark_imglist" in out
    assert "How to fix it:" in out


# ---- quick answers


def imported(code, *arguments):
    """Run Python code on arguments; return its exit code and those of SLOW that it imported."""
    code = f"import sys\ntry:\n    {code}\nfinally:\n    print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    return done.returncode, SLOW & set(done.stdout.splitlines()[-1].split())


MAIN = "from nac_openood.cli import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("--version", 0),
        *((f"{command} --help", 0) for command in COMMANDS),
        *((f"{command} --mistyped", 2) for command in COMMANDS),
        ("mistyped", 2),
        ("analyze mistyped --embedded", 1),
        ("compare --backend mistyped", 2),
        ("search --strategy mistyped", 2),
    ],
)
def test_what_needs_no_torch_does_not_import_it(arguments, code):
    assert imported(MAIN, *arguments.split()) == (code, set())


def test_and_that_test_can_fail():
    assert imported("import numpy") == (0, {"numpy"})


def test_names_of_choices_are_those_of_the_tables():
    from nac_openood.demo import NETWORKS
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


@pytest.fixture(scope="module")
def some_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--skip-bad", action="store_true")
    parser.add_argument("--no-compat", dest="compat", action="store_false")
    parser.add_argument("--fsood", dest="full_spectrum", action="store_true")
    parser.add_argument("--data-root")
    parser.add_argument("-n", "--n-samples", type=int)
    parser.add_argument("--methods", nargs="+")
    return parser


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("`skip_bad=True`", "--skip-bad"),
        ("`skip_bad`", "--skip-bad"),
        ("`compat=False`", "--no-compat"),
        ("`full_spectrum=True`", "--fsood"),
        ("`data_root`", "--data-root"),
        ("`data_root='my/data'`", "--data-root my/data"),
        ("`data_root=FOLDER`", "--data-root FOLDER"),
        ("`n_samples=100`", "--n-samples 100"),
        ("`methods=['msp', \"nac\"]`", "--methods msp nac"),
        ("Check `data_root`, or pass `skip_bad=True`.", "Check --data-root, or pass --skip-bad."),
    ],
)
def test_arguments_become_options(some_options, python, typed):
    assert in_options(python, some_options) == typed


@pytest.mark.parametrize(
    "text",
    [
        "`layers`",  # no option of this command
        "`layers=['avgpool']`",
        "`nac-openood doctor`",
        "`n_samples=None`",  # cannot be typed
        "`skip_bad=False`",
        "`compat=True`",
        "data_root, skip_bad=True",  # not in backticks
        "`data_root/cifar10`",
    ],
)
def test_other_text_is_left_alone(some_options, text):
    assert in_options(text, some_options) == text


def test_errors_name_the_options_of_the_running_command(capsys, tmp_path):
    """`batch_size` is an option of `compare`; `report` has none of that name."""
    for name in ("a", "b"):
        (tmp_path / name).touch()
    base = ["compare", "--id-data", "cifar10", "--arch", "resnet_embedded", "--out", str(tmp_path)]
    assert main([*base, "--checkpoint", str(tmp_path / "a"), "--data-root", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "--data-root" in told and "`" not in told


def literals(path):
    """(line, text) of every string in a file, the parts of an f-string joined."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def named_options(files, ours):
    """Command-line options in the strings of files: any of ours, and others inside sentences.

    plugin/doctor.py prints commands of pip and of OpenOOD, whose options it must name.
    """
    for path in files:
        for line, text in literals(path):
            found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
            others = path.name != "doctor.py" and text.strip() not in found
            if found & ours or (found and others):
                yield f"{path.name}:{line}: {text.strip()}"


def our_options():
    commands = cli.build_parser()[1].values()
    return {o for command in commands for a in command._actions for o in a.option_strings}


def test_the_library_does_not_know_the_command_line():
    below = [p for p in PACKAGE.rglob("*.py") if "cli" not in p.relative_to(PACKAGE).parts]
    assert not list(named_options(below, our_options()))


def test_and_that_test_can_fail_too(tmp_path):
    (tmp_path / "a.py").write_text("f'{1}: leave them out with --skip-bad ({2})'")
    (tmp_path / "b.py").write_text("'pass --fast'; '--out'; '--ink'; 'a -- b'; 'x--y'")
    (tmp_path / "doctor.py").write_text("'pip install --no-deps x'; 'check --data-root'")
    found = list(named_options(sorted(tmp_path.glob("*.py")), our_options()))
    assert found == [
        "a.py:1: : leave them out with --skip-bad (",
        "b.py:1: pass --fast",
        "b.py:1: --out",
        "doctor.py:1: check --data-root",
    ]


def test_warnings_are_one_line_each_and_once(tmp_path):
    code = (
        "import sys, warnings, nac_openood.cli as cli\n"
        "def main():\n"
        "    for _ in range(2): warnings.warn('few samples')\n"
        "    warnings.warn('old', FutureWarning)\n"
        "    return 0\n"
        "cli.main = main\n"
        "sys.argv = ['nac-openood', *sys.argv[1:]]\n"
        "warnings.simplefilter('always')\n"
        "sys.exit(cli.terminal())\n"
    )
    said = [
        subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True).stderr
        for name in ("fit", "run")
    ]
    assert said[0].splitlines() == [
        "nac-openood: warning: few samples",
        "nac-openood: warning: FutureWarning: old",
    ]
    assert said[1].count("UserWarning: few samples") == 2, "scripts of others warn as they do"


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
    told = "nac-openood: cannot write to stdout: No space left on device.\n"
    assert capsys.readouterr().err == told


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
    given = ["--detector", "x.nac"] if command == "score" else []
    assert main([command, *given, table]) == 1
    assert "nac-openood: stdout is closed" in capsys.readouterr().err


def test_a_device_that_computes_nothing():
    with pytest.raises(NACError, match="--device: cannot use 'meta' .it computes nothing"):
        inputs.on_device(None, "meta")


def test_python_m_does_not_import_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as `python -m` does
    monkeypatch.setattr(sys, "argv", ["nac_openood", "--version"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # or it would be replaced
    with pytest.raises(SystemExit):
        runpy.run_module("nac_openood", run_name="__main__")
    assert str(tmp_path) not in sys.path
