"""Peak memory of `nac-openood score` on folders of 1,000 to 100,000 images.

    python benchmarks/score_memory.py [SIZES ...]

Makes small PNG images and a detector for a small network in a temporary folder, then runs the
command as users do, each time in a process of its own. The figures are those in
docs/own_network.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nac_openood.sources.networks import SmallResNet

SIZES = (1_000, 20_000, 100_000)
PER_FOLDER, SIDE, CLASSES = 1_000, 32, 4
COMMAND = [sys.executable, "-m", "nac_openood"]
NETWORK = ["--arch", "net.py:make", "--checkpoint", "net.pt", "--device", "cpu"]


def write_images(folder: Path, first: int, n: int) -> None:
    """Noise around a color of its own for each image, in subfolders of a thousand."""
    for number in range(first, first + n):
        draw = np.random.default_rng(number)
        image = draw.integers(0, 200, 3) + draw.integers(0, 56, (SIDE, SIDE, 3))
        path = folder / f"{number // PER_FOLDER:03}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).save(path, compress_level=1)


def prepare(place: Path) -> None:
    """A network, its transform and a detector for it."""
    torch.manual_seed(0)
    torch.save(SmallResNet(CLASSES).state_dict(), place / "net.pt")
    (place / "net.py").write_text("from nac_openood.sources.networks import SmallResNet as make\n")
    (place / "transform.yml").write_text("mean: [0.5, 0.5, 0.5]\nstd: [0.25, 0.25, 0.25]\n")
    for role, first in (("train", 1_000_000), ("val", 2_000_000)):
        for label in range(CLASSES):
            write_images(place / role / str(label), first + label * 1000, 100)
    fit = [*COMMAND, "fit", *NETWORK, "--transform", "transform.yml", "--train", "train"]
    subprocess.run([*fit, "--val", "val", "--out", "x.nac"], cwd=place, check=True, stdout=-3)


def measured(place: Path, n: int) -> tuple[float, float]:
    """Megabytes at most and seconds of judging the first `n` images."""
    folders = [f"images/{number:03}" for number in range(n // PER_FOLDER)]
    start = time.perf_counter()
    with (place / "out.csv").open("w") as out:
        score = [*COMMAND, "score", "--detector", "x.nac", *NETWORK, *folders]
        child = subprocess.Popen(score, cwd=place, stdout=out)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    lines = len((place / "out.csv").read_text().splitlines())
    if child.returncode or lines != n + 1:
        raise SystemExit(f"exit code {child.returncode}, {lines} lines for {n} images")
    return used.ru_maxrss / 1024, time.perf_counter() - start


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or SIZES
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place)
        made = 0
        for n in sorted(sizes):
            write_images(place / "images", made, n - made)
            made = n
            memory, seconds = measured(place, n)
            print(f"{n:,} images: {memory:.0f} MB at most, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
