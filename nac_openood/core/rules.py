"""The table of rules: one row for each rule of this package, and the rules that others register.

Nothing here imports torch, so that the command line can list the rules quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, Type, TypeVar, Union

from nac_openood.errors import NACError, first_line

if TYPE_CHECKING:
    from nac_openood.core.rule import Rule

#: Packages offer rules in this group of entry points, each under the rule's name.
_GROUP = "nac_openood.rules"

_R = TypeVar("_R", bound="Type[Rule]")


class RuleRow(NamedTuple):
    """A rule.

    Args:
        title: its name in tables and figures.
        home: the class, or "module:class", which is imported when the rule is first used.
    """

    title: str
    home: Union[str, Type[Rule]]


RULES: dict[str, RuleRow] = {
    "nac": RuleRow("NAC", "nac_openood.core.coverage:Coverage"),
    "nac_plus": RuleRow("NAC+", "nac_openood.core.plus:NACPlus"),
}


def register_rule(rule: _R) -> _R:
    """Make a rule available by its name wherever rules are chosen; also a class decorator.

    Args:
        rule: a subclass of `nac_openood.core.rule.Rule` with a `name` that no other rule has.

    Examples:
        >>> nac_openood.register_rule(MyRule)
        >>> NACDetector(net, "auto", rule="mine").fit(train_loader)
    """
    from nac_openood.core.rule import Rule

    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise NACError(f"expected a subclass of nac_openood.core.rule.Rule, got {rule!r}.")
    name = getattr(rule, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise NACError(f"{rule.__name__}.name must be an identifier such as 'mine', got {name!r}.")
    if name in RULES and isinstance(RULES[name].home, str):
        raise NACError(f"there is a rule '{name}' already: give {rule.__name__} another name.")
    RULES[name] = RuleRow(rule.title or name, rule)
    return rule


def rule_names() -> list[str]:
    """The names of all rules: those of the table, then those that installed packages offer."""
    return list(dict.fromkeys([*RULES, *entry_points(_GROUP)]))


def rule_named(name: str) -> Type[Rule]:
    """The class of a rule.

    Raises:
        NACError: there is no such rule; the message lists those that exist.
    """
    if not isinstance(name, str) or name not in RULES:
        offered = entry_points(_GROUP)
        if not isinstance(name, str) or name not in offered:
            raise NACError(
                f"unknown rule {name!r}; expected one of {rule_names()}. Pass a rule of your own "
                "to `nac_openood.register_rule` first."
            )
        try:
            rule = register_rule(offered[name].load())
        except Exception as error:  # third-party code may raise anything
            raise NACError(f"rule '{name}' cannot be loaded: {first_line(error)}") from error
        if rule.name != name:
            raise NACError(f"the entry point '{name}' is of a rule with the name '{rule.name}'.")
    home = RULES[name].home
    if not isinstance(home, str):
        return home
    module, _, attribute = home.partition(":")
    found: Type[Rule] = getattr(importlib.import_module(module), attribute)
    return found


def rule_title(name: str) -> str:
    """The name of a rule in tables and figures."""
    return RULES[name].title if name in RULES else (rule_named(name).title or name)


def entry_points(group: str) -> dict[str, Any]:
    """The entry points that installed packages offer in a group, by name."""
    from importlib import metadata  # slow to import

    found: Any = metadata.entry_points()
    offered = found.select(group=group) if hasattr(found, "select") else found.get(group, ())
    return {entry.name: entry for entry in offered}
