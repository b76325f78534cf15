"""A MkDocs hook: the page of the command line, made while the site is built, so never outdated.

`mkdocs.yml` names this file; `make docs` builds the site.
"""

from __future__ import annotations

import os
import re
from typing import Any
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nac_openood.cli import build_parser


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated page to those in docs/."""
    files.append(File.generated(config, "command_line.md", content=command_line()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files of the repository that are not on the site, instead of links to them."""
    link = r"\[([^]]+)\]\((?:\.\./)+((?:benchmarks|notebooks|scripts)/[^)#]+)[^)]*\)"
    markdown = re.sub(link.replace("[^]]+", r"[\w/]+\.md"), r"`\2` in the repository", markdown)
    markdown = re.sub(rf"\({link}\)", r"(\1: `\2` in the repository)", markdown)
    return re.sub(link, r"\1 (`\2` in the repository)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep options such as `--arch` on one line: browsers break lines after hyphens."""
    return re.sub(
        r"(<code>)(--?[a-z][\w-]*)", r'\1<span style="white-space: nowrap">\2</span>', html
    )


def command_line() -> str:
    """The help of `nac-openood` and of each of its commands, as a page."""
    # argparse wraps its text to the width of the terminal, and colors it since Python 3.14.
    with patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}):
        parser, commands = build_parser()
        parts = ["# Command line", _block(parser.format_help())]
        for name, command in commands.items():
            parts += [f"## nac-openood {name}", _block(command.format_help())]
    return "\n\n".join(parts) + "\n"


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
