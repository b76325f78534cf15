"""Commands on a network and images of one's own: compare, search."""

import json

import pytest

from nac_openood.benchmark.run.results import Results
from nac_openood.cli import main
from nac_openood.search.recipe import ReadingSet


@pytest.fixture
def here(own_project, monkeypatch):
    """The folder of `own_project` as the current one."""
    monkeypatch.chdir(own_project)
    return own_project


NETWORK = ["--arch", "net.py:make", "--checkpoint", "net.pt", "--transform", "transform.yml"]
DATA = ["--train", "birds/train", "--val", "birds/val"]


def test_compare(here, tmp_path, capsys):
    arguments = [*NETWORK, *DATA, "--test", "birds/test", "--far", "stripes=stripes"]
    methods = ["--methods", "nac", "nac_plus", "--out", str(tmp_path), "--device", "cpu"]
    with pytest.warns(UserWarning, match="fitting set is uneven"):
        assert main(["compare", *arguments, *methods]) == 0
    message = capsys.readouterr().out
    assert "- transform: resize: 36, crop: 32" in message
    assert "searched against surrogate OOD" in message
    results = Results.load(tmp_path)
    assert {row.status for row in results.rows} == {"ok"}
    rows = {row.method: row for row in results.rows}
    assert set(rows["nac"].hyperparameters["layers"]) == {"pool", "middle", "stem.2"}
    assert results.value("nac_plus", "farood", "AUROC").mean > 90


def search(out, *arguments):
    kept = ["--save-readings", str(out / "kept"), "--out", str(out), "--restarts", "1"]
    assert main(["search", *NETWORK, *arguments, *kept]) == 0
    return ReadingSet.load(out / "kept")


def test_search(here, tmp_path, capsys):
    readings = search(tmp_path, *DATA)
    assert "searched against surrogate OOD" in capsys.readouterr().out
    assert readings.about["id_data"] == "birds" and readings.id_val.n_samples == 120
    assert json.loads((tmp_path / "search.json").read_text())["data"]["accuracy"] > 0.9


@pytest.mark.parametrize("val", [[], ["--val", "net.py:loaded"]])
def test_search_takes_a_loader_of_the_users_code(here, tmp_path, val):
    readings = search(tmp_path, "--train", "net.py:loaded", *val)
    assert readings.id_val.n_samples == (240 if val else 48)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "net.py:make"], "expected either --train (your images) or --id-data"),
        ([*NETWORK, *DATA, "--id-data", "cifar10"], "expected either --train (your images) or"),
        ([*NETWORK, *DATA, "--fsood"], "--fsood cannot be used with --train"),
        ([*NETWORK, "--id-data", "cifar10", "--val", "x"], "--val cannot be used with --id-data"),
        ([*NETWORK, *DATA, "--image-size", "32"], "expected --image-size or --transform, got both"),
        ([*NETWORK[:4], *DATA], "no transform is known for net.py:make: pass --transform, a"),
        ([*NETWORK, *DATA, "--arch", "net.py:broken"], "--arch: your code net.py:broken failed"),
        ([*NETWORK, "--train", "stripes"], "are not in class folders"),
        ([*NETWORK, *DATA, "--far", "stripes"], "expected NAME=FOLDER for your own set"),
        ([*NETWORK, *DATA, "--far", "a/stripes"], "expected NAME=FOLDER for your own set"),
    ],
)
def test_errors_name_options(here, tmp_path, arguments, message, capsys):
    assert main(["compare", *arguments, "--methods", "nac", "--out", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err
