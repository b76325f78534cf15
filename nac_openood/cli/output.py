"""What commands print, in the words of their users.

The library names Python arguments in backticks, as in "pass `skip_bad=True`" or "check
`data_root`". Here they become the options of the running command: --skip-bad, --data-root.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, TextIO

from nac_openood.distributed import is_main
from nac_openood.errors import FileError, NACError

_ARGUMENT = re.compile(r"`([a-z_]+)(?:=([^`]+))?`")
_options: dict[str, argparse.Action] = {}


def speak_for(parser: argparse.ArgumentParser) -> None:
    """Translate what is printed from now on into the options of this command."""
    _options.clear()
    _options.update(options_of(parser))


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a command by the Python argument that each stands for.

    That is its `dest`, which argparse takes from its name (`batch_size` of --batch-size) unless it
    is given.
    """
    return {a.dest: a for a in parser._actions if a.option_strings}


def show(text: str) -> None:
    """Print a result."""
    printable = text.encode("utf-8", "backslashreplace").decode()  # names need not be UTF-8
    print(in_options(printable, _options), flush=True)


def say(text: str) -> None:
    """Print a line about what is going on."""
    show(f"- {text}")


def complain(text: str) -> None:
    """Print an error or a warning to stderr; of several processes, only the first one prints."""
    if is_main():
        print(f"nac-openood: {in_options(text, _options)}", file=sys.stderr, flush=True)


def results_out() -> TextIO:
    """Where a command prints its results, if anybody can read them there."""
    if sys.stdout is None:
        raise NACError("stdout is closed, and results are printed there. Name a file: > FILE.")
    return sys.stdout


def stdout_failed() -> bool:
    """Whether stdout takes no more, e.g. on a full disk; if so, what is left is thrown away.

    For a command that fails: this prints a line.
    """
    try:
        print(flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for the last flush
        os.close(nowhere)
        return True
    return False


def interrupted(out: Path) -> int:
    """Tell how to go on after Ctrl-C, and return the exit code."""
    complain(
        f"interrupted. What was finished is in {out}; run the same command again to continue from "
        "there."
    )
    return 130


def drawn(what: str, write: Callable[[], Sequence[Path]]) -> Sequence[Path]:
    """Write files that need matplotlib; without it, tell so and return none."""
    try:
        return write()
    except FileError:
        raise
    except NACError as error:  # the tables are not lost
        complain(f"no {what}: {error}")
        return []


def show_written(folder: Path, paths: Sequence[Path]) -> None:
    """Tell which files are in the folder now."""
    show(f"Written to {folder}: {', '.join(path.name for path in paths)}")


def say_warnings() -> None:
    """From now on print warnings in one line, each once, without the code that raised them."""
    import warnings

    seen: set[str] = set()

    def tell(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        kind = "" if issubclass(category, UserWarning) else f"{category.__name__}: "
        if f"{kind}{message}" not in seen:
            seen.add(f"{kind}{message}")
            complain(f"warning: {kind}{message}")

    warnings.showwarning = tell


def publish(
    folder: Path,
    text: str,
    write: Callable[[], Sequence[Path]],
    drawing: str,
    draw: Callable[[], Sequence[Path]],
) -> Optional[Path]:
    """Show a result, write its files, and tell which files are in the folder now.

    Args:
        folder: of the files.
        text: what is shown.
        write: writes files.
        drawing: what `draw` writes, in a word.
        draw: writes files that need matplotlib, the page last.

    Returns:
        The page; None without matplotlib.
    """
    show(f"\n{text}\n")
    written = write()
    pictures = drawn(drawing, draw)
    show_written(folder, [*written, *pictures])
    return pictures[-1] if pictures else None


def open_page(page: Optional[Path], wanted: bool) -> None:
    """Open an HTML page in the user's browser, if there is one and the user wants that."""
    import webbrowser

    if wanted and page is not None and not webbrowser.open(page.resolve().as_uri()):
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
