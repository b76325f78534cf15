"""A vision transformer that is small enough to be trained in seconds."""

from __future__ import annotations

from torch import nn


def small_vit(n_classes: int = 8) -> nn.Module:
    """A small torchvision transformer for 32x32 images: 16 patches, four blocks of width 64."""
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
