"""NAC on this machine's GPU, as a report to paste into an issue.

    python scripts/gpu_report.py [--openood DIR] [--device cuda] [--out gpu_report.md] [--quick]

1. Counts: the rules learn the same from the same readings on the CPU and on the GPU, to the bit.
2. Speed: scoring time over a plain forward pass of the same batch, as in benchmarks/speed.py, and
   loading from memory with and without pinned memory.
3. With --openood DIR, a folder with OpenOOD's data/ and results/: Tables 1 and 2 of the paper, by
   scripts/table_1_cifar.sh and scripts/table_2_imagenet.sh. This takes hours; run the same command
   again after an interruption to continue. Further options go to `nac-openood compare`.

`--device cpu` tries the script without a GPU; the report says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import NACDetector, files
from nac_openood.benchmark.run.results import Results
from nac_openood.cli.inputs import on_device
from nac_openood.core import RULES
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.errors import NACError
from nac_openood.plugin.doctor import examine_platform
from nac_openood.report.comparison import against_paper
from nac_openood.report.methods import Ranked
from nac_openood.report.render import Content, Document, Section, render_markdown
from nac_openood.sources.networks import CifarResNet18
from nac_openood.tables import Column, Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import speed  # noqa: E402

#: The drivers of the paper's tables, and where below OpenOOD's results/ each leaves its results.
TABLES = {
    "Table 1": ("table_1_cifar.sh", ("table_1/cifar10", "table_1/cifar100")),
    "Table 2": ("table_2_imagenet.sh", ("table_2/resnet50", "table_2/vit_b_16")),
}
Synchronized = Callable[[], float]


class Compared(NamedTuple):
    """What two devices learned from the same readings.

    Args:
        rule: its name.
        numbers: how many integers they counted.
        different: how many of these are different.
        score: the largest difference between two scores.
    """

    rule: str
    numbers: int
    different: int
    score: float


def same_counts(device: torch.device, quick: bool) -> list[Compared]:
    """Fit each rule on the CPU and on the device, on the same readings in other batch sizes."""
    torch.manual_seed(0)
    net = CifarResNet18().eval().to(device)
    images = torch.randn(200, 3, 8, 8) if quick else torch.randn(2000, 3, 32, 32)
    found = []
    for rule in RULES:
        layers = speed.LAYERS if rule == "nac" else speed.LAYERS[1:]
        if rule == "nac_plus":
            head = {speed.LAYERS[0]: LayoutConfig(head_input=True)}
            layers = {**dict.fromkeys(layers, LayoutConfig()), **head}
        reader = NACDetector(net, layers, rule=rule)
        readings = reader.read_loader(images.split(50), progress=False)
        rules = [NACDetector(net, layers, rule=rule)._new_rule() for _ in range(2)]
        for part in readings.batches(64):
            rules[0].update(part)
        for part in readings.batches(200):
            rules[1].update(part.to(device))
        here, there = (one.tensors() for one in rules)
        counted = [name for name, tensor in here.items() if not tensor.is_floating_point()]
        different = sum(unequal(here[n], there[n].cpu()) for n in counted)
        numbers = sum(here[n].numel() for n in counted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # nothing was calibrated here
            mine, theirs = rules[1].score(readings.to(device)).cpu(), rules[0].score(readings)
        found.append(Compared(rule, numbers, different, float((mine - theirs).abs().max())))
    return found


def unequal(mine: torch.Tensor, other: torch.Tensor) -> int:
    """How many numbers are different; all, if there are not as many of them."""
    return int((mine != other).sum()) if mine.shape == other.shape else mine.numel()


def clock_of(device: torch.device) -> Synchronized:
    """A clock that waits until the device has done what was asked of it."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def networks(device: torch.device, quick: bool) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """What is timed: a network and a batch by title."""
    small = 200 if device.type == "cuda" else 100
    large = 64 if device.type == "cuda" else 16
    if quick:
        return {"ResNet-18, 8x8, batch 16": (CifarResNet18(), torch.randn(16, 3, 8, 8))}
    return {
        f"ResNet-18, 32x32, batch {small}": (CifarResNet18(), torch.randn(small, 3, 32, 32)),
        f"ResNet-50, 224x224, batch {large}": (
            torchvision.models.resnet50(),
            torch.randn(large, 3, 224, 224),
        ),
    }


def speed_ratios(device: torch.device, quick: bool) -> dict[str, dict[str, float]]:
    """Seconds of each way to score a batch over those of a plain forward pass, by network."""
    ratios = {}
    for title, (net, x) in networks(device, quick).items():
        net, x = net.eval().to(device), x.to(device)
        half = NACDetector(net, speed.LAYERS, rule="nac", autocast=torch.bfloat16).fit([x])
        work = {
            **speed.scoring(net, x, speed.LAYERS),
            "ours, autocast=bfloat16": lambda d=half, x=x: d.score(x),
        }
        best = speed.rounds(work, n=1 if quick else 10, clock=clock_of(device))
        ratios[title] = {name: seconds / best["plain forward"] for name, seconds in best.items()}
    return ratios


def loop_ratios(device: torch.device, quick: bool) -> dict[str, float]:
    """Seconds of `score_loader` over those of scoring batches that are on the device already."""
    size, images = (4, torch.randn(8, 3, 8, 8)) if quick else (200, torch.randn(4000, 3, 32, 32))
    net = CifarResNet18().eval().to(device)
    there = [x.to(device) for x in images.split(size)]
    detector = NACDetector(net, speed.LAYERS, rule="nac").fit(there[:2])
    data = TensorDataset(images)
    pins = (False, True) if device.type == "cuda" else (False,)
    loaders = {
        f"DataLoader(pin_memory={pin})": DataLoader(data, size, pin_memory=pin) for pin in pins
    }
    work = {
        name: lambda batches=batches: detector.score_loader(batches, progress=False)
        for name, batches in {"on the device": there, **loaders}.items()
    }
    best = speed.rounds(work, n=1 if quick else 5, clock=clock_of(device))
    return {name: seconds / best["on the device"] for name, seconds in best.items()}


def run_table(name: str, openood: Path, device: str, *more: str) -> str:
    """Run the driver of a table; why it failed, or an empty string."""
    script = ROOT / "scripts" / TABLES[name][0]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["bash", str(script), "--device", device, *more],
        cwd=openood, env={**os.environ, "PATH": path}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if not done.returncode:
        return ""
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"{name}: {script.name} ended with exit code {done.returncode}: {last}"


# -- the report ----------------------------------------------------------------------------


def counts_section(found: list[Compared]) -> Section:
    columns = [
        Column("rule", number=False), Column("integers compared"), Column("different"),
        Column("largest difference of a score"),
    ]  # fmt: skip
    rows = [[c.rule, f"{c.numbers:,}", f"{c.different:,}", f"{c.score:.1e}"] for c in found]
    return Section("counts", "CPU and device on the same readings", [Table("", columns, rows)])


def speed_section(ratios: dict[str, dict[str, float]], loop: dict[str, float]) -> Section:
    columns = [Column("", number=False), *(Column(title) for title in ratios)]
    names = next(iter(ratios.values()))
    rows = [[name, *(f"{ratio[name]:.2f} x" for ratio in ratios.values())] for name in names]
    loops = [[name, f"{ratio:.2f} x"] for name, ratio in loop.items()]
    own = [Column("", number=False), Column("")]
    blocks: list[Content] = [
        Table("Scoring a batch over a plain forward pass of it", columns, rows),
        Table("`score_loader`, by where its batches are", own, loops),
    ]
    return Section("speed", "Speed, as ratios", blocks)


def table_sections(name: str, openood: Path, problem: str) -> list[Section]:
    """The measured beside the published numbers of a table, as far as there are results."""
    blocks: list[Content] = [[problem]] if problem else []
    for folder in TABLES[name][1]:
        try:
            results = Results.load(openood / "results" / folder)
        except NACError:
            continue
        section = against_paper(Ranked(results))
        blocks += [f"{results.id_name}, {results.arch}", *section.blocks]
    return [Section(name, f"{name} of the paper", blocks or ["There are no results."])]


def report(device: torch.device, quick: bool, openood: Optional[Path], more: list[str]) -> Document:
    """Measure everything and put it together."""
    compared = same_counts(device, quick)
    sections = [counts_section(compared)]
    sections.append(speed_section(speed_ratios(device, quick), loop_ratios(device, quick)))
    for name in TABLES if openood is not None else ():
        problem = run_table(name, openood, str(device), *more)
        sections += table_sections(name, openood, problem)
    machine = [f"{check.name}: {check.detail}" for check in examine_platform()]
    sections.append(Section("machine", "Machine", [machine]))
    return document(device, compared, openood, sections)


def document(
    device: torch.device, found: list[Compared], openood: Optional[Path], sections: list[Section]
) -> Document:
    equal = all(not c.different for c in found)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"no GPU: {device}"
    notes = [] if device.type == "cuda" else ["This is not a report about a GPU."]
    if openood is None:
        notes.append("Tables 1 and 2 were not run: they need --openood.")
    verdict = "Counts are equal on CPU and device." if equal else "Counts are DIFFERENT."
    return Document("NAC on a GPU", where, verdict, sections, [f"torch {torch.__version__}"], notes)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--openood", type=Path, metavar="DIR", help="has OpenOOD's data and results"
    )
    parser.add_argument("--device", help="default: cuda if there is one")
    parser.add_argument("--out", default="gpu_report.md", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    args, more = parser.parse_known_args(words)
    if more and args.openood is None:  # they would go to the tables
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if args.device is None and not torch.cuda.is_available():
        sys.exit("there is no CUDA device here. `--device cpu` tries the script without one.")
    if args.openood is not None and not args.openood.is_dir():
        parser.error(f"--openood: there is no folder {args.openood}")
    try:
        on_device(nn.Linear(1, 1), args.device)
    except NACError as error:
        parser.error(str(error))
    device = torch.device(args.device or "cuda")
    found = report(device, args.quick, args.openood, more)
    path = files.write_text(Path(args.out), render_markdown(found))
    print(f"{found.verdict} Wrote {path}: paste it into an issue.")
    return 0 if "equal" in found.verdict else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
