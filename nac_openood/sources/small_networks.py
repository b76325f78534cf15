"""Small networks for 32x32 images."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; `stride` divides height and width."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet18(nn.Module):
    """ResNet-18 for 32x32 images, with the parameter names of OpenOOD's checkpoints."""

    channels, stride = 64, 1  # of the first convolution

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        channels = self.channels
        self.conv1 = nn.Conv2d(3, channels, 3, self.stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1 = self.stage(channels, channels, 1)
        self.layer2 = self.stage(channels, 2 * channels, 2)
        self.layer3 = self.stage(2 * channels, 4 * channels, 2)
        self.layer4 = self.stage(4 * channels, 8 * channels, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * channels, n_classes)

    @staticmethod
    def stage(in_channels: int, channels: int, stride: int) -> nn.Module:
        """Two blocks, of which the first may halve height and width."""
        return nn.Sequential(
            ResidualBlock(in_channels, channels, stride), ResidualBlock(channels, channels, 1)
        )

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

    channels, stride = 16, 2
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
