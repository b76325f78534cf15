"""Measures time, and peak memory beyond what was in use before."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Sequence

import torch

from nac_openood.detector.batches import as_batch


class Timing(NamedTuple):
    """How long the batches of a dataset took.

    Args:
        batches: samples and seconds of every batch.
        extra: seconds that belong to no batch, e.g. a computation at the end.
    """

    batches: Sequence[tuple[float, float]] = ()
    extra: float = 0.0

    @classmethod
    def read(cls, content: Any) -> Timing:
        """Read a timing from JSON values; raises TypeError or ValueError if they are invalid."""
        batches, extra, *_ = content
        pairs = [(float(samples), float(seconds)) for samples, seconds in batches]
        if any(samples <= 0 for samples, _ in pairs):
            raise ValueError("a batch has at least one sample")
        return cls(pairs, float(extra))

    @classmethod
    def joined(cls, parts: Sequence[Timing]) -> Timing:
        """One timing for several datasets."""
        batches = [batch for part in parts for batch in part.batches]
        return cls(batches, sum(part.extra for part in parts))

    @property
    def measured(self) -> float:
        """The total time in seconds."""
        return self.extra + sum(seconds for _, seconds in self.batches)

    @property
    def typical(self) -> float:
        """The seconds that it would take if every batch were as fast per sample as the median.

        A few disturbed batches then do not matter. Batches are weighted by their samples, so that a
        short last batch hardly counts.
        """
        total = sum(samples for samples, _ in self.batches)
        seen = 0.0
        for rate, samples in sorted((s / n, n) for n, s in self.batches):
            seen += samples
            if seen >= total / 2:
                return self.extra + rate * total
        return self.extra

    def by_workers(self, workers: int) -> Timing:
        """Join as many consecutive batches as there are loading processes.

        These finish several batches at about the same time.
        """
        if not workers:
            return self
        parts = [self.batches[i : i + workers] for i in range(0, len(self.batches), workers)]
        sums = [(sum(n for n, _ in part), sum(s for _, s in part)) for part in parts]
        return Timing(sums, self.extra)


def is_disturbed(*timings: Timing) -> bool:
    """Whether batches took such different times that other programs were probably running."""
    return sum(t.measured for t in timings) > 1.5 * sum(t.typical for t in timings)


class Meter:
    """Measures a `with` block; blocks that measure memory must not be nested.

    On a GPU the peak is PyTorch's own count of allocated memory. On Linux it is the peak of the
    process's resident memory, as the kernel records it; on other systems it is None.

    Args:
        device: where the block computes; None is the CPU.
        memory: whether to measure memory.

    Attributes:
        seconds: how long the block took.
        peak_mb: its peak memory minus the memory at its start, in MB (10**6 bytes).
    """

    def __init__(self, device: Optional[torch.device] = None, *, memory: bool = True) -> None:
        self._gpu = device if device is not None and device.type == "cuda" else None
        self._memory, self.seconds = memory, 0.0
        self.peak_mb: Optional[float] = None

    def __enter__(self) -> Meter:
        if self._gpu:
            torch.cuda.synchronize(self._gpu)
        self._before = self._restart_peak() if self._memory else None
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


class TimedLoader:
    """A loader that records how long its user takes from one batch to the next.

    Args:
        loader: any loader.

    Attributes:
        batches: samples and seconds of every batch: processing it, and loading the next one.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self.batches: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        samples, start = 0, 0.0
        for item in self._loader:
            now = time.perf_counter()
            if samples:
                self.batches.append((samples, now - start))
            samples, start = as_batch(item).size, now
            yield item
        if samples:
            self.batches.append((samples, time.perf_counter() - start))

    def timing(self, meter: Meter) -> Timing:
        """The timing of a block that was measured while the loader was read in it."""
        extra = meter.seconds - sum(seconds for _, seconds in self.batches)
        return Timing(self.batches, extra)
