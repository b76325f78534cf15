"""`nac-openood rank` on image folders, and its page."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from nac_openood import IntegralConfig
from nac_openood.cli import main
from nac_openood.evaluation import ranking
from nac_openood.evaluation.rank import domains_by_role
from nac_openood.evaluation.ranking import RankedRuns
from nac_openood.report.checkpoints import ranked_document, ranked_summary
from nac_openood.sources.networks import build
from nac_openood.sources.readers import domainbed_transform

DOMAINS, CLASSES = ("art_painting", "cartoon", "sketch"), ("dog", "horse")
ARCH = ["--arch", "resnet_embedded", "--image-size", "32"]


@pytest.fixture(scope="module")
def pacs(tmp_path_factory):
    """A dataset in DomainBed's layout: three domains, two classes, 20 images each."""
    root = tmp_path_factory.mktemp("data") / "PACS"
    rng = np.random.default_rng(0)
    for shift, domain in enumerate(DOMAINS):
        for label, name in enumerate(CLASSES):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(20):
                pixels = rng.integers(0, 120, (16, 16, 3)) + 30 * shift
                pixels[: 8 * (label + 1), :8] += 60
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return root


def train(pacs, folder, domains, *, steps, seed=0):
    """Checkpoints of a short but real training, one per step."""
    roles, _ = domains_by_role([pacs / d for d in domains], None, None, domainbed_transform(32))
    samples = [sample for data in roles["train"].values() for sample in data]
    x = torch.stack([sample["data"] for sample in samples])
    y = torch.tensor([sample["label"] for sample in samples])
    torch.manual_seed(seed)
    net = build("resnet_embedded", 2).train()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.5
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        torch.save(net.state_dict(), folder / f"step_{50 * step:05d}.pt")


