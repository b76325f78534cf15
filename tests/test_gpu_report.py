"""`scripts/gpu_report.py`, tried on a CPU with tiny sizes."""

import os

import pytest
import torch
from report_example import build
from script_module import SCRIPTS, script_module

from nac_openood.detector.readings import Readings
from nac_openood.report.render import render_markdown

gpu_report = script_module("gpu_report")


def test_one_command_writes_a_report(tmp_path, capsys):
    out = tmp_path / "report.md"
    assert gpu_report.main(["--device", "cpu", "--quick", "--out", str(out)]) == 0
    text = out.read_text()
    assert "**Counts are equal on CPU and device.**" in text
    assert "This is not a report about a GPU." in text
    assert "Tables 1 and 2 were not run" in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| nac")]
    assert [f"{row[0]} {row[2]}" for row in rows] == ["| nac 0", "| nac_plus 0", "| nac_plus_1 0"]
    assert all(int(row[1].replace(",", "")) > 10_000 for row in rows)
    assert "| plain forward | 1.00 x |" in text and "| ours, autocast=bfloat16 |" in text
    assert f"- torch: {torch.__version__}" in text
    assert "paste it into an issue" in capsys.readouterr().out


def test_different_counts_are_reported(tmp_path, monkeypatch):
    def broken(self, device, **options):
        return self._map(lambda tensor: tensor + 1)

    monkeypatch.setattr(Readings, "to", broken)
    monkeypatch.setattr(gpu_report, "speed_ratios", lambda device, quick: {"": {}})
    monkeypatch.setattr(gpu_report, "loop_ratios", lambda device, quick: {})
    out = tmp_path / "report.md"
    assert gpu_report.main(["--device", "cpu", "--quick", "--out", str(out)]) == 1
    assert "**Counts are DIFFERENT.**" in out.read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so():
    with pytest.raises(SystemExit, match="no CUDA device here. `--device cpu` tries"):
        gpu_report.main([])


def test_results_stand_beside_the_papers(tmp_path):
    build(tmp_path / "results" / "table_1" / "cifar10", methods=("knn", "nac"), scores=False)
    sections = gpu_report.table_sections("Table 1", tmp_path, "")
    document = gpu_report.document(torch.device("cpu"), [], tmp_path, sections)
    text = render_markdown(document)
    assert "## Table 1 of the paper" in text
    assert "| Measured | Published | Difference |" in text
    assert "| 84.10 ± 0.20 | 84.60 ± 0.03 | -0.50 |" in text


def test_tables_are_where_their_drivers_write_them():
    for script, folders in gpu_report.TABLES.values():
        path = SCRIPTS / script
        assert os.access(path, os.X_OK)
        texts = [path.read_text().replace("$id", data) for data in ("cifar10", "cifar100")]
        assert all(f"--out ./results/{folder} " in "".join(texts) for folder in folders)
