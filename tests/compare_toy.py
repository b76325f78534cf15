"""A comparison of a few generated images: a small network, real methods, some that misbehave."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import torch
from conftest import SmallNet
from torch import nn

from nac_openood.benchmark.methods.backends import NACScorer
from nac_openood.benchmark.methods.scorer import MethodInputs, MethodSetup, Scorer
from nac_openood.benchmark.methods.table import LATER_METHODS, METHODS, Method
from nac_openood.benchmark.run.compare import Study
from nac_openood.benchmark.run.results import Results
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.batches import batches
from nac_openood.detector.config import NACConfig
from nac_openood.detector.outcomes import Scores
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.sets import BENCHMARKS, Benchmark, listed_sets

#: With two far-OOD sets instead of four: nothing here depends on their number.
CIFAR10 = replace(BENCHMARKS["cifar10"], far=("mnist", "texture"))
SETTINGS = NACConfig(
    layers={"avgpool": LayerConfig(), "layer2": LayerConfig()},
    n_samples=50,
    sweep={"avgpool": {"full_count": [2, 5]}},
)


class Toy:
    """A scorer: the mean of what it is given, with a knob."""

    implementation = "toy 1"

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign
        self.settings = {"sign": sign}

    def setup(self, inputs: MethodInputs, chosen: Any = None) -> MethodSetup:
        self.net, self.chosen = inputs.net, chosen
        return MethodSetup({"knob": 3} if chosen is None else chosen, {"points": 1})

    def score(self, loader: Any) -> Scores:
        found = [(self.sign * b.data.flatten(1).mean(1), b.labels()) for b in batches(loader)]
        scores, labels = (torch.cat(part).numpy() for part in zip(*found))
        return Scores(scores.astype("float64"), labels, labels)


class Failing(Toy):
    """Raises, in `setup` or at a set of some size."""

    def __init__(self, error: BaseException, where: str = "setup", after: int = 0) -> None:
        super().__init__()
        self.error, self.where, self.after = error, where, after

    def setup(self, inputs: MethodInputs, chosen: Any = None) -> MethodSetup:
        if self.where == "setup":
            raise self.error
        return super().setup(inputs, chosen)

    def score(self, loader: Any) -> Scores:
        if self.where == "score":
            if not self.after:
                raise self.error
            self.after -= 1
        return super().score(loader)


def small_net(_run: Checkpoint) -> nn.Module:
    torch.manual_seed(0)
    return SmallNet(10).eval()


def plain(results: Results) -> tuple[Any, ...]:
    """Everything but times, memory and the folder: rows by method and run, sets, runs, gallery."""
    rows = {
        (row.method, row.run): replace(
            row, setup_seconds=None, ms_per_image=None, peak_mb=None, search=None, disturbed=False
        )
        for row in results.rows
    }
    return rows, results.sets, results.runs, results.gallery


def study(
    data: Path,
    out: Path,
    make: dict[str, Callable[..., Scorer]],
    *,
    full_spectrum: bool = False,
    runs: tuple[str, ...] = ("s0",),
    network: Callable[[Checkpoint], nn.Module] = small_net,
    benchmark: Benchmark = CIFAR10,
    arch: str = "small",
    batch_size: int = 4,
    **more: Any,
) -> Study:
    sets = listed_sets(benchmark, data, full_spectrum=full_spectrum)
    return Study(
        sets=sets, arch=arch, network=network, out=out,
        methods=tuple({**LATER_METHODS, **METHODS}.get(name, Method(name, name.title())) for name in make),
        runs=tuple(Checkpoint(name, f"{name}.ckpt") for name in runs),
        make=lambda method, _run: make[method.name](), progress=False, batch_size=batch_size, **more,
    )  # fmt: skip


def nac() -> NACScorer:
    return NACScorer(SETTINGS)
