"""The table of methods that can be compared, and the registration of more.

Nothing here imports torch, OpenOOD or pytorch-ood, so the command line can list methods quickly.
Rules of other packages (`nac_openood.core.rule`) are methods too, without a row in the table.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

from nac_openood.benchmark.methods import OPENOOD, OWN, PYTORCH_OOD
from nac_openood.core import RULES
from nac_openood.errors import NACError, first_line

if TYPE_CHECKING:
    from nac_openood.benchmark.methods.scorer import Scorer

NAC = "nac"
#: Packages offer methods in this group of entry points, each under the method's name.
_GROUP = "nac_openood.methods"


class Absent(NACError):
    """A method cannot run here because something is missing; the message says what."""


class Method(NamedTuple):  # not a dataclass, because `dataclasses` is slow to import
    """A method.

    Args:
        name: OpenOOD's name, e.g. "temp_scaling".
        title: the name in tables and figures, e.g. "TempScale".
        paper: the name in the NAC paper's tables; None for a method that is not in them.
        needs: "features" for a method that uses only penultimate features and the linear head (all
            of them share one pass over the network), or "network".
        uses_train: whether it uses training data.
        slow: whether the quick demo leaves it out.
        rule: name of a rule in `nac_openood.core.RULES`, if this package implements the method.
        backends: what implements it: OpenOOD under the same name, pytorch-ood by the function
            `fit_NAME` in `pytorch_ood.py`, this package by that in `features.py` or `gradients.py`.
        defaults: hyperparameters without a search, except of OpenOOD's implementation.
        sweep: the values that a search tries, in OpenOOD's order.
        scorer: makes your own scorer, for a method that is not in the table.
    """

    name: str
    title: str
    paper: Optional[str] = None
    needs: str = "features"
    uses_train: bool = True
    slow: bool = False
    rule: Optional[str] = None
    backends: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}
    sweep: Mapping[str, Sequence[Any]] = {}
    scorer: Optional[Callable[[], Scorer]] = None


def _baseline(name: str, title: str, **more: Any) -> Method:
    """A baseline of the paper's tables."""
    return Method(name, title, title, **{"backends": (OPENOOD, PYTORCH_OOD), **more})


# In the paper's order. Defaults and sweeps are those of OpenOOD's configs/postprocessors/*.yml.
_BASELINES = (
    _baseline("openmax", "OpenMax"),
    _baseline("msp", "MSP", uses_train=False),
    _baseline("temp_scaling", "TempScale", uses_train=False),
    _baseline(
        "odin", "ODIN", needs="network", uses_train=False, slow=True,
        defaults={"temperature": 1000, "noise": 0.0014},
        sweep={"temperature": (1, 10, 100, 1000), "noise": (0.0014, 0.0028)},
    ),
    _baseline("mds", "MDS"),
    _baseline("mds_ensemble", "MDSEns", needs="network", slow=True, defaults={"noise": 0.0014}),
    _baseline("rmds", "RMDS"),
    _baseline("gram", "Gram", needs="network", slow=True, defaults={"powers": [1, 2, 3, 4, 5]}),
    _baseline("ebo", "EBO", uses_train=False, defaults={"temperature": 1}),
    # slow: its discriminator has to be trained first
    _baseline("opengan", "OpenGAN", backends=(OPENOOD,), uses_train=False, slow=True),
    _baseline("gradnorm", "GradNorm", uses_train=False),
    _baseline(
        "react", "ReAct", uses_train=False,
        defaults={"percentile": 90}, sweep={"percentile": (85, 90, 95, 99)},
    ),
    _baseline("mls", "MLS", uses_train=False),
    _baseline("klm", "KLM"),
    _baseline("vim", "VIM", defaults={"dim": 256}, sweep={"dim": (256, 1000)}),
    _baseline("knn", "KNN", defaults={"K": 50}, sweep={"K": (50, 100, 200, 500, 1000)}),
    _baseline("dice", "DICE", defaults={"p": 90}),
    _baseline(
        "rankfeat", "RankFeat", needs="network", uses_train=False, slow=True,
        defaults={"temperature": 1},
    ),
    _baseline(
        "ash", "ASH", uses_train=False,
        defaults={"percentile": 90}, sweep={"percentile": (65, 70, 75, 80, 85, 90, 95)},
    ),
    _baseline("she", "SHE"),
    _baseline(
        "gen", "GEN", uses_train=False, defaults={"gamma": 0.1, "M": 100},
        sweep={"gamma": (0.01, 0.1, 0.5, 1, 2, 5, 10), "M": (10, 50, 100, 200, 500, 1000)},
    ),
)  # fmt: skip


