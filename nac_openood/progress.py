"""Progress of long work: lines of text, and progress bars on a terminal."""

from __future__ import annotations

import warnings
from operator import length_hint
from typing import Any, Callable, Iterable, Iterator, Optional

from nac_openood.distributed import is_main

with warnings.catch_warnings():
    # in a notebook without ipywidgets tqdm warns, and then draws its bars as text, which is fine
    warnings.filterwarnings("ignore", "IProgress not found")
    from tqdm.auto import tqdm

__all__ = ["Say", "bar", "tqdm"]

#: A function that shows a line about the progress, e.g. `print`.
Say = Callable[[str], None]


def bar(loader: Iterable[Any], description: str, progress: Optional[bool]) -> Iterable[Any]:
    """Show a progress bar while iterating; `progress=None` shows it on a terminal only.

    Where several processes work together, only the first one shows the bar.
    """
    hidden = True if not is_main() else None if progress is None else not progress
    return _WithBar(loader, description, hidden)


class _WithBar:
    """A loader with a progress bar.

    Given the loader itself, tqdm would iterate over it twice, and start its workers twice.
    """

    def __init__(self, loader: Iterable[Any], description: str, hidden: Optional[bool]) -> None:
        self.iterable, self._description, self._hidden = loader, description, hidden

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        shown = tqdm(
            total=length_hint(self.iterable) or None, desc=self._description, unit="batch",
            leave=False, disable=self._hidden,
        )  # fmt: skip
        with shown:
            for item in self.iterable:
                yield item
                shown.update()
