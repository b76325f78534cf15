"""List files, networks and checkpoints of a benchmark, without OpenOOD."""

from __future__ import annotations

import os
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from PIL import Image
from torch import nn

from nac_openood import NACError
from nac_openood.sources import images as images_module
from nac_openood.sources.image_paths import expand
from nac_openood.sources.imglist import BENCHMARKS, Benchmark, benchmark_named
from nac_openood.sources.networks import build
from nac_openood.sources.readers import listed_images, unlabelled_samples
from nac_openood.sources.samples import problem
from nac_openood.sources.small_networks import CifarResNet18
from nac_openood.sources.transforms import chosen_transform
from nac_openood.sources.weights import load_checkpoint


@pytest.mark.parametrize(("name", "side"), [("cifar10", 32), ("imagenet", 224)])
def test_transform_resizes_crops_and_normalizes(name: str, side: int) -> None:
    row = benchmark_named(name)
    gray = Image.new("RGB", (300, 400), (128, 128, 128))
    out = row.transform()(gray)
    assert out.shape == (3, side, side)
    expected = (128 / 255 - torch.tensor(row.mean)) / torch.tensor(row.std)
    torch.testing.assert_close(out[:, 0, 0], expected)


def test_images_of_any_mode_and_paths_with_odd_characters(tmp_path: Path) -> None:
    Image.new("L", (32, 32), 7).save(tmp_path / "gräy.png")
    Image.new("RGBA", (40, 32), (1, 2, 3, 4)).save(tmp_path / "b.png")
    (tmp_path / "list.txt").write_text("gräy.png 3\n\nb.png -1\n", encoding="utf-8")
    row = BENCHMARKS["cifar10"]
    images = listed_images(tmp_path / "list.txt", tmp_path, row.transform())
    assert [images[i]["label"] for i in range(len(images))] == [3, -1]
    assert all(images[i]["data"].shape == (3, 32, 32) for i in range(2))


def test_a_list_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.png 3\n", encoding="utf-8-sig")
    assert listed_images(tmp_path / "list.txt", tmp_path, lambda image: image).names == ["a.png"]


def test_names_that_are_not_utf8_have_an_identity(tmp_path: Path) -> None:
    for name in (b"a\xff.png", b"a\xfe.png"):
        Image.new("L", (9, 9)).save(tmp_path / os.fsdecode(name))
    images = unlabelled_samples(tmp_path, lambda image: image)
    assert images.without([0]).identity() != images.without([1]).identity()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a.png 1\nb.png\n", "line 2: expected 'path label', got 'b.png'"),
        ("a.png one\n", "line 1: expected 'path label'"),
        ("a.png --5\n", "line 1: expected 'path label', got 'a.png --5'"),
        ("a.png \u00b2\n", "line 1: expected 'path label'"),
        ("a.png 12345678901234567890\n", "line 1: expected 'path label'"),
    ],
)
def test_bad_lists(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.txt").write_text(text, encoding="utf-8")
    with pytest.raises(NACError, match=message):
        listed_images(tmp_path / "list.txt", tmp_path, BENCHMARKS["cifar10"].transform())


def test_a_list_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"caf\xe9.png 1\n")
    with pytest.raises(NACError, match=r"cannot read the list .*: it is not UTF-8 text"):
        listed_images(tmp_path / "list.txt", tmp_path, BENCHMARKS["cifar10"].transform())


def test_a_subfolder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "locked").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    scan = os.scandir

    def refuse(path: Any) -> Any:  # root may read everything, so permissions are no test
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(NACError, match=r"the folder .*locked cannot be read \(Permission denied\)"):
        unlabelled_samples(tmp_path, BENCHMARKS["cifar10"].transform())


def test_networks_by_name() -> None:
    assert build("resnet18_32x32", 7)(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    assert build("squeezenet1_1", 5)(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    pytest.importorskip("timm")
    assert build("timm:resnet10t", 3)(torch.zeros(1, 3, 64, 64)).shape == (1, 3)


def transform_for(arch: str, benchmark: Benchmark, weights: Optional[str] = None) -> Any:
    return chosen_transform("auto", arch, weights, benchmark=benchmark).transform


def test_torchvision_networks_bring_their_transform_on_imagenet() -> None:
    image = Image.new("RGB", (300, 400), (9, 99, 199))
    imagenet = benchmark_named("imagenet")
    assert transform_for("inception_v3", imagenet)(image).shape == (3, 299, 299)
    torch.testing.assert_close(
        transform_for("resnet50", imagenet)(image), imagenet.transform()(image)
    )
    assert transform_for("resnet50", benchmark_named("cifar10"))(image).shape == (3, 32, 32)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {f"module._orig_mod.{k}": v.half() if v.is_floating_point() else v for k, v in s.items()},
    ],
)  # fmt: skip
def test_checkpoints_in_many_wrappings(tmp_path: Path, wrap: Any) -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    torch.save(wrap(net.state_dict()), tmp_path / "x.ckpt")
    other = load_checkpoint(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), tmp_path / "x.ckpt")
    torch.testing.assert_close(other[0].weight, net[0].weight, atol=1e-3, rtol=0)  # type: ignore[index]
    assert not other.training