def _later(name: str, title: str, **more: Any) -> Method:
    """A method that was published after the paper's tables."""
    return Method(name, title, **{"backends": (OPENOOD, OWN), **more})


_PERCENTILES = (60, 65, 70, 75, 80, 85, 90, 95, 99)
_RANGES = tuple((low, high) for low in _PERCENTILES for high in _PERCENTILES if low < high)
#: Later methods by name, which are compared if they are named, as is `"all"` of them.
LATER_METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _later(
            "scale", "SCALE", uses_train=False,
            defaults={"percentile": 85}, sweep={"percentile": (65, 70, 75, 80, 85, 90, 95)},
        ),
        _later(
            "fdbd", "fDBD", defaults={"distance_as_normalizer": True},
            sweep={"distance_as_normalizer": (True, False)},
        ),
        _later(
            "nci", "NCI", defaults={"alpha": 0.0001}, sweep={"alpha": (0.0001, 0.001, 0.01, 0.1)}
        ),
        _later(
            "vra", "VRA", uses_train=False, defaults={"percentile_high": 90, "percentile_low": 10},
            sweep={"percentile_high": (85, 90, 95, 99), "percentile_low": (1, 5, 10, 15)},
        ),
        _later("relation", "Relation", defaults={"pow": 1}, sweep={"pow": (1, 2, 4, 6, 8)}),
        # OpenOOD's takes the first hundredth of training data, which may hold fewer than K samples
        _later("nnguide", "NNGuide", backends=(OWN,), defaults={"K": 100, "alpha": 0.01}),
        _later("mds_pp", "MDS++", backends=(OWN,)),
        _later("rmds_pp", "RMDS++", backends=(OWN,)),
        # OpenOOD's is fitted on ID validation data, with a fixed dimension
        _later(
            "residual", "Residual", backends=(OWN,),
            defaults={"dim": 256}, sweep={"dim": (256, 1000)},
        ),
        _later("cfood", "CFOOD", defaults={"alpha": 0.1, "k": 0.01}),
        # OpenOOD's own cannot be set up: it reads attributes that it does not have
        _later("grood", "GROOD", backends=(OWN,), defaults={"n_noise_samples": 100}),
        # of its authors' 3,600 points, the values of what matters most; their defaults are for one
        # CIFAR-10 network, and far off on others
        _later(
            "weiper", "WeiPer+KLD", backends=(OWN,),
            defaults={
                "n_repeats": 100, "perturbation_distance": 1.8, "n_bins": 100,
                "smoothing": (4, 15), "lambda_1": 2.5, "lambda_2": 0.1,
            },
            sweep={"lambda_1": (0.1, 2.5), "lambda_2": (0.1, 1, 5)},
        ),
        _later(
            "iodin", "i-ODIN", needs="network", uses_train=False, slow=True,
            defaults={"temperature": 1000, "noise": 0.0014},
            sweep={"temperature": (1, 10, 100, 1000), "noise": (0.0014, 0.0028)},
        ),
        *(
            _later(
                name, title, needs="network", uses_train=False, slow=True,
                defaults={
                    "percentile": (75, 85), "num_samples": 5000, "k1": 5, "k2": 1, "lmbda": 10,
                    "o": 0.05,
                },
                sweep={"percentile": _RANGES},
            )
            for name, title in (("adascale_a", "AdaSCALE-A"), ("adascale_l", "AdaSCALE-L"))
        ),
    )
}  # fmt: skip


def _of_rule(name: str, title: str) -> Method:
    return Method(name, title, paper="NAC-UE" if name == NAC else None, needs="network", rule=name)


