"""`nac-openood compare` as people use it: options, exit codes, and a kill at any moment."""

import csv
import re
import signal
import webbrowser
from types import SimpleNamespace

import pytest
import torch
from compare_toy import plain
from openood_tiny import write_benchmark
from processes import run

from nac_openood.benchmark.run.results import Results
from nac_openood.cli import compare, main
from nac_openood.errors import NACError
from nac_openood.sources.networks import build, network_of

ARCH = "resnet_embedded"
CONFIG = """
postprocessor:
  name: nac
  APS_mode: True
  postprocessor_args: {n_samples: 50, layers: {avgpool: {full_count: 5}, layer2: {}}}
  postprocessor_sweep: {avgpool: {full_count: [2, 5]}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with data/, two checkpoints s0 and s1, and NAC's settings."""
    root = tmp_path_factory.mktemp("place")
    write_benchmark(root / "data")
    for seed in (0, 1):
        torch.manual_seed(seed)
        folder = root / "results" / f"s{seed}"
        folder.mkdir(parents=True)
        torch.save(build(ARCH, 10).state_dict(), folder / "best.ckpt")
    (root / "nac.yml").write_text(CONFIG)
    return root


def options(project, out, *methods):
    return [
        "compare", "--id-data", "cifar10", "--data-root", str(project / "data"), "--arch", ARCH,
        "--checkpoint", str(project / "results/s0"), "--nac-config", str(project / "nac.yml"),
        "--backend", "pytorch-ood", "--batch-size", "20", "--out", str(out),
        "--methods", *methods,
    ]  # fmt: skip


def test_a_table_of_two_runs(project, tmp_path, capsys):
    arguments = options(project, tmp_path / "out", "msp", "knn", "nac")
    arguments[arguments.index("--checkpoint") + 1] = str(project / "results")
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "> NAC" in shown and "report.html" in shown
    assert re.search(r"\[3/3(, about .* left)?\] NAC", shown)
    results = Results.load(tmp_path / "out")
    assert [r.name for r in results.runs] == ["s0", "s1"]
    assert results.value("msp", "nearood", "AUROC").std is not None
    with (tmp_path / "out/results.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["run"] for line in lines} == {"s0", "s1"}
    assert "report.html" in {p.name for p in (tmp_path / "out").iterdir()}


def test_without_a_search_the_defaults_are_used(project, tmp_path):
    assert main([*options(project, tmp_path / "out", "knn", "nac"), "--no-search"]) == 0
    results = Results.load(tmp_path / "out")
    assert all(row.search is None for row in results.rows) and not results.surrogates
    assert results.rows[0].hyperparameters == {"K": 50}
    assert any("default hyperparameters" in note for note in results.notes)


def test_without_ood_validation_surrogates_are_searched_against(project, tmp_path):
    arguments = options(project, tmp_path / "out", "react", "odin", "nac")
    assert main([*arguments, "--ood-val", "none"]) == 0
    results = Results.load(tmp_path / "out")
    assert all(row.search["points"] > 1 for row in results.rows) and results.surrogates
    assert any("surrogate OOD, not real OOD" in note for note in results.notes)
    assert "surrogate OOD" in (tmp_path / "out" / "results.md").read_text()


def test_a_failed_method_shows_in_table_and_exit_code(project, tmp_path, capsys):
    # an untrained network is never right about some class, and openmax needs an answer for each
    code = main(options(project, tmp_path / "out", "openmax", "msp", "opengan"))
    assert code == 2
    message = capsys.readouterr()
    assert "failed: OpenMax" in message.err and "openmax" in message.out
    status = {row.method: row.status for row in Results.load(tmp_path / "out").rows}
    assert status == {"openmax": "failed", "msp": "ok", "opengan": "absent"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--methods", "mps"], "unknown method 'mps'"),
        (["--against", "paper"], "the paper has no results for cifar10 with resnet_embedded"),
        (["--checkpoint", "nowhere.ckpt"], "there is no checkpoint nowhere.ckpt"),
        (["--near", "mnist"], "got mnist"),
        (["--fsood", "--far", "cifar10c=."], "got cifar10c"),
        (["--far", "texturs"], "test_tin, train_cifar10, val_cifar10, val_tin."),
        (["--near", "a="], "for a folder of images write NAME=FOLDER"),
        (["--far", "mine=nowhere"], "there is no folder nowhere"),
        (["--data-root", "nowhere"], "Expected OpenOOD's layout"),
        (["--nac-config", "nowhere.yml"], "nowhere.yml"),
        (["--arch", "resnet18_32x32"], "does not fit CifarResNet18"),
        (["--device", "nonsense"], "--device: cannot use 'nonsense'"),
        (["--id-data", "mnist"], "unknown benchmark 'mnist'"),
        (["--layers", "layer9"], "NAC's settings have no layers ['layer9']"),
    ],
)
def test_bad_options_say_what_to_do(project, tmp_path, capsys, change, message):
    arguments = [*options(project, tmp_path / "out", "nac"), *change]
    assert main(arguments) in (1, 2)
    error = capsys.readouterr()
    assert message in error.err + error.out and "Traceback" not in error.err


def test_published_weights_by_name(tmp_path, monkeypatch):
    with pytest.raises(NACError, match=r"one of \['torchvision:IMAGENET1K_V1'"):
        network_of("squeezenet1_1", 1000, "torchvision:IMAGENET1K_V9")
    with pytest.raises(NACError, match="there are no published weights of 'resnet_embedded'"):
        network_of(ARCH, 1000, "torchvision:IMAGENET1K_V1")
    # as if it had been downloaded before
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    net = build("squeezenet1_1", 1000)
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(net.state_dict(), cache / "squeezenet1_1-b8a52dc0.pth")
    found = network_of("squeezenet1_1", 1000, "torchvision:IMAGENET1K_V1")
    assert torch.equal(found.classifier[1].weight, net.classifier[1].weight)
    with pytest.raises(NACError, match="1000 classes, not 10"):
        network_of("squeezenet1_1", 10, "torchvision:IMAGENET1K_V1")


METHODS = ("msp", "knn", "react", "nac")


#: Kills the process without mercy at the n-th file that it opens, renames or removes in a folder.
KILL = """
import interruptions, pathlib, sys
sys.fault = interruptions.fault(pathlib.Path({folder!r}), {step}, interruptions.kill)
sys.fault.__enter__()
"""


def test_killed_twice_it_ends_with_the_same_tables(project, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = run(options(project, whole, *METHODS))
    assert done.returncode == 0, done.stderr
    for step in (120, 250):
        code = KILL.format(folder=str(killed), step=step)
        done = run(options(project, killed, *METHODS), before=code)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = run(options(project, killed, *METHODS))
    assert done.returncode == 0, done.stderr
    assert "done before" in done.stdout
    assert plain(Results.load(killed)) == plain(Results.load(whole))


def test_only_a_page_that_was_written_is_opened(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    for page in (None, tmp_path / "report.html"):  # None: matplotlib is missing
        monkeypatch.setattr(compare, "publish_results", lambda *_, page=page, **__: page)
        comparison = SimpleNamespace(rows=())
        assert compare.run_comparison(tmp_path, lambda c=comparison: c, show_page=True) == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
