"""Hash scores of NAC and NAC+ on the miniature benchmark, to show that a change left them alone.

    python scripts/score_hashes.py            compare with tests/data/score_hashes.json
    python scripts/score_hashes.py --save     write that file

Bits depend on the processor and on PyTorch, so hashes of another machine say nothing: without a
stored entry for this one, run the script on both sides of a change. Needs the benchmark's folder in
NAC_BENCH.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

from nac_openood import NACDetector
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import CifarResNet18
from nac_openood.sources.sets import BENCHMARKS

HASHES = Path(__file__).parent.parent / "tests" / "data" / "score_hashes.json"
CHECKPOINT = "checkpoints/cifar10_resnet18_32x32_base/s0/best.ckpt"
SETS = ("train_cifar10", "val_cifar10", "val_tin")


def machine() -> str:
    """What the bits of a score depend on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    parts = [torch.__version__, torch.backends.cpu.get_cpu_capability(), platform.machine()]
    return ", ".join([*parts, *models[:1]])


def score_hashes(bench: Path, root: Path) -> dict[str, str]:
    """A hash of scores, p-values and the saved file of each rule, on one thread.

    Args:
        bench: the benchmark's folder.
        root: the folder its images were unpacked to.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            name: _hash(bench, root, layers, rule)
            for name, layers, rule in (
                ("nac", "cifar10", "nac"),
                ("nac_plus", "auto", "nac_plus"),
                ("nac_plus_1", "auto", "nac_plus_1"),
            )
        }
    finally:
        torch.set_num_threads(threads)


def _hash(bench: Path, root: Path, layers: str, rule: str) -> str:
    def loader(name: str, stop: int) -> DataLoader:
        images = BENCHMARKS["cifar10"]
        found = images.images(root, name, images.transform())
        return DataLoader(Subset(found, range(0, len(found), len(found) // stop)), batch_size=50)

    net = load_checkpoint(CifarResNet18(), bench / CHECKPOINT)
    detector = NACDetector(net, layers, rule=rule)
    detector.fit(loader("train_cifar10", 300), progress=False)
    detector.calibrate(loader("val_cifar10", 100), progress=False)
    digest = hashlib.sha256()
    for name in SETS:
        scores = torch.from_numpy(detector.score_loader(loader(name, 100), progress=False).score)
        digest.update(scores.numpy().tobytes())
        digest.update(detector.pvalues_(scores).numpy().tobytes())
    with tempfile.TemporaryDirectory() as folder:
        detector.save(Path(folder, "detector.nac"))
        loaded = NACDetector.load(Path(folder, "detector.nac"), net)
        x = next(iter(loader("val_tin", 100)))["data"]
        digest.update(loaded.score(x).numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    """Compare or save; 1 if a hash differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, help="folder that cifar10-mini.tar was unpacked to")
    parser.add_argument("--save", action="store_true", help="store the hashes for this machine")
    options = parser.parse_args()
    found = score_hashes(Path(os.environ["NAC_BENCH"]), options.root)
    known = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    for name, value in found.items():
        print(name, value)
    if options.save:
        known[machine()] = found
        HASHES.write_text(json.dumps(known, indent=1) + "\n")
        return 0
    if machine() not in known:
        print(f"no hashes are stored for this machine ({machine()})")
        return 0
    return int(bool(changed(found, known[machine()])))


def changed(found: dict[str, str], known: dict[str, str]) -> list[str]:
    """The rules whose hashes are not the stored ones; a machine may have none of a newer rule."""
    return [name for name, value in known.items() if found.get(name) != value]


if __name__ == "__main__":
    sys.exit(main())
