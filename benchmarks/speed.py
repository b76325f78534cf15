"""Speed and memory of the core as ratios, everything measured side by side in one run.

    python benchmarks/speed.py [passes] [memory] [histogram] [bins] [checks] [--save]

(a) passes: scoring time over a plain `inference_mode` forward of the same batch, four layers,
    with reference NAC and with NAC+, which has no backward pass.
    With NAC_AUTHORS_SRC=<a checkout of the authors' repository> and with pytorch-ood installed
    their scoring of the same batch is timed beside ours, for the ResNets.
(b) memory: what scoring the same batches adds to the memory of the process.
(c) histogram: the step from states to scores against the literal broadcast comparison.
(d) bins: fitting time and memory from 50 to 5000 bins.
(e) checks: scoring with and without the checks of the network and of the inputs
    (docs/checks.md), and the time of the former. CPU time, medians.

Each figure is the best of several interleaved rounds; memory is the peak of a process of its own.
`--save` writes them to benchmarks/speed.json, from which scripts/update_readme.py makes the
table in docs/scale.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Callable
from unittest.mock import patch

import torch
import torchvision
from measured_process import in_a_process, memory_mb

from nac_openood import LayerConfig, NACDetector
from nac_openood.core.histogram import Histogram
from nac_openood.files import write_json
from nac_openood.network.checks import InputRange
from nac_openood.network.fingerprint import Watch
from nac_openood.sources.networks import CifarResNet18

LAYERS = ["avgpool", "layer3", "layer2", "layer1"]
#: What is measured: a network, the shape of a batch, and the layers.
CASES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], list[str]]] = {
    "ResNet-18, 32x32, batch 100": (CifarResNet18, (100, 3, 32, 32), LAYERS),
    "ResNet-50, 224x224, batch 16": (torchvision.models.resnet50, (16, 3, 224, 224), LAYERS),
    "ViT-B/16, 224x224, batch 8": (
        torchvision.models.vit_b_16,
        (8, 3, 224, 224),
        ["ln", "block11", "block10", "block9"],
    ),
}
M, O, ALPHA = 50, 50, 100.0


def rounds(
    work: dict[str, Callable[[], object]],
    n: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Best seconds of each piece of work, taken in turns so that noise hits all alike."""
    best = dict.fromkeys(work, float("inf"))
    for turn in range(n + 1):
        for name, run in work.items():
            start = clock()
            run()
            if turn:  # the first warms up
                best[name] = min(best[name], clock() - start)
    return best


