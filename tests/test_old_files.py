"""Files of version 0.1 (`tests/data/v0.1`) load, and give the scores they gave then."""

import csv
import io
import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from conftest import same_fit

from nac_openood import NACDetector, Ranking, Readings, read_config
from nac_openood.analysis.finding import Finding
from nac_openood.cli import main
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import build

OLD = Path(__file__).parent / "data" / "v0.1"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the files, as the current folder."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def assert_same(found, expected):
    """Equal but for the last digits, which differ between processors."""
    assert [r["path"] for r in found] == [r["path"] for r in expected]
    assert [r["decision"] for r in found] == [r["decision"] for r in expected]
    for name in ("confidence", "score"):
        wanted = pytest.approx([float(r[name]) for r in expected], rel=1e-5)
        assert [float(r[name]) for r in found] == wanted
    # p-values had a tail: of unusual images they were smaller than any rank can be
    wanted = pytest.approx([float(r["p_value"]) for r in expected], abs=0.05)
    assert [float(r["p_value"]) for r in found] == wanted


@pytest.mark.parametrize("name", ["nac", "plus"])
def test_detectors_score_as_they_did(old, name, capsys):
    network = ["--arch", "net.py:make", "--checkpoint", "net.pt"]
    approximate = pytest.warns(UserWarning, match="its p-values hold only approximately")
    with approximate if name == "plus" else nullcontext():
        assert main(["score", "--detector", f"{name}.nac", *network, "images"]) == 0
    assert_same(rows(capsys.readouterr().out), rows(Path(f"{name}.csv").read_text()))


def test_nac_plus_2_without_weights_scores_as_it_did(old):
    """A file of commit 16ce188: no distance of the head's input, early parts counted in full."""
    net = load_checkpoint(build("net.py:make", 4), "net.pt").eval()
    detector = NACDetector.load(OLD.parent / "plus2" / "plus.nac", net)
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    wanted = json.loads((OLD.parent / "plus2" / "scores.json").read_text())
    assert detector.score(images).tolist() == pytest.approx(wanted["scores"], rel=1e-5)
    assert detector.p_value(images).tolist() == pytest.approx(wanted["p"])


def test_what_old_detectors_guarantee(old):
    """Thresholds were quantiles, which promise nothing; p-values of NAC need no calibration."""
    net = load_checkpoint(build("net.py:make", 4), "net.pt")
    nac = NACDetector.load("nac.nac", net)
    assert nac.guarantee().startswith("Guaranteed, on average")
    assert "`predict` has another threshold" in nac.guarantee()
    with pytest.warns(UserWarning, match="Calibrate again for guaranteed ones"):
        assert NACDetector.load("plus.nac", net).guarantee().startswith("No guarantee")


def test_a_detector_without_calibration_and_stored_readings(old):
    net = load_checkpoint(build("net.py:make", 4), "net.pt")
    detector = NACDetector.load("nac_readings.nac", net)
    scores = detector.score_readings(Readings.load("readings/id_val.safetensors"))
    assert scores.tolist() == json.loads(Path("nac_readings.json").read_text())
    again = NACDetector(net, ["middle", "pool"], rule="nac")
    again.fit_readings(Readings.load("readings/fit.safetensors"))
    assert same_fit(again, detector)


def test_shards_of_fit_and_score_merge(old, capsys):
    assert main(["merge", "fit_part1", "fit_part2", "--out", "merged.nac"]) == 0
    net = load_checkpoint(build("net.py:make", 4), "net.pt")
    merged = NACDetector.load("merged.nac", net)
    with pytest.warns(UserWarning, match="Calibrate again for guaranteed ones"):
        whole = NACDetector.load("plus.nac", net)
    assert whole.guarantee().startswith("No guarantee") and "at most" in merged.guarantee()
    assert merged.fit_summary_ == whole.fit_summary_
    capsys.readouterr()
    assert main(["merge", "score_part1.csv", "score_part2.csv"]) == 0
    assert capsys.readouterr().out == Path("scores.csv").read_text()


def test_readings_of_a_search_and_its_settings(old, capsys):
    assert main(["search", "--readings", "readings", "--restarts", "1", "--out", "search"]) == 0
    assert set(read_config("nac.yml").layers) == set(read_config("search/nac.yml").layers)


def test_a_comparison(old, capsys):
    assert main(["report", "compare"]) == 0
    assert main(["merge", "compare", "compare2", "--out", "both"]) == 0
    results = json.loads(Path("both/results.json").read_text())
    assert {row["method"] for row in results["rows"]} == {"nac", "nac_plus", "msp", "knn", "ebo"}
    assert "NAC+" in Path("both/results.md").read_text()


def test_a_ranking_and_findings(old):
    assert Ranking.load("rank").order()[-1].name == "step_0"
    found = Finding.load(Path("analyze/layers.json"))
    assert found.kind == "layers" and len(found.tables) == 2
    assert Finding.load(found.save(Path("analyze"))) == found
    assert {f.type for f in Finding.load(Path("analyze/calibration.json")).figures} == {"lines"}
