"""What commands print, in the words of their users.

The library names Python arguments in backticks, as in "pass `skip_bad=True`" or "check
`data_root`". Here they become the options of the running command: --skip-bad, --data-root.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    from pathlib import Path

_ARGUMENT = re.compile(r"`([a-z_]+)(?:=([^`]+))?`")
_options: dict[str, argparse.Action] = {}


def speak_for(parser: argparse.ArgumentParser) -> None:
    """Translate what is printed from now on into the options of this command.

    An option stands for the Python argument of its `dest`, which argparse takes from its name
    (`batch_size` of --batch-size) unless it is given.
    """
    _options.clear()
    _options.update({a.dest: a for a in parser._actions if a.option_strings})


def show(text: str) -> None:
    """Print a result."""
    print(in_options(text, _options), flush=True)


def say(text: str) -> None:
    """Print a line about what is going on."""
    show(f"- {text}")


def complain(text: str) -> None:
    """Print an error or a warning to stderr."""
    print(f"nac-openood: {in_options(text, _options)}", file=sys.stderr, flush=True)


def open_page(page: Path) -> None:
    """Open an HTML page in the user's browser."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        complain(f"no browser found; open {page} yourself")


def in_options(text: str, options: Mapping[str, argparse.Action]) -> str:
    """Replace Python arguments in backticks by options; what is no option stays as it is.

    Args:
        text: e.g. "pass `skip_bad=True`".
        options: the options of a command by the name of their Python argument.

    Returns:
        E.g. "pass --skip-bad".
    """

    def translated(match: re.Match[str]) -> str:
        action = options.get(match[1])
        given = None if action is None else _with_value(action, match[2])
        return match[0] if given is None else given

    return _ARGUMENT.sub(translated, text)


def _with_value(action: argparse.Action, value: str | None) -> str | None:
    """An option as one types it for a Python value, or None where it cannot be given that value."""
    import ast  # only errors need it

    option = action.option_strings[-1]
    if value is None:
        return option
    try:
        literal = ast.literal_eval(value)
    except (SyntaxError, ValueError):  # a placeholder, such as PATH
        literal = value
    if action.nargs == 0:  # a switch
        return option if literal == action.const else None
    if literal is None or isinstance(literal, bool):
        return None
    words = literal if isinstance(literal, (list, tuple)) else [literal]
    return " ".join([option, *map(str, words)])
