"""List files, networks, checkpoints and images of a benchmark, without OpenOOD."""

import struct

import pytest
import torch
from PIL import Image
from torch import nn

from nac_openood import NACError
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import build
from nac_openood.sources.readers import listed_images
from nac_openood.sources.samples import problem_of
from nac_openood.sources.sets import BENCHMARKS, benchmark_named
from nac_openood.sources.transforms import chosen_transform

TRANSFORM = BENCHMARKS["cifar10"].transform()
PICTURE = Image.new("RGB", (300, 400), (9, 99, 199))


# ---- lists and images


def test_images_of_any_mode_and_paths_with_odd_characters(tmp_path):
    Image.new("L", (32, 32), 7).save(tmp_path / "gräy.png")
    Image.new("RGBA", (40, 32), (1, 2, 3, 4)).save(tmp_path / "b.png")
    (tmp_path / "list.txt").write_text("gräy.png 3\n\nb.png -1\n", encoding="utf-8-sig")
    images = listed_images(tmp_path / "list.txt", tmp_path, TRANSFORM)
    assert [images[i]["label"] for i in range(len(images))] == [3, -1]
    assert all(images[i]["data"].shape == (3, 32, 32) for i in range(2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"a.png 1\nb.png\n", "line 2: expected 'path label', got 'b.png'"),
        (b"a.png one\n", "line 1: expected 'path label'"),
        ("a.png \u00b2\n".encode(), "line 1: expected 'path label'"),
        (b"caf\xe9.png 1\n", r"cannot read the list .*: it is not UTF-8 text"),
    ],
)
def test_bad_lists(tmp_path, content, message):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(NACError, match=message):
        listed_images(tmp_path / "list.txt", tmp_path, TRANSFORM)


def test_sixteen_bits_are_refused_and_not_cut_off(tmp_path):
    Image.new("I;16", (8, 8), 3000).save(tmp_path / "deep.png")
    assert "more than 8 bits" in problem_of(tmp_path / "deep.png")


@pytest.mark.parametrize("format", ["EPS", "PSD"])
def test_formats_that_pillow_reads_unsafely(tmp_path, monkeypatch, format):
    path = tmp_path / "photo.png"
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("started"))
    if format == "EPS":
        Image.new("RGB", (8, 8)).save(path, "EPS")
    else:  # version, channels, size, RGB
        head = struct.pack(">4sH6xHIIHH", b"8BPS", 1, 3, 8, 8, 8, 3)
        path.write_bytes(head + bytes(4 + 4 + 4 + 2 + 3 * 8 * 8))
    with Image.open(path) as image:
        assert image.format == format
    assert problem_of(path) == "not an image"


# ---- transforms


def transform_for(arch, benchmark, weights=None):
    return chosen_transform("auto", arch, weights, benchmark=benchmark_named(benchmark)).transform


def test_torchvision_networks_bring_their_transform_on_imagenet():
    ours = benchmark_named("imagenet").transform()(PICTURE)
    torch.testing.assert_close(transform_for("resnet50", "imagenet")(PICTURE), ours)
    assert transform_for("resnet50", "cifar10")(PICTURE).shape == (3, 32, 32)
    first, second = (
        transform_for("resnet50", "imagenet", f"torchvision:IMAGENET1K_V{v}") for v in (1, 2)
    )
    assert first.resize_size == [256] and second.resize_size == [232]


def test_timm_networks_see_imagenet_as_they_were_trained():
    own = transform_for("timm:vit_base_patch16_224.augreg_in1k", "imagenet")
    gray = Image.new("RGB", (300, 400), (128, 128, 128))
    torch.testing.assert_close(own(gray), torch.full((3, 224, 224), (128 / 255 - 0.5) / 0.5))
    assert transform_for("timm:resnet18", "cifar10")(gray).shape == (3, 32, 32)
    assert build("timm:resnet10t", 3)(torch.zeros(1, 3, 64, 64)).shape == (1, 3)


# ---- checkpoints


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {f"module._orig_mod.{k}": v.half() if v.is_floating_point() else v for k, v in s.items()},
    ],
)  # fmt: skip
def test_checkpoints_in_many_wrappings(tmp_path, wrap):
    torch.manual_seed(3)
    net, other = (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)) for _ in range(2))
    torch.save(wrap(net.state_dict()), tmp_path / "x.ckpt")
    load_checkpoint(other, tmp_path / "x.ckpt")
    torch.testing.assert_close(other[0].weight, net[0].weight, atol=1e-3, rtol=0)
    assert not other.training


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.zeros(3, 2), "b": torch.zeros(1)}, 'Missing key.*"bias". Unex.*"b". Exp'),
        ({"epoch": 3, "optimizer": {}}, "expected a state dict of tensors"),
        (nn.Linear(1, 1), "holds more than tensors.*could run code"),
        (b"", r"x\.ckpt is damaged or not a checkpoint \(it is empty; get the file"),
        (b"<html>", r"not a checkpoint \(it begins with '<html>'; get the"),
    ],
)
def test_checkpoints_that_do_not_fit(tmp_path, content, message):
    path = tmp_path / "x.ckpt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(NACError, match=message):
        load_checkpoint(nn.Linear(2, 3), path)
