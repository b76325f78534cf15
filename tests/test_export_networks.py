"""Exported networks of all kinds: ONNX Runtime and torch.export give what Python gives."""

import pytest
import timm
import torch
from exported import FORMATS, check_equal, data, fitted, opened
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from nac_openood.detector.export import DetectorProgram
from nac_openood.sources.networks import SmallResNet


def small_resnet():
    return SmallResNet(4)


def torchvision_resnet():
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4)


def timm_vit():
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=4,
    )  # fmt: skip


def check_same_function(detector, images):
    """Before another runtime rounds anything, what is exported is the detector to the last bits."""
    expected = detector.judge(images)
    program = DetectorProgram(detector, alpha=0.05, portable=True)
    with torch.no_grad():
        found = program(images)
    for name in ("score", "p_value"):
        wanted = getattr(expected, name)
        assert torch.allclose(found[name], wanted, rtol=0, atol=1e-12, equal_nan=True), name
    assert torch.equal(found["decision"], expected.out())


@pytest.mark.parametrize(
    ("build", "layers"),
    [
        (small_resnet, ["layer3"]),
        (torchvision_resnet, ["avgpool", "layer2"]),
        (timm_vit, ["blocks.2.norm2"]),
    ],
)
def test_programs_equal_the_detector(build, layers, tmp_path):
    torch.manual_seed(0)
    net = build()
    with torch.no_grad():
        for module in net.modules():  # random weights that tell samples apart
            if isinstance(module, nn.Linear):
                module.weight.mul_(5)
    detector = fitted(net, layers=layers)
    images = torch.cat([x for x, _ in data(60, 2, (3, 32, 32))])
    images[30:] *= 3  # some of them unusual
    images[7, 0, 0, 0] = float("nan")
    check_same_function(detector, images)
    for suffix in FORMATS:
        path = tmp_path / f"detector{suffix}"
        detector.export(path, images[:4])
        program = opened(path)
        check_equal(program(images), detector, images, 0 if suffix == ".pt2" else 1)
        assert len(program(images[:1])["score"]) == 1  # any batch size
