"""`nac-openood analyze` as people use it, and image folders of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from openood_tiny import write_benchmark
from PIL import Image
from torchvision.transforms import ToTensor

from nac_openood.cli import main
from nac_openood.sources.networks import build
from nac_openood.sources.sets import own_sets

ARCH = "resnet_embedded"
TO_TENSOR = ToTensor()
CONFIG = """
postprocessor:
  name: nac
  postprocessor_args: {n_samples: 50, layers: {avgpool: {full_count: 5}, layer2: {}}}
"""


def write_images(folder, classes, count):
    rng = np.random.RandomState(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.randint(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data/, a checkpoint and NAC's settings."""
    root = tmp_path_factory.mktemp("place")
    write_benchmark(root / "data")
    torch.manual_seed(0)
    torch.save(build(ARCH, 10).state_dict(), root / "net.ckpt")
    (root / "nac.yml").write_text(CONFIG)
    return root


def listed(place, out, *kinds):
    return [
        "analyze", *kinds, "--id-data", "cifar10", "--data-root", str(place / "data"),
        "--arch", ARCH, "--checkpoint", str(place / "net.ckpt"),
        "--nac-config", str(place / "nac.yml"), "--device", "cpu", "--out", str(out),
    ]  # fmt: skip


def test_tables_figures_and_one_page(place, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    assert main(listed(place, out, "layers")) == 0
    told = capsys.readouterr().out
    assert "Which layers to combine: From the deepest layer alone" in told
    assert "reading test set mnist" in told
    assert main([*listed(place, out, "params", "weighted"), "--steepness", "10", "100"]) == 0
    assert "reading test set" not in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert {f"{k}.{e}" for k in ("layers", "params", "weighted") for e in ("csv", "json")} <= names
    assert {"layers-auroc.svg", "params-bound.svg", "weighted-fpr95.svg"} <= names
    page = (out / "report.html").read_text()
    for section in ("layers", "params", "weighted", "about"):
        assert f'<section id="{section}"' in page
    svg = (out / "layers-auroc.svg").read_text()
    assert svg.startswith("<?xml") and "var(--" not in svg


def test_a_kind_that_fails_leaves_the_others(place, tmp_path, capsys):
    assert main([*listed(place, tmp_path, "layers", "samples"), "--shares", "2"]) == 2
    caught = capsys.readouterr()
    assert "samples: --shares must be above 0 and at most 1" in caught.err
    assert (tmp_path / "layers.json").is_file() and not (tmp_path / "samples.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["layerz", "--embedded"], "unknown kind of analysis ['layerz']; expected some of states"),
        (["layers", "--arch", ARCH], "expected either --id-data or --train"),
        (["layers", "--embedded", "--id-data", "cifar10"], "--embedded has networks and images"),
        (["layers", "--embedded", "--checkpoint", "a.pt"], "--embedded has networks and images"),
        (["layers", "--id-data", "cifar10"], "expected --arch: which network?"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(tmp_path, arguments, told, capsys):
    assert main(["analyze", *arguments, "--out", str(tmp_path)]) == 1
    assert told in capsys.readouterr().err


def test_folders_of_ones_own(place, tmp_path, capsys):
    train = write_images(tmp_path / "birds", [f"class{n}" for n in range(10)], 12)
    far = write_images(tmp_path / "cars", ["any"], 20)
    arguments = [
        "analyze", "layers", "--train", str(train), "--far", f"cars={far}", "--arch", ARCH,
        "--checkpoint", str(place / "net.ckpt"), "--image-size", "32", "--device", "cpu",
        "--nac-config", str(place / "nac.yml"), "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "surrogates" in (tmp_path / "out" / "layers.json").read_text()
    assert "reading test set cars" in capsys.readouterr().out


def test_splits_of_a_folder(tmp_path):
    train = write_images(tmp_path / "birds", ["a", "b"], 20)
    far = write_images(tmp_path / "cars", ["any"], 3)
    sets = own_sets(train, far=[f"cars={far}"], ood_val=f"other={far}", transform=TO_TENSOR)
    parts = [set(given.names) for given in (sets.train, sets.id_val, sets.test)]
    assert [len(part) for part in parts] == [26, 8, 6]
    assert len(set.union(*parts)) == 40
    assert (sets.id_name, sets.n_classes, len(sets.far["cars"])) == ("birds", 2, 3)
    assert len(sets.ood_val) == 3 and set(sets.far["cars"].labels) == {-1}
    own = own_sets(train, val=train, test=train, ood_val="none", transform=TO_TENSOR)
    assert len(own.train) == len(own.test) == 40 and own.ood_val is None