@pytest.fixture(scope="module")
def run(pacs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(pacs, folder, ("cartoon", "sketch"), steps=6)
    return folder


def rank(*args):
    return main(["rank", *map(str, args), "--batch-size", "20", "--device", "cpu"])


def test_a_run_is_ranked(pacs, run, tmp_path, capsys):
    out = tmp_path / "out"
    options = [run, *ARCH, "--train", pacs / "cartoon", pacs / "sketch", "--test",
               pacs / "art_painting", "--against", "paper", "--out", out]  # fmt: skip
    assert rank(*options) == 0
    text = capsys.readouterr().out
    assert "reading checkpoint 6 of 6: step_00300" in text and "NAC-ME chooses" in text
    assert "published numbers are those of resnet18, not of resnet_embedded" in text
    assert max(map(len, text.splitlines())) <= 200
    document = json.loads((out / "results.json").read_text())
    assert document["dataset"] == "pacs" and len(document["runs"][0]["ranking"]["candidates"]) == 24
    assert document["runs"][0]["ranking"]["sizes"] == {
        "train": {"cartoon": 32, "sketch": 32}, "val": {"cartoon": 8, "sketch": 8},
        "test": {"art_painting": 40},
    }  # fmt: skip
    published = {(r["criterion"], r["metric"]): r["published"] for r in document["paper"]
                 if r["domain"] == "art_painting"}  # fmt: skip
    assert published["nac-me", "RC"] == 75.49
    lines = (out / "results.csv").read_text().splitlines()
    assert len(lines) == 7 and lines[0].startswith("target,trial,checkpoint,step,coverage")
    assert sum("oracle" in line for line in lines[1:]) == 1
    page = (out / "report.html").read_text()
    assert "which checkpoint generalizes?" in page and page.count("<svg") == 2
    assert not re.search(r'(src|href)="(?!data:|#)', page) and "http-equiv" in page
    assert "# PACS: which checkpoint generalizes?" in (out / "results.md").read_text()
    assert rank(*options) == 0  # a second time nothing is read
    assert "reading checkpoint" not in capsys.readouterr().out


def test_without_a_target_domain(pacs, run, tmp_path, capsys):
    out = tmp_path / "out"
    domains = ["--train", pacs / "cartoon", "--val", pacs / "sketch"]
    assert rank(run / "step_00050.pt", run / "step_00300.pt", *ARCH, *domains, "--out", out) == 0
    assert "judged by training data alone" in capsys.readouterr().out
    assert "Without data of target domains" in (out / "report.html").read_text()


@pytest.fixture(scope="module")
def study(pacs, tmp_path_factory):
    """Runs of two target domains, two trials each."""
    folder = tmp_path_factory.mktemp("study")
    for target in DOMAINS[:2]:
        for trial in range(2):
            sources = [domain for domain in DOMAINS if domain != target]
            train(pacs, folder / target / f"trial_{trial}", sources, steps=6, seed=trial)
    return folder


def test_leave_one_domain_out(pacs, study, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--runs", study, "--data", pacs, *ARCH, "--out", out, "--against", "paper"]
    assert rank(*options) == 0
    text = capsys.readouterr().out
    assert "run 4 of 4: cartoon/trial_1" in text and "Average" in text
    ranked = RankedRuns.load(out)
    assert [(r.target, r.trial) for r in ranked.runs] == [
        ("art_painting", 0), ("art_painting", 1), ("cartoon", 0), ("cartoon", 1),
    ]  # fmt: skip
    sizes = ranked.runs[0].ranking.sizes
    assert sizes["test"] == {"art_painting": 32} and sizes["oracle"] == {"art_painting": 8}
    assert sizes["train"] == {"cartoon": 32, "sketch": 32}
    per_trial = [100 * r.ranking.accuracy("nac-me") for r in ranked.runs[:2]]
    found = ranked.accuracy("nac-me", "art_painting")
    assert found.mean == pytest.approx(np.mean(per_trial))
    assert found.error == pytest.approx(np.std(per_trial, ddof=1) / np.sqrt(2))
    average = ranked.accuracy("nac-me")
    parts = [ranked.accuracy("nac-me", d).mean for d in ranked.targets]
    assert average.mean == pytest.approx(np.mean(parts))
    assert ranked.save(tmp_path).read_text() == (out / "results.json").read_text()
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 5 and "cartoon, trial 1" in page
    assert "Measured and published results" in page


def test_undefined_numbers_are_called_undefined():
    checkpoints = [
        ranking.RankedCheckpoint(f"step_{i}", "", i, 0.1 * i, 0.5, 0.5, 0.5) for i in (1, 2)
    ]
    tried = ranking.IntegralCandidate(IntegralConfig(), (0.1, 0.2), None)
    flat = ranking.Ranking(tuple(checkpoints), (tried,), tried.config, "avgpool", {})
    alone = RankedRuns.of([ranking.RankedRun("sketch", 0, flat)])
    assert alone.rc("nac-me", "sketch").mean is None and alone.rc("nac-me").mean is None
    assert "sketch, trial 0: the RC of nac-me is undefined" in alone.notes[1]
    text = ranked_summary(alone)
    assert "undefined" in text and "nan" not in text.lower()


def test_a_beaten_oracle_is_explained():
    tried = ranking.IntegralCandidate(IntegralConfig(), (0.1, 0.2), None)
    accuracies = {1: (0.5, 0.4, 0.9), 2: (0.6, 0.6, 0.5)}  # validation, test, data of the oracle
    checkpoints = tuple(
        ranking.RankedCheckpoint(f"step_{i}", "", i, 0.1 * i, *each)
        for i, each in accuracies.items()
    )
    found = ranking.Ranking(checkpoints, (tried,), tried.config, "avgpool", {})
    ranked = RankedRuns.of([ranking.RankedRun("sketch", None, found)])
    message = "Sketch: ACC is not measured on the samples by which the oracle chooses"
    assert message in " ".join(ranked_summary(ranked).split())
    assert message in ranked_document(ranked).notes[-1]


def test_bad_checkpoints_and_options_are_reported(pacs, run, study, tmp_path, capsys):
    torch.save(build("resnet_embedded", 3).state_dict(), tmp_path / "three_classes.pt")
    (tmp_path / "empty").mkdir()
    out = ["--out", tmp_path / "out"]
    sources = ["--train", pacs / "cartoon", pacs / "sketch"]
    cases = {
        "size mismatch for fc.weight: ": [run, tmp_path / "three_classes.pt", *sources, *ARCH],
        "empty holds no checkpoints (.pt": [tmp_path / "empty", *sources, *ARCH],
        "expected --arch and either CHECKPOINTS and --train, to rank one": ARCH,
        "or --runs and --data, to rank runs that leave": ["--runs", study, *ARCH],
        "--runs names the target domains itself: leave out --val and": [
            "--runs", study, "--data", pacs, "--test", pacs / "photo", *ARCH
        ],
        "--demo makes its own checkpoints: leave out": ["--demo", run],
        "unknown --space 'nowhere'; expected one": [run, *sources, "--space", "nowhere", *ARCH],
        "expected --arch and either": [run, *sources, "--runs", study, "--data", pacs, *ARCH],
        "holds no runs; expected a folder for each": ["--runs", pacs.parent, "--data", pacs, *ARCH],
        "does not choose checkpoints on 'data": [
            run, "--train", pacs, *ARCH, "--against", "paper"
        ],
    }  # fmt: skip
    for message, options in cases.items():
        assert rank(*options, *out) == 1, message
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
