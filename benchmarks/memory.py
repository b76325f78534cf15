"""Memory of fitting against the number of samples: it should not grow.

    python benchmarks/memory.py [--save] [--samples N ...]

A small network is fitted on streams of 1,000, 10,000 and 100,000 synthetic images, with each rule,
each time in a process of its own; the peak is the kernel's record of resident memory. The size of
what a fit keeps is also computed for ViT-B/16 with the paper's four layers.

`--save` writes the figures to benchmarks/memory.json, from which scripts/update_readme.py makes the
table in docs/scale.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Iterator

import torch
import torchvision
from measured_process import in_a_process
from torch import Tensor, nn

from nac_openood import NACDetector
from nac_openood.benchmark.run.cost import Meter
from nac_openood.core.plus import MAX_SAMPLES, NACPlus
from nac_openood.core.rule import Rule
from nac_openood.detector.config import preset_for
from nac_openood.files import write_json

RULES = {"nac": ["body.3", "pool"], "nac_plus": ["body.1", "body.3"]}
SAMPLES = (1_000, 10_000, 100_000)
_BATCH, _SIDE, _CLASSES = 100, 16, 10


class SmallNet(nn.Module):
    """Two convolutions, 64 and 128 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2), nn.ReLU()
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(128, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(x)).flatten(1))


def stream(n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of synthetic images, made when they are asked for."""
    draw = torch.Generator().manual_seed(0)
    for start in range(0, n, _BATCH):
        images = torch.randn(min(_BATCH, n - start), 3, _SIDE, _SIDE, generator=draw)
        yield images, torch.arange(len(images)) % _CLASSES


def fit(rule: str, n: int) -> dict[str, float]:
    """Peak memory of a fit, and the size of what it keeps; runs in a process of its own."""
    torch.manual_seed(0)
    detector = NACDetector(SmallNet().eval(), RULES[rule], rule=rule)
    with Meter() as meter:
        detector.fit(stream(n), progress=False)
    assert detector.rule_ is not None and detector.rule_.n_samples == n
    return {
        "extra_mb": meter.peak_mb,
        "state_mb": in_memory(detector.rule_) / 1e6,
        "seconds": meter.seconds,
    }


def in_memory(rule: Rule) -> int:
    """Bytes of the tensors that a fitted rule holds; a file leaves out some zeros."""
    if not isinstance(rule, NACPlus):
        return sum(tensor.nbytes for tensor in rule.tensors().values())
    held = (tensor for name, tensor in rule.tensors().items() if name.startswith("held/"))
    return sum(tensor.nbytes for tensor in held) + sum(
        tensor.nbytes
        for evidence in rule.evidence.values()
        for tensor in (
            evidence.counts.counts,
            *((evidence.moments.high, evidence.moments.low) if evidence.moments else ()),
        )
    )


def vit() -> dict[str, Any]:
    """Bytes that a fit of ViT-B/16 keeps, after any number of images, by rule."""
    net = torchvision.models.vit_b_16().eval()
    layers = preset_for(net, "imagenet").layers
    sizes = {}
    for rule in RULES:
        images = torch.randn(10, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        detector = NACDetector(net, layers if rule == "nac" else list(layers), rule=rule)
        fitted = detector.fit([images]).rule_
        assert fitted is not None
        sizes[rule] = in_memory(fitted) / 1e6
        if rule == "nac_plus":  # one of the ten images is set aside, and a thousand will be
            held = sum(t.nbytes for n, t in fitted.tensors().items() if n.startswith("held/"))
            sizes[rule] += (MAX_SAMPLES - 1) * held / 1e6
    return {"layers": list(layers), "state_mb": sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="write benchmarks/memory.json")
    parser.add_argument("--samples", type=int, nargs="+", default=SAMPLES, metavar="N")
    args = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "batch": _BATCH, "fit": {}}
    print("   rule      samples   peak beyond the start   kept by the fit    seconds")
    for rule in RULES:
        found["fit"][rule] = {}
        for n in args.samples:
            row = found["fit"][rule][str(n)] = in_a_process("memory", f"fit({rule!r}, {n})")
            print(
                f"   {rule:9} {n:7,}   {row['extra_mb']:18.1f} MB   {row['state_mb']:12.2f} MB"
                f"   {row['seconds']:8.1f}",
                flush=True,
            )
    found["vit"] = vit()
    for rule, size in found["vit"]["state_mb"].items():
        print(f"   ViT-B/16, {', '.join(found['vit']['layers'])}, {rule}: {size:.1f} MB kept")
    if args.save:
        path = Path(__file__).with_suffix(".json")
        write_json(path, found)


if __name__ == "__main__":
    main()
