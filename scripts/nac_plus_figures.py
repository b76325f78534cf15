"""The figures of NAC+ in docs/method.md, measured on OpenOOD's CIFAR-10 layout.

    python scripts/nac_plus_figures.py --data-root DIR --checkpoint best.ckpt --readings DIR

Each dataset is read once and kept in --readings; everything else is arithmetic on the readings.
Writes docs/nac_plus/figures.json and weight.png. Then: python scripts/update_readme.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nac_openood import NACDetector, Readings, files
from nac_openood.core.fusion import DISTANCE, LOGITS, TOWARDS, Fusion
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.metrics import auroc
from nac_openood.core.plus import NACPlus, distance_of
from nac_openood.core.pvalues import PValues
from nac_openood.detector.batches import balanced_indices
from nac_openood.detector.decisions import false_alarm_rates
from nac_openood.report.figures import OOD_COLOR, OUR_COLOR, blank
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import build
from nac_openood.sources.sets import BENCHMARKS

DOCS = Path(__file__).resolve().parents[1] / "docs"
EARLY, HEAD = ["layer1", "layer2", "layer3"], "avgpool"
LAYERS = {n: LayoutConfig(head_input=n == HEAD) for n in (*EARLY, HEAD)}
CIFAR10 = BENCHMARKS["cifar10"]
NEAR, FAR = CIFAR10.near, CIFAR10.far
TEST = ["cifar10", *NEAR, *FAR]
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
SIZES, SEEDS = (100, 1000), range(1, 6)

Parts = Mapping[str, Tensor]


def read_all(root: Path, checkpoint: Path, folder: Path) -> dict[str, Readings]:
    net = load_checkpoint(build("resnet18_32x32", 10), checkpoint)
    detector = NACDetector(net, LAYERS, rule="nac_plus")
    transform, found = CIFAR10.transform(), {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in ["train_cifar10", "val_cifar10", *(f"test_{n}" for n in TEST)]:
        path = folder / f"{name}.safetensors"
        if not path.is_file():
            data = CIFAR10.images(root, name, transform)
            detector.read_loader(DataLoader(data, batch_size=100), save_to=path, progress=True)
        found[name.removeprefix("test_")] = Readings.load(path)
    return found


class Measured:
    """The parts of every dataset under a rule that is fitted on some training samples."""

    def __init__(self, readings: Mapping[str, Readings], rows: Tensor | None = None) -> None:
        train = readings["train_cifar10"]
        rule = NACPlus(LAYERS)
        for part in (train if rows is None else train.rows(rows)).batches():
            rule.update(part)
        self.pvalues = PValues(rule.calibrate(map(rule.parts, readings["val_cifar10"].batches())))
        self.calibration = rule.fusion().calibration
        self.parts = {name: _joined(rule, readings[name]) for name in TEST}

    def fused(self, keep: list[str] | None = None, w: float = 2.0, s: float = 0.2) -> Fusion:
        """A fusion of some parts only."""
        held = {n: part for n, part in self.calibration.items() if keep is None or n in keep}
        return Fusion(held, logit_weight=w, softness=s)

    def near_far(self, fusion: Fusion) -> tuple[float, float]:
        """Mean AUROC over the near and the far sets, in percent."""
        scores = {
            name: fusion.score({n: part for n, part in parts.items() if n in fusion.calibration})
            for name, parts in self.parts.items()
        }
        return _near_far(scores)

    def logits_only(self) -> tuple[float, float]:
        """The same without early layers."""
        return _near_far({name: parts[LOGITS] for name, parts in self.parts.items()})

    def false_alarms(self) -> list[dict[str, float]]:
        """Measured on the ID test images."""
        p = self.pvalues(self.fused().score(self.parts["cifar10"]))
        return [alarms._asdict() for alarms in false_alarm_rates(p, pvalues=self.pvalues)]


def _joined(rule: NACPlus, readings: Readings) -> dict[str, Tensor]:
    found = [rule.parts(batch) for batch in readings.batches()]
    return {name: torch.cat([parts[name] for parts in found]) for name in found[0]}


def _near_far(scores: Mapping[str, Tensor]) -> tuple[float, float]:
    inside = scores["cifar10"]
    near, far = (
        100 * float(np.mean([float(auroc(inside, scores[name])) for name in names]))
        for names in (NEAR, FAR)
    )
    return near, far


def measure(readings: Mapping[str, Readings]) -> dict[str, object]:
    labels = readings["train_cifar10"].label.numpy()
    default = Measured(readings, torch.from_numpy(balanced_indices(labels, 1000)))
    whole = Measured(readings)
    distances, late = [distance_of(name) for name in EARLY], [LOGITS, TOWARDS, DISTANCE]
    kept = {
        "NAC+": None,
        "without alignment (NAC+ 1)": [*EARLY, *distances, LOGITS],
        "without coverage": [*distances, *late],
        "without distances": [*EARLY, *late],
    }
    parts = {title: whole.near_far(whole.fused(names)) for title, names in kept.items()}
    parts["early layers alone"] = whole.near_far(whole.fused(w=0.0))
    parts["logits alone (GEN)"] = whole.logits_only()
    sizes = {}
    for n in SIZES:
        rows = [torch.from_numpy(balanced_indices(labels, n, seed)) for seed in SEEDS]
        runs = [Measured(readings, index) for index in rows]
        sizes[str(n)] = [run.near_far(run.fused()) for run in runs]
    sizes[str(len(labels))] = [parts["NAC+"]]
    return {
        "default": default.near_far(default.fused()),
        "parts": parts,
        "weights": {str(w): whole.near_far(whole.fused(w=w)) for w in WEIGHTS},
        "false_alarms": default.false_alarms(),
        "calibration_samples": readings["val_cifar10"].n_samples,
        "sizes": sizes,
    }


def curve(found: dict, target: Path) -> None:
    """Near and far AUROC against the weight of the logits."""
    figure = blank((6.4, 3.4), dpi=120)
    figure.set_facecolor("white")
    axis = figure.subplots()
    weights = [float(w) for w in found["weights"]]
    for place, (title, color) in enumerate((("near", OUR_COLOR), ("far", OOD_COLOR))):
        values = [pair[place] for pair in found["weights"].values()]
        axis.plot(range(len(weights)), values, marker="o", color=color, label=f"{title}-OOD")
    axis.axvline(weights.index(2.0), color="gray", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(weights)), [f"{w:g}" for w in weights])
    axis.set(xlabel="weight of the logits (dotted: NAC+)", ylabel="AUROC in percent")
    axis.legend(frameon=False)
    figure.savefig(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--data-root", "--checkpoint", "--readings"):
        parser.add_argument(name, type=Path, required=True)
    args = parser.parse_args()
    found = measure(read_all(args.data_root, args.checkpoint, args.readings))
    target = DOCS / "nac_plus"
    target.mkdir(exist_ok=True)
    files.write_json(target / "figures.json", found)
    curve(found, target / "weight.png")


if __name__ == "__main__":
    main()
