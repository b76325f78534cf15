"""The version, readable without importing torch."""

from __future__ import annotations

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """The versions of the packages that results depend on."""
    import platform
    from importlib.metadata import version

    import numpy as np
    import torch

    return {
        "nac_openood": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "numpy": np.__version__,
        "scikit-learn": version("scikit-learn"),
        "pillow": version("pillow"),
    }
