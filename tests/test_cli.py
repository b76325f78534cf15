import subprocess
import sys

import pytest

from nac_openood import __version__
from nac_openood.cli import main


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert "examples:" in out
    for command in ("demo", "run", "doctor"):
        assert command in out


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


def test_errors_are_a_sentence_and_an_exit_code(capsys):
    assert main(["demo", "--epochs", "0"]) == 1
    assert "--epochs must be at least 1, got 0" in capsys.readouterr().err
    assert main(["run", "no/such/script.py"]) == 1
    assert "no/such/script.py does not exist" in capsys.readouterr().err


def test_ctrl_c(monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("nac_openood.demo.run", interrupted)
    assert main(["demo"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_doctor_prints_what_is_missing(capsys, tmp_path):
    code = main(["doctor", "--data-root", str(tmp_path), "--results-root", str(tmp_path)])
    out = capsys.readouterr().out
    assert code == 1  # there is no data in an empty folder
    assert "torch" in out
    assert "benchmark_imglist" in out


def test_the_demo_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "nac_openood", "demo", "--epochs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "AUROC" in done.stdout
    assert "photo patches (far)" in done.stdout
