import pytest

from nac_openood import __version__
from nac_openood.cli import main


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert "examples:" in out
    for command in ("demo", "run", "search", "compare", "report", "doctor"):
        assert command in out


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


def test_errors_are_a_sentence_and_an_exit_code(capsys):
    assert main(["run", "no/such/script.py"]) == 1
    assert "no/such/script.py does not exist" in capsys.readouterr().err


def test_ctrl_c(monkeypatch, capsys, tmp_path):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("nac_openood.demo.demo_study", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_doctor_prints_what_is_missing(capsys, tmp_path):
    code = main(["doctor", "--data-root", str(tmp_path), "--results-root", str(tmp_path)])
    out = capsys.readouterr().out
    assert code == 1  # there is no data in an empty folder
    assert "torch" in out
    assert "benchmark_imglist" in out
