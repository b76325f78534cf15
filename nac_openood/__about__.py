"""The version, readable without importing torch."""

from __future__ import annotations

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    import platform
    from importlib.metadata import version

    packages = ("torch", "torchvision", "numpy", "scikit-learn", "pillow")
    return {
        "nac_openood": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }
