"""`nac-openood search` from a checkpoint and images, and again from what it kept."""

import json
import sys

import openood_standin
import pytest
import torch
import yaml
from openood_tiny import write_lists
from PIL import Image

from nac_openood import read_config
from nac_openood.cli import main
from nac_openood.search.recipe import ReadingSet
from nac_openood.sources.networks import CifarResNet18

LISTS = {
    "train_cifar10": ("images_classic/train_cifar10", 40, True),
    "val_cifar10": ("images_classic/val_cifar10", 20, True),
    "val_tin": ("images_classic/val_tin", 20, False),
}
LABEL = "searched against surrogate OOD, not real OOD"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Images, a checkpoint, and one run of the command with everything kept."""
    root = tmp_path_factory.mktemp("search")
    write_lists(root / "data", "cifar10", LISTS)
    torch.manual_seed(0)
    torch.save(CifarResNet18().state_dict(), root / "best.ckpt")
    assert run_with_network(root, "--save-readings", str(root / "kept")) == 0
    return root


def run_with_network(root, *more):
    return main([
        "search", "--checkpoint", str(root / "best.ckpt"), "--arch", "resnet18_32x32",
        "--id-data", "cifar10", "--data-root", str(root / "data"), "--n-samples", "20",
        "--held-out", "10", "--restarts", "1", "--out", str(root / "out"), *more,
    ])  # fmt: skip


def again(project, out, *more):
    return main(["search", "--readings", str(project / "kept"), "--out", str(out), *more])


def test_what_is_written(project, monkeypatch):
    out = project / "out"
    assert sorted(p.name for p in out.glob("[!.]*")) == ["landscape.png", "nac.yml", "search.json"]
    config, report = read_config(out / "nac.yml"), json.loads((out / "search.json").read_text())
    # the others are scored on NAC's own readings
    assert set(report["advice"]["auroc"]) == {"NAC", "NAC+", "GEN", "NCI", "fDBD", "KNN"}
    best = report["ranking"][0]
    assert {n: c.to_dict() for n, c in config.layers.items()} == best["layers"]
    assert config.n_samples == 20 and "AUROC" in (out / "nac.yml").read_text()
    assert report["warning"] is None and report["data"]["ood_val"]["name"] == "val_tin"
    assert report["data"]["samples"] == {"fit": 20, "id_val": 20, "ood_val": 20, "held_out": 10}
    assert report["versions"]["torch"] == torch.__version__
    assert len(report["landscape"]) == 3 * 6 * (5 + 11 + 6 + 6)
    for name in ("guard", "fpr95", "fpr95_in"):
        assert all(0 <= p[name] <= 1 for p in report["ranking"] + report["landscape"])
    both = f"FPR@95 {best['fpr95']:.2%} (OOD found) and {best['fpr95_in']:.2%} (ID kept)"
    assert both in (out / "nac.yml").read_text()
    with Image.open(out / "landscape.png") as picture:
        assert picture.size[0] > 1000
    # OpenOOD hands its postprocessor the document as it is
    postprocessor = openood_standin.install(monkeypatch)(
        {**yaml.safe_load((out / "nac.yml").read_text()), "dataset": {"name": "cifar10"}}
    )
    assert not postprocessor.APS_mode


def test_ood_validation_images_in_a_folder(project, tmp_path, capsys):
    """`--ood-val` means what it means in `compare`: the same images, the same readings."""
    folder = project / "data" / "images_classic" / "val_tin"
    kept = tmp_path / "kept"
    options = ["--ood-val", f"mine={folder}", "--save-readings", str(kept), "--out", str(tmp_path)]
    assert run_with_network(project, *options) == 0
    printed = capsys.readouterr().out
    assert "against mine" in printed
    assert "AUROC  OOD found  ID kept  guard  layer bins/O*/alpha/weight state" in printed
    best = json.loads((tmp_path / "search.json").read_text())["ranking"][0]
    (first,) = (line.split() for line in printed.splitlines() if line.split()[:1] == ["1"])
    assert first[1:4] == [f"{best[name]:.2%}" for name in ("auroc", "fpr95", "fpr95_in")]
    assert "FPR@95 (OOD found): the share of ID samples rejected" in printed
    assert "FPR@95 (ID kept): the share of OOD samples accepted" in printed
    found, listed = ReadingSet.load(kept).ood_val, ReadingSet.load(project / "kept").ood_val
    order = sorted(range(20), key=lambda i: f"{i}.png")  # a folder is sorted, the list is not
    assert torch.equal(found["avgpool"].activation, listed["avgpool"].activation[order])


def test_searching_again_needs_neither_network_nor_images(project, tmp_path, capsys):
    assert again(project, tmp_path / "a" / "b", "--restarts", "1") == 0
    printed = capsys.readouterr().out
    assert "against val_tin" in printed and "guard" in printed and "avgpool" in printed
    first, second = ((p / "nac.yml").read_text() for p in (project / "out", tmp_path / "a" / "b"))
    assert first == second
    assert main(["search", "--readings", str(project / "kept" / "fit.safetensors"), "--restarts", "1",
                 "--out", str(tmp_path)]) == 0  # fmt: skip
    assert (tmp_path / "nac.yml").read_text() == first


def test_grid_takes_the_authors_lists(project, tmp_path):
    assert again(project, tmp_path, "--strategy", "grid", "--guard", "none") == 0
    report = json.loads((tmp_path / "search.json").read_text())
    assert report["evaluated"] == 256 and report["settings"]["space"] == "preset"
    options = ["--strategy", "grid", "--guard", "0.5", "--layers", "avgpool"]
    assert again(project, tmp_path, *options) == 0
    assert list(read_config(tmp_path / "nac.yml").layers) == ["avgpool"]


def test_lists_of_the_users_own(project, tmp_path):
    space = tmp_path / "space.yml"
    space.write_text(
        "postprocessor:\n  postprocessor_args:\n    layers: {layer3: {}}\n"
        "  postprocessor_sweep: {layer3: {n_bins: [10, 20], state: [output, gradient]}}\n"
    )
    options = ["--space", str(space), "--layers", "layer3", "--strategy", "random"]
    assert again(project, tmp_path, *options, "--budget-points", "30", "--objective", "mean") == 0
    report = json.loads((tmp_path / "search.json").read_text())
    assert len(report["landscape"]) == 4 and report["settings"]["objective"] == "mean"


def test_without_ood_data_everything_says_so(project, tmp_path, capsys):
    (project / "data" / "benchmark_imglist" / "cifar10" / "val_tin.txt").rename(tmp_path / "gone")
    try:
        code = run_with_network(
            project, "--ood-val", "none", "--save-readings", str(tmp_path / "kept"),
            "--out", str(tmp_path / "one"), "--layers", "layer3", "avgpool", "--held-out", "0",
        )  # fmt: skip
    finally:
        (tmp_path / "gone").rename(project / "data/benchmark_imglist/cifar10/val_tin.txt")
    assert code == 0
    assert again(tmp_path, tmp_path / "two", "--restarts", "1") == 0
    assert capsys.readouterr().out.count(LABEL) == 2
    for out in (tmp_path / "one", tmp_path / "two"):
        assert LABEL in (out / "nac.yml").read_text()
        report = json.loads((out / "search.json").read_text())
        assert report["warning"] == LABEL and report["guard"] is None
        assert "rotated" in report["data"]["ood_val"]["name"]
    # deepest first, in whatever order they were named: the paper's space depends on it
    assert list(ReadingSet.load(tmp_path / "kept").fit) == ["avgpool", "layer3"]


def test_without_matplotlib_only_the_picture_is_lost(project, tmp_path, monkeypatch, capsys):
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert again(project, tmp_path, "--restarts", "1", "--layers", "avgpool") == 0
    assert "pip install 'nac-openood[plot]'" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.glob("[!.]*")) == ["nac.yml", "search.json"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--readings", "nowhere"], "nowhere holds no complete set of readings"),
        (["--readings", "{kept}", "--n-samples", "9"], "--n-samples cannot change readings"),
        (["--readings", "{kept}", "--layers", "x"], r"unknown layer of these readings ['x']; expected one of ['avgpool'"),
        (["--readings", "{kept}", "--space", "x"], "expected 'paper', 'preset' or a YAML file"),
        (["--readings", "{kept}", "--guard", "0.7"], "between 0 and 0.5"),
        (["--readings", "{data}"], "holds no complete set of readings"),
        (["--ood-val", "nowhere"], "val_nowhere.txt"),
        (["--layers", "layer9"], "has no layer 'layer9'"),
        (["--out", "{data}/benchmark_imglist/cifar10/val_tin.txt"], "cannot create the folder"),
    ],
)  # fmt: skip
def test_errors_are_sentences(project, tmp_path, options, message, capsys):
    options = [o.format(kept=project / "kept", data=project / "data") for o in options]
    if "--out" not in options:
        options = ["--out", str(tmp_path), *options]
    saved = "--readings" in options
    assert (main(["search", *options]) if saved else run_with_network(project, *options)) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("[!.]*"))


def test_a_bad_image_is_named(project, tmp_path, capsys):
    image = project / "data" / "images_classic" / "val_cifar10" / "7.png"
    whole = image.read_bytes()
    try:
        image.write_bytes(whole[:60])
        code = run_with_network(
            project, "--save-readings", str(tmp_path), "--layers", "avgpool", "--held-out", "0",
            "--out", str(tmp_path / "out"),
        )  # fmt: skip
    finally:
        image.write_bytes(whole)
    assert code == 1 and "7.png cannot be read" in capsys.readouterr().err
    # what was read before stays, but does not pass for a complete set
    assert sorted(p.name for p in tmp_path.glob("[!.]*")) == ["fit.safetensors", "out"]
    assert main(["search", "--readings", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
