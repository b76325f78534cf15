"""The code in docs/interfaces.md and docs/export.md runs as it stands."""

import pytest
import torch
from test_docs import DOCS, blocks
from test_monitor import lightnings_own


def run_page(name, folder):
    names = {"__name__": name}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.chdir(folder)
        for block in blocks((DOCS / name).read_text(encoding="utf-8")):
            exec(compile(block, str(DOCS / name), "exec"), names)
    return names


@lightnings_own
def test_interfaces(tmp_path):
    names = run_page("interfaces.md", tmp_path)
    assert list(names["outliers"].predict(names["new"])[5:]) == [-1] * 5
    assert names["found"]["AUROC"] > 0.9 and names["outlier_scores"].shape == (5,)
    assert names["detector"].calibrated_ and names["auroc"] > 0.9


def test_export(tmp_path):
    names = run_page("export.md", tmp_path)
    outputs = names["outputs"]
    assert set(outputs) == {"logits", "score", "p_value", "decision"}
    assert outputs["score"].numpy() == pytest.approx(names["score"], abs=1e-4)
    assert names["about"]["classes"] == list("abcdefghij") and names["about"]["alpha"] == 0.05
