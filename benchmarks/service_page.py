"""benchmarks/notes/service.md, from the figures of benchmarks/service.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "notes" / "service.md"
_ROWS = {
    "lost": ("requests without an answer", "{:.0f}"),
    "mixed_up": ("requests with the answer to another", "{:.0f}"),
    "p50_ms": ("latency, median, ms", "{:.1f}"),
    "p99_ms": ("latency, 99th percentile, ms", "{:.1f}"),
    "images_per_s": ("images per second", "{:.0f}"),
    "cpu_ms_per_image": ("processor time of the service per image, ms", "{:.2f}"),
    "images_per_batch": ("images per pass over the network", "{:.1f}"),
}


def page(found: dict[str, Any]) -> str:
    """The page in Markdown."""
    about, load, hostile = found["about"], found["load"], found["hostile"]
    n = load["nac"]["requests"]
    lines = [
        "# The HTTP service, measured", "",
        "Written by `python benchmarks/service.py --save`. "
        "[deploy.md](../../docs/deploy.md#http-service) describes the service.", "",
        f"{n:,} requests with one 32x32 image each, from {about['clients']} clients on kept "
        f"connections over loopback, on a machine with {about['cores']} cores that the clients "
        f"share. The network is `{about['arch']}` of the embedded benchmark on one thread; the "
        "same service without NAC+ returns its softmax. The right answer to every request was "
        "known in advance. The network is small, so that the fixed cost of HTTP weighs more "
        "than usual. Before the run, the load average of the machine was "
        f"{about['load_average_before']:.1f}; other work makes times longer.", "",
        "| | NAC+ | the network alone |", "| --- | ---: | ---: |",
    ]  # fmt: skip
    for name, (told, form) in _ROWS.items():
        values = (form.format(load[kind][name]) for kind in ("nac", "plain"))
        lines.append(f"| {told} | {' | '.join(values)} |")
    lines += [
        "",
        "Hostile requests, all of a kind at the same time, with a time-out of 5 s; memory is the "
        "peak of the service's process above what it took before:",
        "",
        "| requests | number | answers | memory, MB |",
        "| --- | ---: | --- | ---: |",
    ]
    for name, row in hostile.items():
        answers = ", ".join(
            f"{n} x {'none' if s == '0' else s}" for s, n in row["statuses"].items()
        )
        lines.append(f"| {name} | {row['requests']} | {answers} | {max(0.0, row['peak_mb']):.0f} |")
    return "\n".join(lines) + "\n"
