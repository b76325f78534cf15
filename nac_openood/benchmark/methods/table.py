"""The methods that can be compared, one row each.

Nothing here imports torch, OpenOOD or pytorch-ood, so the command line can list methods quickly.
A new baseline is a row, and an adapter where OpenOOD does not have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

from nac_openood.core.rules import RULES, rule_names, rule_title
from nac_openood.errors import NACError

if TYPE_CHECKING:
    from nac_openood.benchmark.methods.scorer import Scorer

NAC = "nac"
#: Whose baselines run; "auto" takes OpenOOD's where it is installed, else pytorch-ood's.
AUTO_BACKEND, OPENOOD, PYTORCH_OOD = "auto", "openood", "pytorch-ood"
BACKENDS = (AUTO_BACKEND, OPENOOD, PYTORCH_OOD)


class Absent(NACError):
    """A method cannot run here because something is missing; the message says what."""


class Method(NamedTuple):  # not a dataclass, whose import takes half as long as Python's start
    """A method.

    Args:
        name: OpenOOD's name, e.g. "temp_scaling".
        title: the name in tables and figures, e.g. "TempScale".
        paper: the name in the NAC paper's tables; None for a method that is not in them.
        needs: "features" for a method that looks at penultimate features and the linear head only
            (all of them share one pass over the network), or "network".
        uses_train: whether it looks at training data.
        slow: whether the quick demo leaves it out.
        rule: this package implements it: a key of `nac_openood.core.rules.RULES`.
        openood: OpenOOD implements it, under the same name.
        adapter: pytorch-ood implements it: `module:Class` of an `Adapter` in `methods/pytorch_ood`.
        defaults: the adapter's hyperparameters without a search.
        sweep: the values that a search tries, in OpenOOD's order.
        scorer: makes a scorer of your own, for a method that is not in the table.
    """

    name: str
    title: str
    paper: Optional[str] = None
    needs: str = "features"
    uses_train: bool = True
    slow: bool = False
    rule: Optional[str] = None
    openood: bool = False
    adapter: Optional[str] = None
    defaults: Mapping[str, Any] = {}
    sweep: Mapping[str, Sequence[Any]] = {}
    scorer: Optional[Callable[[], Scorer]] = None


def _printed(name: str, title: str, adapter: Optional[str], **more: Any) -> Method:
    """A baseline of the paper's tables, all of which OpenOOD has."""
    return Method(name, title, paper=title, openood=True, adapter=adapter, **more)


# In the paper's order. Defaults and sweeps are those of OpenOOD's configs/postprocessors/*.yml.
_ROWS = (
    _printed("openmax", "OpenMax", "on_logits:OpenMax"),
    _printed("msp", "MSP", "on_logits:MSP", uses_train=False),
    _printed("temp_scaling", "TempScale", "on_logits:TempScaling", uses_train=False),
    _printed(
        "odin", "ODIN", "on_networks:ODIN", needs="network", uses_train=False, slow=True,
        defaults={"temperature": 1000, "noise": 0.0014},
        sweep={"temperature": (1, 10, 100, 1000), "noise": (0.0014, 0.0028)},
    ),
    _printed("mds", "MDS", "on_features:MDS"),
    _printed(
        "mds_ensemble", "MDSEns", "on_networks:MDSEnsemble", needs="network", slow=True,
        defaults={"noise": 0.0014},
    ),
    _printed("rmds", "RMDS", "on_features:RMDS"),
    _printed(
        "gram", "Gram", "gram:Gram", needs="network", slow=True,
        defaults={"powers": [1, 2, 3, 4, 5]},
    ),
    _printed("ebo", "EBO", "on_logits:EBO", uses_train=False, defaults={"temperature": 1}),
    # slow: its discriminator has to be trained first
    _printed("opengan", "OpenGAN", None, uses_train=False, slow=True),
    _printed("gradnorm", "GradNorm", "on_features:GradNorm", uses_train=False),
    _printed(
        "react", "ReAct", "on_features:ReAct", uses_train=False,
        defaults={"percentile": 90}, sweep={"percentile": (85, 90, 95, 99)},
    ),
    _printed("mls", "MLS", "on_logits:MLS", uses_train=False),
    _printed("klm", "KLM", "on_logits:KLM"),
    _printed("vim", "VIM", "on_features:ViM", defaults={"dim": 256}, sweep={"dim": (256, 1000)}),
    _printed(
        "knn", "KNN", "on_features:KNN",
        defaults={"K": 50}, sweep={"K": (50, 100, 200, 500, 1000)},
    ),
    _printed("dice", "DICE", "on_features:DICE", defaults={"p": 90}),
    _printed(
        "rankfeat", "RankFeat", "on_networks:RankFeat", needs="network", uses_train=False,
        slow=True, defaults={"temperature": 1},
    ),
    _printed(
        "ash", "ASH", "on_features:ASH", uses_train=False,
        defaults={"percentile": 90}, sweep={"percentile": (65, 70, 75, 80, 85, 90, 95)},
    ),
    _printed("she", "SHE", "on_features:SHE"),
    _printed(
        "gen", "GEN", "on_logits:GEN", uses_train=False, defaults={"gamma": 0.1, "M": 100},
        sweep={"gamma": (0.01, 0.1, 0.5, 1, 2, 5, 10), "M": (10, 50, 100, 200, 500, 1000)},
    ),
)  # fmt: skip


def _of_rule(name: str, title: str) -> Method:
    return Method(name, title, paper="NAC-UE" if name == NAC else None, needs="network", rule=name)


#: Every method by name: the paper's in its order, then our rules. Rules from outside are found by
#: `chosen_methods`.
METHODS: Mapping[str, Method] = {
    **{method.name: method for method in _ROWS},
    **{name: _of_rule(name, row.title) for name, row in RULES.items()},
}


def chosen_methods(given: Optional[Sequence[Union[str, Method]]] = None) -> list[Method]:
    """The rows of the given names, each once; None gives the whole table.

    Args:
        given: names of the table, and rows of your own.

    Raises:
        NACError: for an unknown name, listing the known ones.
    """
    given = list(METHODS) if given is None else given
    rows, unknown = [], []
    for entry in given:
        if not isinstance(entry, str):
            rows.append(entry)
        elif entry.lower() in METHODS:
            rows.append(METHODS[entry.lower()])
        elif entry in rule_names():
            rows.append(_of_rule(entry, rule_title(entry)))
        else:
            unknown.append(entry)
    if unknown:
        expected = ", ".join(dict.fromkeys([*METHODS, *rule_names()]))
        raise NACError(f"unknown methods {unknown}; expected some of {expected}.")
    found = {row.name: row for row in rows}
    if not found:
        raise NACError("expected at least one method, got none.")
    return list(found.values())
