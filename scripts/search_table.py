"""Tables of benchmarks/notes/search.md: what settings are worth, chosen in different ways.

    python scripts/search_table.py --data-root DIR --checkpoint best.ckpt --readings DIR

Needs OpenOOD's CIFAR-10 layout and a ResNet-18 for 32x32 images. Readings are made once, with the
exact pass, and kept in --readings. No search sees a test set.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader, Subset

from nac_openood import Coverage, NACDetector, Readings
from nac_openood.core.metrics import auroc
from nac_openood.detector.batches import dataset_labels, fitting_indices
from nac_openood.detector.config import preset
from nac_openood.search import SURROGATES, SurrogateLoader, paper_space, search
from nac_openood.search.recipe import HELD_OUT, held_out_of
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import build
from nac_openood.sources.sets import BENCHMARKS

CIFAR10 = BENCHMARKS["cifar10"]
NEAR, FAR = CIFAR10.near, CIFAR10.far
PRESET = preset("cifar10", "resnet")


def loaders(root: Path) -> dict[str, object]:
    """Every set by name; a surrogate set is `seed<N>` (all kinds in turn) or a kind's name."""
    listed = partial(CIFAR10.images, root, transform=CIFAR10.transform())
    train = listed("train_cifar10")
    fit = fitting_indices(dataset_labels(train), len(train), PRESET.n_samples)
    names = ["val_cifar10", "val_tin", *(f"test_{n}" for n in ["cifar10", *NEAR, *FAR])]
    sets = {"fit": Subset(train, fit.tolist()), **{name: listed(name) for name in names}}
    found: dict[str, object] = {n: DataLoader(data, batch_size=100) for n, data in sets.items()}
    found["held"] = held_out_of(DataLoader(train, batch_size=100), PRESET.n_samples, HELD_OUT)
    inside = found["val_cifar10"]
    for seed in range(3):
        found[f"seed{seed}"] = SurrogateLoader(inside, seed=seed)
    for kind in SURROGATES:
        found[kind] = SurrogateLoader(inside, kinds=[kind])
    return found


def read_all(root: Path, checkpoint: Path, folder: Path) -> dict[str, Readings]:
    net = load_checkpoint(build("resnet18_32x32", 10), checkpoint)
    detector = NACDetector(net, "cifar10")
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, loader in loaders(root).items():
        path = folder / f"{name}.safetensors"
        if not path.is_file():
            detector.read_loader(loader, save_to=path, progress=True)
        found[name] = Readings.load(path)
    return found


def worth(layers: dict, sets: dict[str, Readings]) -> list[float]:
    """AUROC in percent: val_tin, near, far, and the guard's."""
    coverage = Coverage(layers)
    for part in sets["fit"].batches():
        coverage.update(part)
    needed = ["held", *(n for n in sets if n.startswith(("val_", "test_")))]
    scores = {name: coverage.score(sets[name]) for name in needed}
    tests = {n: float(auroc(scores["test_cifar10"], scores[f"test_{n}"])) for n in NEAR + FAR}
    return [
        100 * float(auroc(scores["val_cifar10"], scores["val_tin"])),
        100 * float(np.mean([tests[n] for n in NEAR])),
        100 * float(np.mean([tests[n] for n in FAR])),
        100 * float(auroc(scores["held"], scores["val_cifar10"])),
    ]


def rows(sets: dict[str, Readings]) -> None:
    grid = {"sweep": PRESET.sweep, "strategy": "grid"}
    light = {"sweep": paper_space(list(PRESET.layers), weights=False)}
    surrogate = {f"surrogates, seed {n}": sets[f"seed{n}"] for n in range(3)}
    surrogate["all six of every image"] = Readings.concatenate([sets[k] for k in SURROGATES])
    surrogate.update({f"only {kind}": sets[kind] for kind in SURROGATES})
    plans = [
        ("val_tin, `grid`, the authors' sweep", sets["val_tin"], grid),
        ("val_tin, `random`", sets["val_tin"], {"strategy": "random"}),
        ("val_tin, `layerwise`, without weights", sets["val_tin"], light),
        ("val_tin, `layerwise`", sets["val_tin"], {}),
        ("surrogates, seed 0, `grid`", sets["seed0"], grid),
        *((name, readings, {}) for name, readings in surrogate.items()),
    ]
    print("| settings chosen with | its own validation | val_tin | near | far | guard | points |")
    print("| --- |" + " --- |" * 6)
    values = " | ".join(f"{v:.2f}" for v in worth(dict(PRESET.layers), sets))
    print(f"| nothing: the paper's | - | {values} | - |")
    for name, outside, options in plans:
        found = search(
            sets["fit"], sets["val_cifar10"], outside,
            layers=PRESET.layers, held_out=sets["held"], progress=False, **options,
        )  # fmt: skip
        values = " | ".join(f"{v:.2f}" for v in worth(dict(found.layers), sets))
        own = 100 * found.best.auroc
        print(f"| {name} | {own:.2f} | {values} | {found.evaluated:,} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("--data-root", "--checkpoint", "--readings"):
        parser.add_argument(option, type=Path, required=True)
    args = parser.parse_args()
    rows(read_all(args.data_root, args.checkpoint, args.readings))
