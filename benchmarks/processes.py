"""Several processes: how much faster they are, and what happens when one of them is killed.

    python benchmarks/processes.py [--save] [--kills 20] [--sizes 1 2 4]

Throughput: `score_loader` of NAC+ on a ResNet-18 with 32-pixel images, in 1, 2, ... processes of
one thread each, which `torchrun` starts on this machine.

Kills: `nac-openood fit` and `compare` in three processes, one of which is killed (SIGKILL) at a
random moment. The job must end within 30 seconds, with an error, and leave no damaged file: the
detector's file is the old one, bit for bit, and the comparison, run again, ends with the scores of
an undisturbed one.

`--save` writes the figures to benchmarks/processes.json, from which scripts/update_readme.py makes
the tables in docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from own_project import fill

from nac_openood import NACDetector, distributed
from nac_openood.files import write_json
from nac_openood.sources.networks import CifarResNet18

BATCH, IMAGES, RANKS = 50, 600, 3
NETWORK = ("--arch", "net.py:make", "--checkpoint", "net.pt", "--device", "cpu")
DATA = ("--transform", "transform.yml", "--train", "birds/train", "--val", "birds/val")
ALL = (*NETWORK, *DATA, "--test", "birds/test", "--batch-size", "5")
COMMANDS = {
    "fit": ("fit", *ALL, "--out", "detector.nac"),
    "compare": ("compare", *ALL, "--far", "s=stripes", "--methods", "msp", "nac_plus",
                "--out", "compared"),
}  # fmt: skip


# ---- throughput


def score() -> None:
    """Score synthetic images in this process of a job; the first one prints images per second."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = CifarResNet18().eval()
    images = TensorDataset(torch.randn(IMAGES, 3, 32, 32), torch.arange(IMAGES) % 10)
    loader = DataLoader(images, BATCH)
    detector = NACDetector(net, "auto", rule="nac_plus")
    with distributed.joined() as world:
        few = [batch for _, batch in zip(range(4), loader)]
        detector.fit(few, progress=False).calibrate(few, progress=False)
        began = time.perf_counter()
        detector.score_loader(loader, progress=False)
        if world.rank == 0:
            print(json.dumps(IMAGES / (time.perf_counter() - began)))


def throughput(size: int) -> float:
    words = [*_torchrun(size), str(Path(__file__).resolve()), "--score"]
    if size == 1:
        words = [sys.executable, *words[-2:]]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=_environment())
    return float(done.stdout.splitlines()[-1])


# ---- kills


def killed(name: str, place: Path, after: float, rank: int) -> dict[str, Any]:
    """Run a command in three processes and kill one of them after some seconds."""
    job = subprocess.Popen(
        [*_torchrun(RANKS), "-m", "nac_openood", *COMMANDS[name]], cwd=place, env=_environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(after)
    victim = _process_of(job.pid, rank)
    if victim is not None:
        os.kill(victim, signal.SIGKILL)
    began = time.perf_counter()
    try:
        job.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        job.kill()
    return {
        "command": name, "rank": rank, "after": round(after, 2), "was_running": victim is not None,
        "seconds": round(time.perf_counter() - began, 2), "code": job.returncode,
    }  # fmt: skip


def _process_of(parent: int, rank: int) -> Optional[int]:
    """The child of torchrun with this rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"\nPPid:\t{parent}\n" not in (folder / "status").read_text():
                continue
            if f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:  # it has ended
            continue
    return None


def try_kills(number: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        place.mkdir()
        fill(place)
        lasts, whole = {}, {}
        for name, words in COMMANDS.items():
            began = time.perf_counter()
            _run([*_torchrun(RANKS), "-m", "nac_openood", *words], place)
            lasts[name] = time.perf_counter() - began
        whole["fit"] = (place / "detector.nac").read_bytes()
        whole["compare"] = _scores(place)
        while sum(trial["was_running"] for trial in trials) < number:
            name = list(COMMANDS)[len(trials) % 2]
            if name == "compare":
                shutil.rmtree(place / "compared", ignore_errors=True)
            after = draw.uniform(0.2, 0.9) * lasts[name]
            trial = killed(name, place, after, draw.randrange(RANKS))
            trial["intact"] = (place / "detector.nac").read_bytes() == whole["fit"]
            if name == "compare":
                _run([sys.executable, "-m", "nac_openood", *COMMANDS["compare"]], place)
                trial["intact"] &= _equal(_scores(place), whole["compare"])
            trials.append(trial)
            print(trial, flush=True)
    return trials


def _scores(place: Path) -> dict[str, Any]:
    files = (place / "compared").rglob("*.safetensors")
    return {str(path.relative_to(place)): load_file(path) for path in files}


def _equal(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return mine.keys() == theirs.keys() and all(
        torch.equal(tensor, theirs[name][key])
        for name, tensors in mine.items()
        for key, tensor in tensors.items()
    )


def _torchrun(size: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(size),
    ]


def _run(words: list[str], place: Path) -> None:
    subprocess.run(words, cwd=place, env=_environment(), check=True, capture_output=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="write benchmarks/processes.json")
    parser.add_argument("--kills", type=int, default=20, metavar="N")
    parser.add_argument("--sizes", type=int, nargs="+", default=(1, 2, 4), metavar="N")
    parser.add_argument("--score", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.score:
        return score()
    rates = {}
    for size in args.sizes:
        rates[str(size)] = max(throughput(size) for _ in range(2))
        print(f"{size} processes: {rates[str(size)]:.0f} images/s", flush=True)
    found = {"torch": torch.__version__, "cores": os.cpu_count(), "images_per_second": rates}
    found["kills"] = try_kills(args.kills)
    if args.save:
        path = Path(__file__).with_suffix(".json")
        write_json(path, found)
    return None


if __name__ == "__main__":
    main()