@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    torch.save({"0.weight": torch.zeros(3, 2), "head.bias": torch.zeros(1)}, path)
    with pytest.raises(NACError, match=r"missing: 0\.bias; unexpected: head\.bias\. Expected"):
        load_checkpoint(nn.Sequential(nn.Linear(2, 3)), path)
    torch.save({}, path)
    with pytest.raises(NACError, match=r"missing: conv1\.weight, .* and 118 more"):
        load_checkpoint(CifarResNet18(), path)
    torch.save({"epoch": 3, "optimizer": {}}, path)
    with pytest.raises(NACError, match="expected a state dict of tensors"):
        load_checkpoint(CifarResNet18(), path)
    torch.save(nn.Linear(1, 1), path)
    with pytest.raises(NACError, match="holds more than tensors.*could run code"):
        load_checkpoint(CifarResNet18(), path)
    for content, told in ((b"", "it is empty"), (b"<html>", "it begins with '<html>'")):
        path.write_bytes(content)
        with pytest.raises(NACError, match=rf"x\.ckpt is .*not a checkpoint \({told}; get the"):
            load_checkpoint(CifarResNet18(), path)
    whole = nn.Linear(2, 3).state_dict()
    for weight in (torch.zeros(3, 2, device="meta"), torch.zeros(3, 2).to_sparse()):
        torch.save({**whole, "weight": weight}, path)
        with pytest.raises(NACError, match="does not fit Linear: without values, or sparse: wei"):
            load_checkpoint(nn.Linear(2, 3), path)
    torch.save({**whole, "module.weight": torch.zeros(3, 2)}, path)
    with pytest.raises(NACError, match="both with and without a prefix: module.weight"):
        load_checkpoint(nn.Linear(2, 3), path)


def test_timm_networks_see_imagenet_as_they_were_trained() -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    gray = Image.new("RGB", (300, 400), (128, 128, 128))
    own = transform_for("timm:vit_base_patch16_224.augreg_in1k", benchmark_named("imagenet"))
    torch.testing.assert_close(own(gray), torch.full((3, 224, 224), (128 / 255 - 0.5) / 0.5))
    ours = transform_for("timm:resnet18", benchmark_named("cifar10"))
    assert ours(gray).shape == (3, 32, 32)


def test_published_weights_bring_their_own_transform() -> None:
    imagenet = benchmark_named("imagenet")
    first, second = (
        transform_for("resnet50", imagenet, f"torchvision:IMAGENET1K_V{v}") for v in (1, 2)
    )
    assert first.resize_size == [256] and second.resize_size == [232]
    assert repr(transform_for("resnet50", imagenet, "best.ckpt")) == repr(first)


def test_sixteen_bits_are_refused_and_not_cut_off(tmp_path: Path) -> None:
    Image.new("I;16", (8, 8), 3000).save(tmp_path / "deep.png")
    images = unlabelled_samples(tmp_path, BENCHMARKS["cifar10"].transform())
    with pytest.raises(NACError, match=r"deep\.png cannot be read \(it has more than 8 bits"):
        images.picture(0)


def test_no_program_is_started_for_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.eps")
    (tmp_path / "photo.eps").rename(tmp_path / "photo.png")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(NACError, match="cannot identify image file"):
        unlabelled_samples(tmp_path, BENCHMARKS["cifar10"].transform()).picture(0)


@pytest.mark.parametrize(("pillow", "opened"), [("12.1.0", False), ("12.1.1", True)])
def test_a_format_that_an_old_pillow_reads_unsafely(
    tmp_path: Path, monkeypatch: Any, pillow: str, opened: bool
) -> None:
    head = struct.pack(">4sH6xHIIHH", b"8BPS", 1, 3, 8, 8, 8, 3)  # version, channels, size, RGB
    (tmp_path / "photo.png").write_bytes(head + bytes(4 + 4 + 4 + 2 + 3 * 8 * 8))
    monkeypatch.setattr("PIL.__version__", pillow)
    uncached = images_module._safe_formats.__wrapped__
    monkeypatch.setattr(images_module, "_safe_formats", uncached)
    images = unlabelled_samples(tmp_path, BENCHMARKS["cifar10"].transform())
    with nullcontext() if opened else pytest.raises(NACError, match="cannot identify image file"):
        assert images.picture(0).size == (8, 8)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pipe.open("r+b", buffering=0) as file:  # or reading it would wait for ever
        file.write(b"x" * 4096)
        assert problem(pipe) == "not a regular file"


def test_a_file_that_cannot_be_looked_up_is_told_about_when_it_is_its_turn() -> None:
    name = "n" * 300
    assert expand([name]) == [name]
    assert "File name too long" in problem(Path(name))
