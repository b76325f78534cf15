"""The shipped settings: one YAML for each benchmark and family of architectures."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from nac_openood.detector.config import NACConfig, read_config
from nac_openood.errors import NACError, ProbeError
from nac_openood.network.architectures import describe, recognize

_PACKAGE = Path(__file__).parents[1]
#: Inside the package in an installed wheel, beside it in a checkout.
CONFIG_ROOT = next(
    (d for d in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if d.is_dir()),
    _PACKAGE / "configs",
)


def presets(rule: str = "nac") -> dict[tuple[str, str], Path]:
    """The shipped files of a rule by (benchmark, family), e.g. `nac_cifar10_resnet.yml`."""
    files = sorted((CONFIG_ROOT / "postprocessors").glob(f"{rule}_*_*.yml"))
    split = {path: path.stem.rsplit("_", 2) for path in files}
    return {(b, family): path for path, (name, b, family) in split.items() if name == rule}


def preset(benchmark: str, family: str, rule: str = "nac") -> NACConfig:
    """The shipped settings of `benchmark` for networks of `family`."""
    known = presets(rule)
    if (benchmark, family) in known:
        return read_config(known[benchmark, family])
    benchmarks = sorted({b for b, _ in known})
    if benchmark not in benchmarks:
        wrong = f"there is no preset '{benchmark}' for rule '{rule}'; there are {benchmarks}."
    else:
        families = sorted(f for b, f in known if b == benchmark)
        wrong = f"preset '{benchmark}' has settings for {families}, not for '{family}' networks."
    raise NACError(
        f"{wrong} Pass your own settings: NACDetector(net, {{'avgpool': LayerConfig(...), ...}}), "
        "or `nac_config` in a comparison."
    )


def preset_for(net: nn.Module, benchmark: str, rule: str = "nac") -> NACConfig:
    """The shipped settings of `benchmark` for the architecture of `net`.

    A rule that needs none has automatic layers.

    Raises:
        NACError: there are none; the message says how to pass other settings.
    """
    if not presets(rule):
        return NACConfig({}, rule=rule)
    row = recognize(net)
    if row is None:
        raise ProbeError(f"preset '{benchmark}' cannot be used: {describe(net)}")
    return preset(benchmark, row[0].family, rule)


def preset_or_auto(net: nn.Module, benchmark: str, rule: str = "nac") -> NACConfig:
    """The shipped settings, or automatic layers with default settings where nothing is shipped."""
    try:
        return preset_for(net, benchmark, rule)
    except NACError:
        return NACConfig({}, rule=rule)
