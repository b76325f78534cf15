"""Cost of NAC-ME, measured side by side with a plain forward pass over the same data.

    python benchmarks/nac_me.py [--save]

(a) passes: `coverage_integral` at the paper's layer over a plain `inference_mode` forward.
(b) search: all settings of a space from stored readings, and one setting, in seconds.

Figures are CPU seconds of one thread, the best of several interleaved rounds, so that other
processes on the machine change them little. `--save` writes them to benchmarks/nac_me.json.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import timm
import torch
import torchvision
from speed import rounds

from nac_openood import coverage_integral
from nac_openood.evaluation.integral import CheckpointReadings
from nac_openood.evaluation.rank import integral_candidates
from nac_openood.files import write_json
from nac_openood.sources.networks import build

LIMIT = 1.5


def plain(net: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.inference_mode():
        for x, _ in batches:
            net(x)


def passes() -> dict[str, float]:
    cases = {
        "ResNet-18, 32x32": (build("resnet18_32x32", 10), 32, 50),
        "ResNet-18, 224x224": (torchvision.models.resnet18(num_classes=7), 224, 8),
        "ResNet-50, 224x224": (torchvision.models.resnet50(num_classes=7), 224, 8),
        "ViT-T/16, 224x224": (timm.create_model("vit_tiny_patch16_224", num_classes=7), 224, 8),
    }
    ratios = {}
    for title, (net, side, size) in cases.items():
        net.eval()
        x = torch.randn(2 * size, 3, side, side)
        with torch.inference_mode():
            y = net(x).argmax(1).clone()
        batches = [(x[:size], y[:size]), (x[size:], y[size:])]
        best = rounds(
            {
                "plain": lambda net=net, batches=batches: plain(net, batches),
                "ours": lambda net=net, batches=batches: coverage_integral(net, batches),
            },
            n=4,
            clock=time.process_time,
        )
        ratios[title] = best["ours"] / best["plain"]
        print(f"  {title:20} {ratios[title]:5.2f} x of {best['plain']:.2f} s   [limit {LIMIT}]")
    return ratios


def search() -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    readings = CheckpointReadings("avgpool", torch.randn(6000, 512, generator=generator), {}, {})
    settings = integral_candidates("pacs")
    best = rounds(
        {
            "one setting": lambda: readings.coverage(settings[:1]),
            f"{len(settings)} settings": lambda: readings.coverage(settings),
        },
        n=3,
        clock=time.process_time,
    )
    for title, seconds in best.items():
        print(f"  6000 samples, 512 neurons, {title}: {seconds:.2f} s")
    return best


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("(a) coverage_integral / plain forward")
    found = {"passes": passes()}
    print("(b) search over stored readings")
    found["search_seconds"] = search()
    if "--save" in sys.argv:
        path = Path(__file__).with_suffix(".json")
        rounded = {k: {n: round(v, 3) for n, v in part.items()} for k, part in found.items()}
        write_json(path, rounded)


if __name__ == "__main__":
    main()
