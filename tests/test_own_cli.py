"""Searches on the user's network and images, and errors of `compare`."""

import json

import pytest
from own_project import DATA, NETWORK

from nac_openood.cli import main
from nac_openood.search.recipe import ReadingSet


@pytest.fixture
def here(own_project, monkeypatch):
    """The folder of `own_project` as the current one."""
    monkeypatch.chdir(own_project)
    return own_project


LOADED = ["--transform", "transform.yml", "--train", "net.py:loaded"]


@pytest.mark.parametrize(
    ("data", "name", "n_val"),
    [(DATA, "birds", 120), (LOADED, "loaded", 48), ([*LOADED, "--val", "net.py:loaded"], "loaded", 240)],
)  # fmt: skip
def test_search(here, tmp_path, capsys, data, name, n_val):
    kept = ["--save-readings", str(tmp_path / "kept"), "--out", str(tmp_path), "--restarts", "1"]
    assert main(["search", *NETWORK, *data, *kept]) == 0
    assert "searched against surrogate OOD" in capsys.readouterr().out
    readings = ReadingSet.load(tmp_path / "kept")
    assert readings.about["id_data"] == name and readings.id_val.n_samples == n_val
    assert json.loads((tmp_path / "search.json").read_text())["data"]["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "net.py:make"], "expected either --train (your images) or --id-data"),
        ([*NETWORK, *DATA, "--id-data", "cifar10"], "expected either --train (your images) or"),
        ([*NETWORK, *DATA, "--fsood"], "--fsood cannot be used with --train"),
        (
            [*NETWORK, *DATA[:2], "--id-data", "cifar10", "--val", "x"],
            "--val cannot be used with --id-data",
        ),
        ([*NETWORK, *DATA, "--image-size", "32"], "expected --image-size or --transform, got both"),
        ([*NETWORK, *DATA[2:]], "no transform is known for net.py:make: pass --transform, a"),
        ([*NETWORK, *DATA, "--arch", "net.py:broken"], "--arch: your code net.py:broken failed"),
        ([*NETWORK, *DATA[:2], "--train", "stripes"], "are not in class folders"),
        ([*NETWORK, *DATA, "--far", "stripes"], "expected NAME=FOLDER for your own set"),
        ([*NETWORK, *DATA, "--far", "a/stripes"], "expected NAME=FOLDER for your own set"),
    ],
)
def test_errors_name_options(here, tmp_path, arguments, message, capsys):
    assert main(["compare", *arguments, "--methods", "nac", "--out", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err
