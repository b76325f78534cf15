"""Measures time, and peak memory beyond what was in use before."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Optional, Sequence

import numpy as np
import torch


def typical_rate(measured: Sequence[tuple[int, float]]) -> float:
    """The median of seconds per sample, so that a few disturbed measurements do not matter.

    Args:
        measured: samples and seconds of each measurement, weighted by its number of samples.
    """
    of_each = np.repeat([s / n for n, s in measured], [n for n, _ in measured])
    return float(np.quantile(of_each, 0.5, method="lower"))


class Meter:
    """Measures a `with` block; blocks must not be nested.

    On a GPU the peak is PyTorch's own count of allocated memory. On Linux it is the peak of the
    process's resident memory, as the kernel records it; on other systems it is None.

    Args:
        device: where the block computes; None is the CPU.

    Attributes:
        seconds: how long the block took.
        peak_mb: its peak memory minus the memory at its start, in MB (10**6 bytes).
    """

    def __init__(self, device: Optional[torch.device] = None) -> None:
        self._gpu = device if device is not None and device.type == "cuda" else None
        self.seconds = 0.0
        self.peak_mb: Optional[float] = None

    def __enter__(self) -> Meter:
        if self._gpu:
            torch.cuda.synchronize(self._gpu)
        self._before = self._restart_peak()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._gpu:
            torch.cuda.synchronize(self._gpu)
        self.seconds = time.perf_counter() - self._start
        if self._before is not None:
            self.peak_mb = max(0, self._peak() - self._before) / 1e6

    def _restart_peak(self) -> Optional[int]:
        """Reset the peak and return the bytes in use, None if the system does not report them."""
        try:
            if self._gpu:
                torch.cuda.reset_peak_memory_stats(self._gpu)
            else:
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            return self._peak()
        except OSError:
            return None

    def _peak(self) -> int:
        """The peak in bytes."""
        if self._gpu:
            return torch.cuda.max_memory_allocated(self._gpu)
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return 1024 * int(re.findall(r"^VmHWM:\s*(\d+) kB$", status, flags=re.MULTILINE)[0])