def plain(net: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.inference_mode():
        net(x)


def case(title: str) -> tuple[torch.nn.Module, torch.Tensor, list[str]]:
    """A network, a batch, and the paper's four layers, deepest first."""
    torch.manual_seed(0)
    make, shape, layers = CASES[title]
    return make().eval(), torch.randn(shape), layers


def passes() -> dict[str, dict[str, float]]:
    print("(a) scoring with four layers / plain forward   [targets <= 1.6, NAC+ <= 1.05]")
    ratios = {}
    for title in CASES:
        net, x, layers = case(title)
        peers = others(net, x) if layers == LAYERS else {}
        best = rounds({**scoring(net, x, layers), **peers}, n=4)
        print(f"  {title}: plain forward {best['plain forward'] * 1e3:.0f} ms")
        ratios[title] = {name: seconds / best["plain forward"] for name, seconds in best.items()}
        for name, ratio in ratios[title].items():
            print(f"    {name:24} {ratio:6.2f} x")
    return ratios


def scoring(
    net: torch.nn.Module, x: torch.Tensor, layers: list[str]
) -> dict[str, Callable[[], object]]:
    """A plain forward pass and our ways to score a batch, on the device of both."""
    exact = NACDetector(net, layers, rule="nac").fit([x])
    fast = NACDetector(net, layers, rule="nac", fast=True).fit([x])
    plus, plus_1 = (fitted_plus(net, x, rule) for rule in ("nac_plus", "nac_plus_1"))
    deepest = NACDetector(net, layers[:1], rule="nac").fit([x])
    return {
        "plain forward": lambda: plain(net, x),
        "ours, exact": lambda: exact.score(x),
        "ours, fast=True": lambda: fast.score(x),
        "ours, deepest layer only": lambda: deepest.score(x),
        "NAC+": lambda: plus.score(x),
        "NAC+ 1": lambda: plus_1.score(x),
    }


def fitted_plus(net: torch.nn.Module, x: torch.Tensor, rule: str) -> NACDetector:
    return NACDetector(net, "auto", rule=rule).fit([x, x]).calibrate([x] * (1 + 100 // len(x)))


def others(net: torch.nn.Module, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The authors' code and pytorch-ood, where they are."""
    found: dict[str, Callable[[], object]] = {}
    source = os.environ.get("NAC_AUTHORS_SRC")
    if source:
        found["the authors"] = authors_scoring(Path(source), net, x)
    if importlib.util.find_spec("pytorch_ood"):
        from pytorch_ood.detector import NACUE

        modules = [net.get_submodule(name) for name in LAYERS]
        loader = [(x, torch.zeros(len(x), dtype=torch.long))]
        peer = NACUE(net, modules, m_bins=M, alpha=ALPHA, o_star=O)
        peer.fit(loader)
        found["pytorch-ood"] = lambda: peer(x)
    return found


def authors_scoring(source: Path, net: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
    sys.path.insert(0, str(source / "openood" / "postprocessors"))
    from nac.coverage import KMNC, make_layer_size_dict
    from nac.utils import avg_pooling

    def pool(s: torch.Tensor, method: str = "avg") -> torch.Tensor:
        return avg_pooling(s, pooling_method=method)

    sizes = make_layer_size_dict(net, LAYERS, input_shape=x[:3].shape, spatial_func=pool)
    hyper = {n: {"M": M, "O": O, "sig_alpha": ALPHA, "method": "sigmoid(o*g_kl)"} for n in LAYERS}
    coverage = KMNC(sizes, hyper=hyper, unpack=lambda b, device: b)
    loader = [(x, torch.zeros(len(x), dtype=torch.long))]
    coverage.assess(net, loader, spatial_func=pool)
    coverage.update()
    return lambda: coverage.assess_ood(net, loader, spatial_func=pool, progress=False)


def scoring_memory(title: str, name: str) -> dict[str, float]:
    """What a way to score a batch adds to the peak memory; runs in a process of its own."""
    net, x, layers = case(title)
    if name == "plain forward":
        run = partial(plain, net, x)
    elif name == "ours, exact":
        run = partial(NACDetector(net, layers, rule="nac").fit([x]).score, x)
    else:
        rule = {"NAC+": "nac_plus", "NAC+ 1": "nac_plus_1"}[name]
        run = partial(fitted_plus(net, x, rule).score, x)
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    run()
    return {"extra_mb": memory_mb("VmHWM") - before}


def memory() -> dict[str, dict[str, float]]:
    """One process each: three differed by at most 0.4 MB.

    glibc must return memory at once, or what is free would hide what scoring takes.
    """
    print("(b) memory that scoring a batch takes, in MB")
    os.environ["MALLOC_TRIM_THRESHOLD_"] = os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    found: dict[str, dict[str, float]] = {}
    for title in CASES:
        print(f"  {title}")
        found[title] = {}
        for name in ("plain forward", "ours, exact", "NAC+", "NAC+ 1"):
            call = f"scoring_memory({title!r}, {name!r})"
            found[title][name] = in_a_process("speed", call)["extra_mb"]
            print(f"    {name:24} {found[title][name]:7.1f}")
    return found


class Literal:
    """Counting and scoring by broadcast comparison, `[batch, bins, neurons]`."""

    def __init__(self, neurons: int, n_bins: int) -> None:
        from nac_openood.core.histogram import edges

        bounds = torch.tensor(edges(n_bins))[:, None].repeat(1, neurons)
        self.low, self.high = bounds[:-1], bounds[1:]
        self.counts = torch.zeros_like(self.low, dtype=torch.float32)

    def inside(self, states: torch.Tensor) -> torch.Tensor:
        return (states[:, None] >= self.low[None]) & (states[:, None] < self.high[None])

    def step(self, states: torch.Tensor) -> torch.Tensor:
        self.counts += self.inside(states).sum(dim=0)
        table = (self.counts / O).clamp(max=1)
        return (self.inside(states) * table[None]).sum(dim=1).mean(dim=1)


def histogram_step(which: str, batch: int = 200, neurons: int = 2048, n_bins: int = 1000) -> dict:
    """Time and extra memory of counting and scoring one batch; runs in a process of its own."""
    states = torch.sigmoid(torch.randn(batch, neurons))
    if which == "literal":
        step = Literal(neurons, n_bins).step
    else:
        ours = Histogram.empty(neurons, n_bins, torch.device("cpu"))

        def step(states: torch.Tensor) -> torch.Tensor:
            ours.update(states)
            return ours.covered(states, O) / (O * neurons)

    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    step(states)
    extra = memory_mb("VmHWM") - before
    seconds = rounds({"step": lambda: step(states)}, n=20 if which == "ours" else 2)["step"]
    return {"seconds": seconds, "extra_mb": extra}


def fit_bins(n_bins: int) -> dict:
    """Time and peak memory of a fit; runs in a process of its own."""
    torch.manual_seed(0)
    net, x = CifarResNet18().eval(), torch.randn(300, 3, 32, 32)
    layers = {name: LayerConfig(n_bins=n_bins) for name in LAYERS}
    work = {"fit": lambda: NACDetector(net, layers, rule="nac", fast=True).fit(x.split(100))}
    seconds = rounds(work, n=3)["fit"]
    return {"seconds": seconds, "peak_mb": memory_mb("VmHWM")}


def histogram() -> dict[str, float]:
    ours, literal = (in_a_process("speed", f"histogram_step({w!r})") for w in ("ours", "literal"))
    print("(c) count and score 200 x 2048 states in 1000 bins   [targets >= 100 x, <= 1/100]")
    print(f"    ours     {ours['seconds'] * 1e3:9.1f} ms {ours['extra_mb']:9.1f} MB extra")
    print(f"    literal  {literal['seconds'] * 1e3:9.1f} ms {literal['extra_mb']:9.1f} MB extra")
    faster, smaller = literal["seconds"] / ours["seconds"], literal["extra_mb"] / ours["extra_mb"]
    print(f"    {faster:.0f} x faster, 1/{smaller:.0f} of the extra memory")
    return {"faster": faster, "smaller": smaller}


def bins() -> dict[str, dict[str, float]]:
    print("(d) fitting, ResNet-18, four layers, 300 images   [flat within 20 %]")
    ratios, first = {}, None
    for n_bins in (50, 500, 5000):
        found = in_a_process("speed", f"fit_bins({n_bins})")
        first = first or found
        time_ratio, memory_ratio = (found[k] / first[k] for k in ("seconds", "peak_mb"))
        ratios[str(n_bins)] = {"time": time_ratio, "memory": memory_ratio}
        print(
            f"    n_bins {n_bins:5}  {found['seconds']:6.2f} s ({time_ratio:.2f} x)"
            f"  {found['peak_mb']:6.0f} MB ({memory_ratio:.2f} x)"
        )
    return ratios


def checks(n: int = 20) -> dict[str, float]:
    def seconds(run: Callable[[], object]) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    print("(e) checks   [targets <= 1.01, 0.2 ms]")
    net, x, found = CifarResNet18().eval(), torch.randn(100, 3, 32, 32), {}
    det = NACDetector(net, LAYERS, rule="nac", fast=True).fit([x])
    ratios = []
    for turn in range(n):
        both = {}
        for checked in (True, False) if turn % 2 else (False, True):  # the second may be warmer
            unlike = InputRange.unlike if checked else lambda known, x: ""
            change = Watch.change if checked else lambda *arguments, **options: ""
            with patch.object(InputRange, "unlike", unlike), patch.object(Watch, "change", change):
                both[checked] = seconds(lambda: det.score(x))
        ratios.append(both[True] / both[False])
    found["ratio"] = statistics.median(ratios)
    print(f"    ResNet-18, batch 100: {found['ratio']:.3f} x without")
    for name, layers in (("resnet50", ["avgpool"]), ("vit_b_16", ["encoder.ln"])):
        net, x = getattr(torchvision.models, name)().eval(), torch.randn(2, 3, 224, 224)
        det = NACDetector(net, layers, rule="nac").fit([x])
        look = partial(det._watch.change, det._reader.structure)
        times = [seconds(look) for _ in range(500)]
        found[name] = statistics.median(times) * 1e3
        print(f"    {name}, {len(list(net.parameters()))} parameters: {found[name]:.3f} ms")
    return found


def main(words: list[str]) -> None:
    parts: dict[str, Callable[[], object]] = {
        "passes": passes,
        "memory": memory,
        "histogram": histogram,
        "bins": bins,
        "checks": checks,
    }
    names = [word for word in words if word != "--save"] or list(parts)
    if set(names) - set(parts):
        sys.exit(f"unknown part in {names}; there are {list(parts)}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    found = {name: parts[name]() for name in names}
    if "--save" in words:
        path = Path(__file__).with_suffix(".json")
        kept = json.loads(path.read_text()) if path.is_file() else {}
        about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        write_json(path, {**kept, **about, **found})


if __name__ == "__main__":
    main(sys.argv[1:])
