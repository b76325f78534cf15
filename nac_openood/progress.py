"""Progress bars: on a terminal by default, elsewhere only where asked for."""

from __future__ import annotations

import warnings
from typing import Any, Iterable, Optional

with warnings.catch_warnings():
    # in a notebook without ipywidgets tqdm warns, and then draws its bars as text, which is fine
    warnings.filterwarnings("ignore", "IProgress not found")
    from tqdm.auto import tqdm

__all__ = ["bar", "tqdm"]


def bar(loader: Iterable[Any], description: str, progress: Optional[bool]) -> Iterable[Any]:
    """Iterate with a bar; `progress=None` leaves it to whether there is a terminal."""
    hidden = None if progress is None else not progress
    return tqdm(loader, desc=description, unit="batch", leave=False, disable=hidden)
