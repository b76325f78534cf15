"""The shipped settings: one YAML for each benchmark and family of architectures."""

from __future__ import annotations

from pathlib import Path

from nac_openood.config import NACConfig, read_config
from nac_openood.errors import NACError

_PACKAGE = Path(__file__).parent
#: Inside the package in an installed wheel, beside it in a checkout.
CONFIG_ROOT = next(
    (d for d in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if d.is_dir()),
    _PACKAGE / "configs",
)


def presets() -> dict[tuple[str, str], Path]:
    """All shipped files by (benchmark, family), from names like `nac_cifar10_resnet.yml`."""
    files = sorted((CONFIG_ROOT / "postprocessors").glob("nac_*_*.yml"))
    return {(p.stem.split("_")[1], p.stem.split("_")[2]): p for p in files}


def preset(benchmark: str, family: str) -> NACConfig:
    """The settings of `benchmark` for an architecture of `family`."""
    known = presets()
    if (benchmark, family) in known:
        return read_config(known[benchmark, family])
    benchmarks = sorted({b for b, _ in known})
    if benchmark not in benchmarks:
        raise NACError(f"there is no preset '{benchmark}'; there are {benchmarks}.")
    families = sorted(f for b, f in known if b == benchmark)
    raise NACError(
        f"preset '{benchmark}' has settings for {families}, not for '{family}' networks. "
        "Name the layers yourself: layers={'avgpool': LayerConfig(...), ...}."
    )
