"""A transformer small enough to be trained on the spot."""

from __future__ import annotations

from torchvision.models import VisionTransformer


def small_vit(n_classes: int = 8) -> VisionTransformer:
    """Torchvision's transformer in small, for 32x32 images: 16 patches, four blocks of width 64."""
    return VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=4,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
        num_classes=n_classes,
    )
