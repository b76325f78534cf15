"""Output of the commands, with the names of options in place of Python arguments.

The messages of the library have Python arguments in backticks, as in "pass `skip_bad=True`" or
"check `data_root`". Here they become options of the running command: --skip-bad, --data-root.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, TextIO

from nac_openood.distributed import is_main
from nac_openood.errors import FileError, NACError

_parser = argparse.ArgumentParser(add_help=False)


def use_options(parser: argparse.ArgumentParser) -> None:
    """Use the options of this command in everything that is printed from now on."""
    global _parser
    _parser = parser


def in_options(text: str, parser: argparse.ArgumentParser) -> str:
    """Replace Python arguments in backticks by options of a command.

    "pass `skip_bad=True`" becomes "pass --skip-bad"; what is not an option stays as it is.
    """
    options: dict[str, Any] = {
        action.dest: action for action in parser._actions if action.option_strings
    }
    options["weights"] = options.get("checkpoint")  # as the library calls it

    def typed(match: re.Match[str]) -> str:
        action, value = options.get(match[1]), match[2]
        if action is None:
            return match[0]
        option = action.option_strings[-1]
        if value is None or (action.nargs == 0 and value == str(action.const)):
            return option
        if action.nargs == 0 or value in ("None", "True", "False"):  # no value of an option
            return match[0]
        words = re.sub(r"[\[\](),'\"]", "", value)
        return f"{option} {words}"

    return re.sub(r"`([a-z_]+)(?:=([^`]+))?`", typed, text)


def show(text: str) -> None:
    """Print a result."""
    print(in_options(_printable(text), _parser), flush=True)


def _printable(text: str) -> str:
    """Text without what is not Unicode and what terminals act on: file names may hold both."""
    safe = re.sub(r"[^\n\t -~\xa0-\U0010ffff]", lambda found: repr(found[0])[1:-1], text)
    return safe.encode("utf-8", "backslashreplace").decode()


def say(text: str) -> None:
    """Print a line about the progress."""
    show(f"- {text}")


def print_error(text: str) -> None:
    """Print an error or a warning to stderr; of several processes, only the first one prints."""
    if is_main():
        message = in_options(_printable(text), _parser)
        print(f"nac-openood: {message}", file=sys.stderr, flush=True)


def results_stream() -> TextIO:
    """The stdout that results are printed to."""
    if sys.stdout is None:
        raise NACError("stdout is closed, and results are printed there. Name a file: > FILE.")
    return sys.stdout


def stdout_failed() -> bool:
    """Whether stdout cannot be written, e.g. on a full disk; the rest of the output is discarded.

    Prints a line, so call it only in a command that fails.
    """
    with suppress(OSError):
        print(flush=True)
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
    return True


def one_line_warnings() -> None:
    """Print warnings on one line from now on, each once, without the code that raised them."""
    import warnings

    print_once = cache(print_error)

    def show_warning(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        kind = "" if issubclass(category, UserWarning) else f"{category.__name__}: "
        print_once(f"warning: {kind}{message}")

    warnings.showwarning = show_warning


def add_figures(
    folder: Path, written: Sequence[Path], draw: Callable[[], Sequence[Path]]
) -> Optional[Path]:
    """Write the files of a result that need matplotlib, and list all of its files.

    Args:
        folder: the folder of the files.
        written: the files that were written already.
        draw: writes files that need matplotlib, the page last.

    Returns:
        The last of the drawn files, usually a page; None without matplotlib.
    """
    drawn: Sequence[Path] = []
    try:
        drawn = draw()
    except FileError:
        raise
    except NACError as error:  # e.g. without matplotlib; the tables are still listed
        print_error(f"no figures: {error}")
    show(f"Written to {folder}: {', '.join(path.name for path in [*written, *drawn])}")
    return drawn[-1] if drawn else None


def open_page(page: Optional[Path], wanted: bool) -> None:
    """Open an HTML page in the user's browser if the user wants that, or say where it is."""
    import webbrowser

    if page is None:
        return
    url = page.resolve().as_uri()
    if not wanted:
        show(f"Open {url}")
    elif not webbrowser.open(url):
        print_error(f"no browser found; open {url} yourself")


def typed_command() -> str:
    """The running command as the user typed it."""
    return shlex.join(["nac-openood", *sys.argv[1:]])
