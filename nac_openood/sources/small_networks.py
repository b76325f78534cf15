"""Small networks for 32x32 images."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; `stride` divides height and width."""

    def __init__(self, wide_in: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(wide_in, wide, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.shortcut = nn.Sequential()
        if stride != 1 or wide_in != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(wide_in, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet18(nn.Module):
    """ResNet-18 for 32x32 images, with the parameter names of OpenOOD's checkpoints."""

    wide, stride = 64, 1  # of the first convolution

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        wide = self.wide
        self.conv1 = nn.Conv2d(3, wide, 3, self.stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.layer1 = self.stage(wide, wide, 1)
        self.layer2 = self.stage(wide, 2 * wide, 2)
        self.layer3 = self.stage(2 * wide, 4 * wide, 2)
        self.layer4 = self.stage(4 * wide, 8 * wide, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * wide, n_classes)

    @staticmethod
    def stage(wide_in: int, wide: int, stride: int) -> nn.Module:
        """Two blocks, of which the first may halve height and width."""
        return nn.Sequential(ResidualBlock(wide_in, wide, stride), ResidualBlock(wide, wide, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[batch, classes]` of images `[batch, 3, 32, 32]`."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class SmallResNet(CifarResNet18):
    """A ResNet of 300,000 parameters, with one block per stage.

    The first convolution halves height and width: the embedded benchmark's digits have no finer
    detail, and training takes seconds.
    """

    wide, stride = 16, 2
    stage = ResidualBlock

    def __init__(self, n_classes: int = 8) -> None:
        super().__init__(n_classes)


def small_vit(n_classes: int = 8) -> nn.Module:
    """A small torchvision transformer: 16 patches, four blocks of width 64."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=4,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
        num_classes=n_classes,
    )
