"""`run_script` is `python script args...`, with NAC registered and nothing left behind."""

import csv
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from openood_tiny import cifar10_tree
from processes import run

from nac_openood.errors import NACError
from nac_openood.plugin import compat
from nac_openood.plugin import register as registration
from nac_openood.plugin.register import register, run_script


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Stands for `register`, which needs OpenOOD; checks that everything is restored."""
    made = []
    monkeypatch.setattr(registration, "register", lambda: made.append("register") is None)
    monkeypatch.setattr(registration, "unregister", lambda: made.append("unregister"))
    before = (list(sys.argv), list(sys.path), Path.cwd(), torch.load, sys.modules["__main__"])
    yield made
    after = (list(sys.argv), list(sys.path), Path.cwd(), torch.load, sys.modules["__main__"])
    assert after == before
    assert not compat.applied


@pytest.fixture
def write(tmp_path):
    def write(source):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


# ---- like python


def test_the_script_sees_what_python_would_show(write, tmp_path, capsys):
    script = write(
        """
        import os, sys
        print(__name__, sys.modules["__main__"].__dict__ is globals(), sys.argv[1:])
        print(os.path.samefile(sys.path[0], os.path.dirname(__file__)), os.path.isabs(__file__))
        print(os.getcwd())
        """
    )
    assert run_script(str(script), ["--root", "a b"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["__main__ True ['--root', 'a b']", "True True", str(Path.cwd())]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('a message')", 1),
        ("def f():\n    raise KeyError('lost')\nf()", 1),
        ("def", 1),
    ],
)
def test_the_exit_code_is_pythons(write, source, code, capfd):
    script = write(source)
    assert run_script(str(script), []) == code
    ours = capfd.readouterr().err
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == code
    assert ours == done.stderr


def test_an_interrupt_is_the_callers(write, calls):
    with pytest.raises(KeyboardInterrupt):
        run_script(str(write("raise KeyboardInterrupt")), [])
    assert calls == ["register", "unregister"]


# ---- with NAC


def test_nac_is_registered_while_the_script_runs(write, calls):
    script = write("from nac_openood.plugin import register as r; r.register(); 1 / 0")
    assert run_script(str(script), []) == 1
    assert calls == ["register", "register", "unregister"]


def test_a_registration_of_the_caller_stays(write, calls, monkeypatch):
    monkeypatch.setattr(registration, "register", lambda: False)  # there was nothing left to do
    assert run_script(str(write("pass")), []) == 0
    assert calls == []


def test_an_openood_that_cannot_be_imported_is_reported(write, monkeypatch):
    monkeypatch.setattr(registration, "register", register)
    monkeypatch.setitem(sys.modules, "openood", None)  # as if it were not installed
    for use in (register, lambda: run_script(str(write("pass")), [])):
        with pytest.raises(NACError, match=r"openood.*nac-openood doctor"):
            use()
    assert not registration.unregister()


@pytest.mark.parametrize("wanted", [True, False])
def test_compat_is_there_if_wanted(write, wanted, capsys):
    script = write("from nac_openood.plugin import compat; print(len(compat.applied))")
    with compat.compat() as needed:
        pass
    assert run_script(str(script), [], compat=wanted) == 0
    assert int(capsys.readouterr().out) == (len(needed) if wanted else 0)


def test_a_missing_script_is_reported():
    with pytest.raises(NACError, match=r"such as scripts/eval_ood.py, but no/such.py does not"):
        run_script("no/such.py", [])


def test_the_tree_is_found_from_the_script(write, tmp_path, capsys):
    script = tmp_path / "tree" / "scripts" / "eval_ood.py"
    script.parent.mkdir(parents=True)
    write("import sys; print(sys.path[-1])").rename(script)
    (tmp_path / "tree" / "openood").mkdir()
    (tmp_path / "tree" / "openood" / "__init__.py").touch()
    link = tmp_path / "link.py"
    link.symlink_to(script)
    for path in (script, link):
        assert run_script(str(path), []) == 0
        assert capsys.readouterr().out.strip() == str(tmp_path / "tree")


# ---- OpenOOD's own scripts


def nac_openood(tree, *args, before=""):
    done = run(["run", *args], cwd=tree, before=before)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """OpenOOD with tiny data for CIFAR-10 and a checkpoint in results/run."""
    return cifar10_tree(tmp_path_factory.mktemp("launch"))


def table(path):
    with path.open() as file:
        return {row[0]: row[1:] for row in csv.reader(file)}


EVAL = ("scripts/eval_ood.py", "--root", "results/run", "--id-data", "cifar10")


@pytest.mark.openood
@pytest.mark.parametrize("name", ["nac", "knn"])
def test_eval_ood_twice(tree, name):
    # as on Python 3.14, whose workers would run the script, which has no guard, once more
    spawn = "import multiprocessing; multiprocessing.set_start_method('forkserver')"
    tables = []
    for _ in range(2):
        done = nac_openood(
            tree, *EVAL, "--postprocessor", name, "--save-csv", "--save-score",
            before=spawn if name == "knn" and sys.platform == "linux" else "",
        )  # fmt: skip
        tables.append(table(tree / "results" / "run" / "ood" / f"{name}.csv"))
        for folder in ("postprocessors", "scores"):
            assert (tree / "results" / "run" / "s0" / folder / f"{name}.pkl").is_file()
    assert "Loaded pre-computed scores from file." in done.stdout
    assert "fitted again" not in done.stderr
    assert tables[0] == tables[1]
    assert set(tables[0]) >= {"cifar100", "tin", "nearood", "mnist", "farood"}
    assert tables[0]["farood"][-1] == "100.00 ± 0.00"
    if name != "knn":
        assert not (tree / "configs" / "postprocessors" / f"{name}.yml").exists()


@pytest.mark.openood
def test_a_wrong_argument_ends_as_the_script_says(tree):
    wrong = ("run", "scripts/eval_ood.py", "--root", "results/none")
    done = run((*wrong, "--id-data", "y"), cwd=tree)
    assert done.returncode == 2
    assert "usage: eval_ood.py" in done.stderr
    failed = run(wrong, cwd=tree)
    assert failed.returncode == 1
    assert failed.stderr.endswith("ValueError: No subfolders found in results/none\n")


@pytest.mark.openood
@pytest.mark.parametrize("name", ["nac", "msp"])
def test_main_runs_a_pipeline(tree, name):
    from nac_openood.detector.config import CONFIG_ROOT

    configs = [
        *("configs/datasets/cifar10/cifar10.yml", "configs/datasets/cifar10/cifar10_ood.yml"),
        *("configs/networks/resnet18_32x32.yml", "configs/pipelines/test/test_ood.yml"),
        "configs/preprocessors/base_preprocessor.yml",
        (CONFIG_ROOT if name == "nac" else Path("configs")) / "postprocessors" / f"{name}.yml",
    ]
    options = ["--num_workers", 0, "--network.checkpoint", "results/run/s0/best.ckpt"]
    options += ["--postprocessor.APS_mode", "False", "--mark", "0"]
    done = nac_openood(tree, "main.py", "--config", *configs, *options)
    assert "Accuracy 100.00%" in done.stdout
    assert list((tree / "results").glob(f"cifar10_*{name}_0/s0/ood/ood.csv"))
