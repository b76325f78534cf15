"""`NACConfig`: the settings of a run, read from and written to YAML in OpenOOD's shape; presets.

The spellings of the authors' YAML (`M`, `O`, `sig_alpha`, `method`, `layer_kwargs`, `valid_num`)
are accepted, too. An unknown key is an error: a typo must not silently become a default. A preset
is such a file for each benchmark and family of architectures.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Type, TypeVar, Union

from torch import nn

from nac_openood.core.layer_config import LayerConfig, LayoutConfig, refuse_unknown, whole_number
from nac_openood.core.rule import Rule, rule_named
from nac_openood.errors import NACError, ProbeError, some
from nac_openood.files import read_text
from nac_openood.network.architectures import Layer, describe, find_layer, recognize, table_layers
from nac_openood.network.auto import auto_layers
from nac_openood.records import parse_yaml

_T = TypeVar("_T")

#: Layer -> setting -> the values to try.
Sweep = Mapping[str, Mapping[str, Sequence[Any]]]

LayerChoice = Union[str, Sequence[str], Mapping[str, Any]]

_PACKAGE = Path(__file__).parents[1]
#: Inside the package in an installed wheel, beside it in a checkout.
CONFIG_ROOT = (_PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent) / "configs"

#: The choice of layers that finds them by running the network.
AUTO = "auto"
#: The sections of an OpenOOD config; whole configs are read, too.
SECTIONS = (
    "postprocessor", "dataset", "ood_dataset", "network", "pipeline", "preprocessor", "trainer",
    "optimizer", "evaluator", "recorder",
)  # fmt: skip


def check_sweep(layers: Mapping[str, Any], sweep: Sweep) -> None:
    """Raise if a sweep has unknown layers or settings, or values that are not valid."""
    refuse_unknown(sweep, layers, "layer in the sweep")
    for layer, lists in sweep.items():
        # readings depend on the layout, so it cannot be searched
        known = [f.name for f in dataclasses.fields(layers[layer]) if f.name != "layout"]
        refuse_unknown(lists, known, f"setting of layer '{layer}' in the sweep")
        for key, values in lists.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                raise NACError(
                    f"layer '{layer}': expected a non-empty list of values for '{key}', got "
                    f"{values!r}."
                )
            for value in values:  # each value must make a valid setting
                dataclasses.replace(layers[layer], **{key: value})


@dataclass(frozen=True)
class NACConfig:
    """Everything a run needs: the layers, the size of the fitting set and what to search over.

    Args:
        layers: settings by layer name; without any, layers are found automatically.
        n_samples: size of the class-balanced fitting set; None takes all samples.
        search: whether to search hyperparameters (OpenOOD's `APS_mode`).
        sweep: the values to try, by layer and setting.
        search_in: inside OpenOOD, what searches: our `setup` (seconds) or `openood`'s sweep.
        fast: see `NACDetector`.
        rule: one of `nac_openood.core.RULES`; the postprocessor's `name` in a file.
    """

    layers: Mapping[str, Any]
    n_samples: Optional[int] = 1000
    search: bool = False
    sweep: Sweep = field(default_factory=dict)
    search_in: str = "setup"
    fast: bool = False
    rule: str = "nac"

    def __post_init__(self) -> None:
        if self.search_in not in ("setup", "openood"):
            raise NACError(f"search_in must be 'setup' or 'openood', got {self.search_in!r}.")
        if self.n_samples is not None:
            object.__setattr__(self, "n_samples", whole_number("n_samples", self.n_samples, 1))
        for name in ("search", "fast"):
            checked_switch(name, getattr(self, name))
        rule_named(self.rule)
        check_sweep(self.layers, self.sweep)

    @property
    def layer_choice(self) -> Union[str, Mapping[str, Any]]:
        """The argument `layers` of `NACDetector`."""
        return self.layers or AUTO

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NACConfig:
        """Make a config from an OpenOOD postprocessor document, ours or the authors'."""
        if "postprocessor" in document:
            refuse_unknown(document, SECTIONS)
        root = _mapping("postprocessor", document.get("postprocessor", document))
        refuse_unknown(
            root, {"name", "APS_mode", "postprocessor_args", "postprocessor_sweep", "layer_kwargs"}
        )
        args = _mapping("postprocessor_args", root.get("postprocessor_args"))
        authors = {"valid_num", "layer_names", "test_method"}
        refuse_unknown(args, {"layers", "n_samples", "search_in", "fast", *authors})
        for names in ("n_samples", "valid_num"), ("layers", "layer_kwargs"):
            if {*args, *root}.issuperset(names):
                raise NACError(f"{' and '.join(names)} are the same setting: give one of them.")
        kind = rule_named(str(root.get("name", "nac")))
        given = args.get("layers") or root.get("layer_kwargs")
        layers = {} if given == AUTO else _mapping("layers", given)
        if not layers and given != AUTO:
            raise NACError(
                "the config has no layers: add 'layers: auto', or settings by layer, under "
                "'postprocessor_args:'."
            )
        used = args.get("layer_names") or list(layers)
        refuse_unknown(dict.fromkeys(map(str, used)), layers, "layer in layer_names")
        swept = _mapping("postprocessor_sweep", root.get("postprocessor_sweep"))
        settings = {n: kind.layer_settings.from_dict(values) for n, values in layers.items()}
        sweep = {n: kind.layer_settings.renamed(v, "sweep setting") for n, v in swept.items()}
        check_sweep(settings, sweep)  # checks layers that are not used, too
        return cls(
            {str(name): settings[str(name)] for name in used},
            n_samples=args.get("n_samples", args.get("valid_num", 1000)),
            search=checked_switch("APS_mode", root.get("APS_mode", False)),
            sweep={name: lists for name, lists in sweep.items() if name in used},
            search_in=args.get("search_in", "setup"),
            fast=args.get("fast", False),
            rule=kind.name,
        )

    def to_dict(self) -> dict[str, Any]:
        """The document that `from_dict` and OpenOOD read."""
        sweep = {name: {k: list(v) for k, v in lists.items()} for name, lists in self.sweep.items()}
        layers = {name: config.to_dict() for name, config in self.layers.items()}
        return {
            "postprocessor": {
                "name": self.rule,
                "APS_mode": self.search,
                "postprocessor_args": {
                    "n_samples": self.n_samples,
                    "search_in": self.search_in,
                    "fast": self.fast,
                    "layers": layers or AUTO,
                },
                "postprocessor_sweep": sweep,
            }
        }


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """The mapping under a key; an empty one for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise NACError(f"expected a mapping under '{name}:', got {value!r}.")
    return {str(key): inner for key, inner in value.items()}  # YAML reads a layer '1' as a number


def checked_switch(name: str, value: Any) -> bool:
    """Return `value` if it is a boolean: the string 'False' would count as true."""
    if not isinstance(value, bool):
        raise NACError(f"{name} must be true or false, without quotes, got {value!r}.")
    return value


def read_config(path: Union[str, Path]) -> NACConfig:
    """Read a YAML file.

    Raises:
        NACError: the file is missing or has unknown keys; the message names it.
    """
    return parsed(path, NACConfig.from_dict)


def parsed(path: Union[str, Path], parse: Callable[[Mapping[str, Any]], _T]) -> _T:
    """Parse the mapping in a YAML file; errors of `parse` name the file, too."""
    text = read_text(path)
    try:
        document = parse_yaml(text)
        if not isinstance(document, Mapping):
            raise NACError("expected a YAML mapping.")
        return parse(document)
    except NACError as error:
        raise NACError(f"{path}: {error}") from error


# -- the argument `layers` of a detector ---------------------------------------------------


def presets(rule: str = "nac") -> dict[tuple[str, str], Path]:
    """The shipped files of a rule by (benchmark, family), e.g. `nac_cifar10_resnet.yml`."""
    files = sorted((CONFIG_ROOT / "postprocessors").glob(f"{rule}_*_*.yml"))
    split = {path: path.stem.rsplit("_", 2) for path in files}
    return {(b, family): path for path, (name, b, family) in split.items() if name == rule}


def preset(benchmark: str, family: str, rule: str = "nac") -> NACConfig:
    """The shipped settings of `benchmark` for networks of `family`."""
    known = presets(rule)
    if (benchmark, family) not in known:
        raise NACError(
            f"there is no preset '{benchmark}' for rule '{rule}' and '{family}' networks; there "
            f"are {sorted(known)}. Pass your own settings: NACDetector(net, {{'avgpool': "
            "LayerConfig(...), ...}), or `nac_config` in a comparison."
        )
    return read_config(known[benchmark, family])


def preset_for(net: nn.Module, benchmark: str, rule: str = "nac") -> NACConfig:
    """The shipped settings of `benchmark` for the architecture of `net`.

    A rule without any shipped settings has automatic layers.

    Raises:
        NACError: there is no such preset; the message says how to pass other settings.
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


def default_rule(layers: LayerChoice) -> str:
    """The rule for these layers: NAC+, or the paper's NAC where they come with its settings."""
    if isinstance(layers, str):
        return "nac_plus" if layers == AUTO else "nac"
    values = layers.values() if isinstance(layers, Mapping) else ()
    return "nac" if any(isinstance(value, LayerConfig) for value in values) else "nac_plus"


def layer_settings(net: nn.Module, layers: LayerChoice, rule: Type[Rule]) -> dict[str, Any]:
    """The settings of each layer by name; empty if layers must be found by running the network.

    They must be for "auto", and for presets of a rule without shipped settings.

    Args:
        net: the network.
        layers: "auto", the name of a preset, a list of layer names (default settings), or a
            mapping of layer names to settings.
        rule: the rule that the settings are for.
    """
    if isinstance(layers, str):
        if layers == AUTO:
            return {}
        known = sorted({benchmark for benchmark, _ in presets()})
        if layers not in known:  # also for rules that have no shipped settings
            aliases = {layer.alias for layer in table_layers(net)}
            is_layer = layers in aliases or layers in dict(net.named_modules())
            hint = f" To read the layer, pass a list: `layers=['{layers}']`." if is_layer else ""
            raise NACError(
                f"there is no preset '{layers}' for rule '{rule.name}'; there are {known}, and "
                f"'{AUTO}', which finds layers by running the network.{hint}"
            )
        return dict(preset_for(net, layers, rule.name).layers)
    if not isinstance(layers, Iterable) or not all(isinstance(name, str) for name in layers):
        given = map(type, layers) if isinstance(layers, Iterable) else [type(layers)]
        raise NACError(
            "expected names of layers, such as ['layer3'], a preset or 'auto'; got "
            f"{some([each.__name__ for each in given])}."
        )
    kind = rule.layer_settings
    settings = dict(layers) if isinstance(layers, Mapping) else {name: kind() for name in layers}
    for name, value in settings.items():
        if not isinstance(value, kind):
            raise NACError(f"layer '{name}': expected a {kind.__name__}, got {value!r}.")
    if not settings:
        raise NACError("no layers given: name at least one, or a preset such as 'cifar10'.")
    return settings


def automatic_settings(net: nn.Module, rule: Type[Rule], x: Any) -> dict[str, Any]:
    """Default settings of the layers found by running `net` on a batch, by module path."""
    found = auto_layers(net, x)
    kind = rule.layer_settings
    layers = found.deepest_first if rule.reads_head_input else found.early
    if kind is LayoutConfig and rule.reads_head_input:
        layers = (*found.early, found.head_input)
    settings = {layer.path: kind(layout=layer.layout) for layer in layers}
    # a network without blocks has no other early layer than the input of the head
    if kind is LayoutConfig and len(settings) > len(found.early):
        path, layout = found.head_input.path, found.head_input.layout
        settings[path] = kind(layout=layout, head_input=True)
    return settings


def locate_layers(net: nn.Module, settings: Mapping[str, Any]) -> dict[str, Layer]:
    """Where in `net` each layer is, by the names in `settings`."""
    found: dict[str, Layer] = {}
    by_path: dict[str, str] = {}
    for name, config in settings.items():
        layer = find_layer(net, name)
        found[name] = Layer(name, layer.path, config.layout) if config.layout else layer
        other = by_path.setdefault(layer.path, name)
        if other != name:  # it would be counted twice in the mean
            raise NACError(f"layers '{other}' and '{name}' are the same module '{layer.path}'.")
    return found
