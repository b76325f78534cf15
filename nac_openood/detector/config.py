"""Settings as frozen dataclasses, and YAML in OpenOOD's shape in and out of them.

The spellings of the authors' YAML (`M`, `O`, `sig_alpha`, `method`, `layer_kwargs`, `valid_num`)
are read too. An unknown key is an error: a typo must not silently become a default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import yaml

from nac_openood.core.layer_config import refuse_unknown, whole_number
from nac_openood.core.rules import rule_named
from nac_openood.errors import NACError

#: Find the layers by running the network.
AUTO = "auto"


@dataclass(frozen=True)
class NACConfig:
    """Everything a run needs: the layers, the size of the fitting set and what to search over.

    Args:
        layers: settings by layer name; without any, layers are found automatically.
        n_samples: size of the class-balanced fitting set; None takes all samples.
        search: whether to search hyperparameters (OpenOOD's `APS_mode`).
        sweep: layer -> setting -> the values to try.
        search_in: inside OpenOOD, who searches: `setup` (ours, seconds) or `openood` (its sweep).
        fast: see `NACDetector`.
        rule: one of `nac_openood.core.rules.RULES`; the postprocessor's `name` in a file.
    """

    layers: Mapping[str, Any]
    n_samples: Optional[int] = 1000
    search: bool = False
    sweep: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    search_in: str = "setup"
    fast: bool = False
    rule: str = "nac"

    def __post_init__(self) -> None:
        if self.search_in not in ("setup", "openood"):
            raise NACError(f"search_in must be 'setup' or 'openood', got {self.search_in!r}.")
        if self.n_samples is not None:
            object.__setattr__(self, "n_samples", whole_number("n_samples", self.n_samples, 1))
        for layer, lists in self.sweep.items():
            if layer not in self.layers:
                raise NACError(
                    f"the sweep names layer '{layer}', which is not among {list(self.layers)}."
                )
            for key, values in lists.items():
                for value in values:  # each value must make a valid setting
                    dataclasses.replace(self.layers[layer], **{key: value})

    @property
    def layer_choice(self) -> Union[str, Mapping[str, Any]]:
        """What `NACDetector` takes as `layers`."""
        return self.layers or AUTO

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NACConfig:
        """Read an OpenOOD postprocessor document, ours or the authors'."""
        root = document.get("postprocessor", document)
        if not isinstance(root, Mapping):
            raise NACError("expected a mapping 'postprocessor:' with 'postprocessor_args:' in it.")
        refuse_unknown(
            root, {"name", "APS_mode", "postprocessor_args", "postprocessor_sweep", "layer_kwargs"}
        )
        args = dict(root.get("postprocessor_args") or {})
        theirs = {"valid_num", "layer_names", "test_method"}
        refuse_unknown(args, {"layers", "n_samples", "search_in", "fast", *theirs})
        rule = str(root.get("name", "nac"))
        if args.get("layers") == AUTO:
            n_samples, fast = args.get("n_samples", 1000), bool(args.get("fast", False))
            return cls({}, n_samples, fast=fast, rule=rule_named(rule).name)
        layers = dict(args.get("layers") or root.get("layer_kwargs") or {})
        chosen = [n for n in args.get("layer_names") or layers if n in layers]
        if not chosen:
            raise NACError("the config has no layers: add 'postprocessor_args: layers: ...'.")
        kind = rule_named(rule).layer_settings
        sweep = {
            name: kind.renamed(lists, "sweep setting")
            for name, lists in (root.get("postprocessor_sweep") or {}).items()
            if name in chosen
        }
        return cls(
            layers={name: kind.from_dict(layers[name]) for name in chosen},
            n_samples=args.get("n_samples", args.get("valid_num", 1000)),
            search=bool(root.get("APS_mode", False)),
            sweep=sweep,
            search_in=args.get("search_in", "setup"),
            fast=bool(args.get("fast", False)),
            rule=rule,
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


def read_config(path: Union[str, Path]) -> NACConfig:
    """Read a YAML file.

    Raises:
        NACError: the file is missing or has unknown keys; the message names it.
    """
    path = Path(path)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(document, Mapping):
            raise NACError("expected a YAML mapping.")
        return NACConfig.from_dict(document)
    except FileNotFoundError:
        raise NACError(f"there is no config file {path}.") from None
    except (NACError, yaml.YAMLError) as error:
        raise NACError(f"{path}: {error}") from error
