"""How long a hyperparameter search takes, how much memory it needs, and what the network costs.

Random readings with the widths of ResNet-18: 1,000 fitting, 1,000 ID and 1,000 OOD validation
samples. Prints each number beside its target, and as a ratio what the same sweep costs with a
network pass for every point, extrapolated from a few. Run: python benchmarks/search.py

With --mapped: the authors' sweep for ViT-B/16 with 50,000 fitting samples, readings on disk
(1.2 GB in a temporary folder; Linux only, because it tells mapped from other memory).
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Iterator

import torch
from measured_process import memory_mb
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import NACDetector, Reading, Readings
from nac_openood.detector.config import preset
from nac_openood.search import Budget, SearchResult, search
from nac_openood.sources.networks import CifarResNet18

WIDTHS = {"avgpool": 512, "layer3": 256, "layer2": 128, "layer1": 64}
#: Typical sizes of activation and gradient, so that the paper's steepness values make sense.
SCALES = {"avgpool": (0.5, 0.02), "layer3": (20, 0.02), "layer2": (50, 0.5), "layer1": (100, 1.0)}
SAMPLES = 1000


def random_readings(seed: int, spread: float) -> Readings:
    """Readings with half the neurons near zero, as after a ReLU."""
    draw = torch.Generator().manual_seed(seed)
    layers = {}
    for name, width in WIDTHS.items():
        size, slope = SCALES[name]
        activation = torch.randn(SAMPLES, width, generator=draw).relu() * size
        typical = torch.linspace(-1, 1, width)
        noise = torch.randn(SAMPLES, width, generator=draw)
        layers[name] = Reading(activation, (typical + spread * noise) * slope)
    unknown = torch.full((SAMPLES,), -1)
    return Readings(layers, unknown, unknown)


def timed(**options: object) -> tuple[SearchResult, float]:
    began = time.perf_counter()
    result = search(**options, progress=False)  # type: ignore[arg-type]
    return result, time.perf_counter() - began


def network_seconds(images: int, points: int) -> float:
    """One point of the sweep the authors' way, on `images` of the 1,000 + 2,000, scaled up."""
    net = CifarResNet18()
    data = TensorDataset(torch.randn(images, 3, 32, 32), torch.arange(images) % 10)
    loader = DataLoader(data, batch_size=100)
    began = time.perf_counter()
    for _ in range(points):
        detector = NACDetector(net, "cifar10").fit(loader, progress=False)
        for _ in ("ID validation", "OOD validation"):
            detector.score_loader(loader, progress=False)
    return (time.perf_counter() - began) / points * SAMPLES / images


def vit_parts(samples: int, seed: int) -> Iterator[Readings]:
    """Random readings of ViT-B/16, 1,000 samples at a time."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(samples // SAMPLES):
        layers = {
            name: Reading(*(torch.randn(SAMPLES, 768, generator=draw) * s for s in (1, 0.02)))
            for name in preset("imagenet", "vit").layers
        }
        unknown = torch.full((SAMPLES,), -1)
        yield Readings(layers, unknown, unknown)


def mapped() -> None:
    config = preset("imagenet", "vit")
    with tempfile.TemporaryDirectory() as folder:
        peak = own = memory_mb("RssAnon")

        def watched(parts: Iterator[Readings]) -> Iterator[Readings]:
            nonlocal peak
            for part in parts:
                peak = max(peak, memory_mb("RssAnon"))
                yield part

        sizes = {"fit": 50_000, "id_val": 5_000, "ood_val": 2_000}
        data = {
            role: Readings.save_parts(Path(folder) / role, watched(vit_parts(n, seed)))
            for seed, (role, n) in enumerate(sizes.items())
        }
        on_disk = sum(p.stat().st_size for p in Path(folder).iterdir()) / 2**20
        print(f"readings of ViT-B/16 on disk              {on_disk:8.0f} MB")
        print(f"    most memory while writing             {peak - own:8.0f} MB extra")
        done, peak, before = threading.Event(), 0.0, memory_mb("RssAnon")

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.05):
                peak = max(peak, memory_mb("RssAnon"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        result, seconds = timed(**data, layers=config.layers, sweep=config.sweep, strategy="grid")
        done.set()
        watcher.join()
        print(f"the authors' sweep of {result.evaluated} points           {seconds:8.2f} s")
        print(f"    most memory while searching           {peak - before:8.0f} MB extra")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100, help="images to time the network on")
    parser.add_argument("--points", type=int, default=2, help="points to time the network on")
    parser.add_argument("--mapped", action="store_true", help="large readings on disk instead")
    args = parser.parse_args()
    if args.mapped:
        mapped()
        return
    config = preset("cifar10", "resnet")
    fit, inside, outside = (random_readings(s, spread) for s, spread in ((0, 1), (1, 1), (2, 1.2)))
    held_out = random_readings(3, 1)
    data = {"fit": fit, "id_val": inside, "ood_val": outside, "layers": config.layers}
    print(f"threads {torch.get_num_threads()}, torch {torch.__version__}")

    _, sweep = timed(**data, sweep=config.sweep, strategy="grid")
    print(f"the authors' CIFAR-10 sweep, 256 points   {sweep:8.2f} s     target <= 2 s")
    before = memory_mb("VmHWM")
    whole, seconds = timed(**data, held_out=held_out, strategy="layerwise")
    print(f"the paper's whole space, layerwise, guard {seconds:8.2f} s     target <= 30 s")
    extra = memory_mb("VmHWM") - before
    print(f"    extra memory                          {extra:8.0f} MB    <= 1024 MB")
    print(f"    {whole.evaluated} joint points, AUROC {whole.best.auroc:.4f}")
    budget = Budget(points=100_000)
    drawn, spent = timed(**data, strategy="random", budget=budget, leave_out=False)
    print(
        f"100,000 random joint points of it         {spent:8.2f} s     AUROC {drawn.best.auroc:.4f}"
    )

    each = network_seconds(args.images, args.points)
    print(f"one point with the network (3 x {SAMPLES} images) {each:6.1f} s")
    print(f"256 points that way                       {256 * each:8.0f} s     (extrapolated)")
    ratio = 256 * each / (each + sweep)
    print(f"    / (one pass + the sweep)              {ratio:8.0f} x     >= 100 x")
    print(f"    / the sweep alone, readings at hand   {256 * each / sweep:8.0f} x")


if __name__ == "__main__":
    main()
