"""A study in a terminal: what is said, what is written, and the exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nac_openood.errors import FileError, NACError

if TYPE_CHECKING:
    from nac_openood.compare.results import Results
    from nac_openood.compare.study import Study


def carry_out(study: Study, **how: Any) -> int:
    """Conduct a study, write its tables and page, show them, and return the exit code."""
    from nac_openood.compare.conduct import conduct
    from nac_openood.compare.results import DOCUMENT, Results

    try:
        results = conduct(study, **how)
    except KeyboardInterrupt:
        if (study.out / DOCUMENT).is_file():
            _publish(Results.load(study.out))
        print(
            f"\nnac-openood: interrupted. What was finished is in {study.out}; run the same "
            "command again and it goes on from there.",
            file=sys.stderr,
        )
        return 130
    _publish(results)
    failed = sorted({row.title for row in results.rows if row.status == "failed"})
    if failed:
        print(f"nac-openood: failed: {', '.join(failed)} (see the table)", file=sys.stderr)
    return 2 if failed else 0


def _publish(results: Results) -> None:
    from nac_openood.compare.results import DOCUMENT
    from nac_openood.report.terminal import summary_table
    from nac_openood.report.write import write_page, write_tables

    print(f"\n{summary_table(results)}\n")
    written = write_tables(results)
    try:
        written.append(write_page(results))
    except FileError:
        raise
    except NACError as error:  # no matplotlib: the page is the only thing that is lost
        print(f"nac-openood: no report.html: {error}", file=sys.stderr)
    names = [DOCUMENT, *(path.name for path in written)]
    print(f"Written to {results.folder}: {', '.join(names)}")


def say(text: str) -> None:
    """A line about what is going on."""
    print(f"- {text}", flush=True)