#: Of NAC+, the former version; compared if it is named.
LATER_METHODS["nac_plus_1"] = _of_rule("nac_plus_1", RULES["nac_plus_1"][0])
#: Without those of users, some of which may have been registered before this was imported.
_OUR_RULES = [name for name, (_, home) in RULES.items() if isinstance(home, str)]
#: The methods of this package by name, the paper's in its order, then the other rules; and those
#: that were passed to `register_method`.
METHODS: dict[str, Method] = {
    **{method.name: method for method in _BASELINES},
    **{n: _of_rule(n, RULES[n][0]) for n in _OUR_RULES if n not in LATER_METHODS},
}
_BUILT_IN = frozenset({*METHODS, *LATER_METHODS})
#: Words that stand for several methods.
SELECTIONS: Mapping[Any, Callable[[Method], bool]] = {
    "paper": lambda method: method.paper is not None,
    "all": lambda method: True,
    "fast": lambda method: not method.slow,
}


def register_method(
    name: str,
    scorer: Callable[[], Scorer],
    *,
    title: Optional[str] = None,
    needs: Optional[str] = None,
    uses_train: bool = True,
) -> Method:
    """Register your own method under a name, as in `compare(methods=["mine"])`.

    Examples:
        >>> nac_openood.register_method("norm", FeatureNorm, title="Norm", needs="features")
        >>> nac_openood.compare(net, ..., methods=["norm", "nac"])

    A package may offer methods without this call: the entry point `norm = my_package:FeatureNorm`
    in the group `nac_openood.methods`.

    Args:
        name: a name that no method of this package has.
        scorer: makes an object with the methods and attributes of
            `nac_openood.benchmark.methods.scorer.Scorer`, usually its class.
        title: the name in tables and figures; None takes the attribute `title` of the class, or
            `name`.
        needs: "features" for a method that uses only penultimate features and the linear head, or
            "network"; None takes the attribute `needs` of the class, or "network".
        uses_train: whether it uses training data.

    Returns:
        Its row of the table.

    Raises:
        NACError: the name belongs to a method of this package, or an argument is wrong.
    """
    if not isinstance(name, str) or not name.isidentifier() or not name.islower():
        raise NACError(f"`name` must be a lowercase identifier such as 'mine', got {name!r}.")
    if name in _BUILT_IN:
        raise NACError(f"there is a method '{name}' already: choose another name.")
    needs = needs or getattr(scorer, "needs", "network")
    if needs not in ("features", "network"):
        raise NACError(f"`needs` must be 'features' or 'network', got {needs!r}.")
    shown = title or str(getattr(scorer, "title", name))
    METHODS[name] = Method(name, shown, needs=needs, uses_train=uses_train, scorer=scorer)
    return METHODS[name]


def chosen_methods(names: Optional[Sequence[Union[str, Method]]] = None) -> list[Method]:
    """The rows of methods by name, without duplicates.

    Args:
        names: names of methods and of rules, also several with commas, your own rows, "paper" (the
            methods in the paper's tables), "all" (the later ones, too) and "fast" (all but the slow
            ones); None takes all of `METHODS`.

    Raises:
        NACError: for an unknown name, listing the known ones.
    """
    rows: list[Method] = []
    chosen = METHODS.values() if names is None else [names] if isinstance(names, str) else names
    parts: list[Any] = [each.split(",") if isinstance(each, str) else [each] for each in chosen]
    for entry in itertools.chain.from_iterable(parts):
        if not isinstance(entry, str):
            rows.append(entry)
        elif entry in SELECTIONS:
            whole = [*METHODS.values(), *LATER_METHODS.values()]
            rows += [row for row in whole if SELECTIONS[entry](row)]
        else:
            rows.append(_method_named(entry))
    found = {row.name: row for row in rows}
    if not found:
        raise NACError("expected at least one method, got none.")
    return list(found.values())


def _method_named(name: str) -> Method:
    known = {**LATER_METHODS, **METHODS}
    if row := known.get(name.lower()):
        if name in RULES and row.rule != name:
            raise NACError(f"'{name}' is a method and a rule of your own: rename the rule.")
        return row
    from nac_openood.core.rule import entry_points, rule_named, rule_names  # imports torch

    if name in rule_names():
        return _of_rule(name, rule_named(name).title or name)
    offered = entry_points(_GROUP)
    if name not in offered:
        rules = [*rule_names(), *offered]
        expected = ", ".join(dict.fromkeys([*METHODS, *LATER_METHODS, *rules, *SELECTIONS]))
        raise NACError(f"unknown method {name!r}; expected one of {expected}.")
    try:
        return register_method(name, offered[name].load())
    except Exception as error:  # another package's code may raise anything
        raise NACError(f"method '{name}' cannot be loaded: {first_line(error)}") from error
