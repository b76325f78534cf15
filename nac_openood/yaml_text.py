"""YAML that people write: plain values only, every key once, no tricks with size or depth."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Hashable, Union

import yaml

from nac_openood.errors import NACError, why_unreadable

_MOST_BYTES, _MOST_DEPTH = 2**20, 50
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
#: What YAML reads to the base of 8 or 60: 010 is 8, and 1:30 is 90.
_NOT_DECIMAL = re.compile("[-+]?0[0-9_]|.*:")


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys, aliases (which can grow), merges, deep nesting and odd numbers."""

    _depth = 0

    def compose_node(self, parent: Any, index: int) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark
            raise NACError(f"aliases (*name) are not supported; line {mark.line + 1} has one.")
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise NACError(f"more than {_MOST_DEPTH} levels of nesting.")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        if node.tag in _NUMBERS and _NOT_DECIMAL.match(text):
            line = node.start_mark.line + 1
            raise NACError(f"expected a decimal number in line {line}, got {text}.")
        return text

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in getattr(node, "value", ()):
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            line = key_node.start_mark.line + 1
            if key is not None and key in seen:
                raise NACError(f"the key '{key}' stands twice; the second time in line {line}.")
            if key_node.tag == "tag:yaml.org,2002:merge":  # one of two values would win in silence
                raise NACError(f"merge keys (<<) are not supported; line {line} has one.")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        NACError: what is wrong with it, without the name of the file.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError) as error:  # e.g. a date that does not exist
        raise NACError(f"not valid YAML: {error}") from error


def read_yaml(path: Union[str, Path]) -> Any:
    """The value in a YAML file.

    Raises:
        NACError: the file is missing, unreadable, too large or not valid; the message names it.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise NACError(f"{path} is larger than 1 MB: expected a short YAML file.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NACError(f"there is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise NACError(f"cannot read {path}: {why_unreadable(error)}.") from error
    try:
        return parse_yaml(text)
    except NACError as error:
        raise NACError(f"{path}: {error}") from error
