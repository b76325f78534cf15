"""How long something takes, and how much memory beyond what was in use before."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Optional

import torch

_INTERVAL = 0.005
_PAGE = 4096


class Meter:
    """Measures a `with` block.

    On a GPU the peak is PyTorch's own count of allocated memory; on a CPU the resident memory of
    the process, looked at every few milliseconds, and None where the system does not tell.

    Attributes:
        seconds: how long the block took.
        peak_mb: its peak beyond the start, in MB (10**6 bytes).
    """

    def __init__(self, device: Optional[torch.device] = None) -> None:
        self.device = device or torch.device("cpu")
        self.seconds = 0.0
        self.peak_mb: Optional[float] = None

    def __enter__(self) -> Meter:
        self._stop = threading.Event()
        self._watcher: Optional[threading.Thread] = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before: Optional[int] = torch.cuda.memory_allocated(self.device)
        else:
            self._before = self._highest = _resident()
            if self._before is not None:
                self._watcher = threading.Thread(target=self._watch, daemon=True)
                self._watcher.start()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self._highest = torch.cuda.max_memory_allocated(self.device)
        self.seconds = time.perf_counter() - self._start
        if self._watcher is not None:
            self._look()
            self._stop.set()
            self._watcher.join()
        if self._before is not None and self._highest is not None:
            self.peak_mb = (self._highest - self._before) / 1e6

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        now = _resident()
        if now is not None and self._highest is not None:
            self._highest = max(self._highest, now)


def _resident() -> Optional[int]:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None
