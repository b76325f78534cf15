"""Progress bars: on a terminal by default, elsewhere only where asked for."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from tqdm.auto import tqdm


def bar(loader: Iterable[Any], description: str, progress: Optional[bool]) -> Iterable[Any]:
    """Iterate with a bar; `progress=None` leaves it to whether there is a terminal."""
    hidden = None if progress is None else not progress
    return tqdm(loader, desc=description, unit="batch", leave=False, disable=hidden)
