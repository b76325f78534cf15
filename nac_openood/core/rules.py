"""The rules there are, by name. To add one, write a `Rule` and give it a row."""

from __future__ import annotations

from typing import Mapping, Type

from nac_openood.core.coverage import Coverage
from nac_openood.core.plus import NACPlus
from nac_openood.core.rule import Rule
from nac_openood.errors import NACError

RULES: Mapping[str, Type[Rule]] = {rule.name: rule for rule in (Coverage, NACPlus)}


def rule_named(name: str) -> Type[Rule]:
    """The rule, or an error that lists what there is."""
    if name not in list(RULES):
        raise NACError(f"unknown rule {name!r}; expected one of {list(RULES)}.")
    return RULES[name]
