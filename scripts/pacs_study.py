#!/usr/bin/env python
"""NAC-ME and NAC entropy on PACS at 64 pixels: train small networks, leaving one domain out.

    python scripts/pacs_study.py --data PACS --out pacs_study

Trains one network per variant, target domain and trial, and keeps its checkpoints as
`OUT/VARIANT/DOMAIN/trial_K/step_NNNNN.pt`, with accuracies in `run.json` beside them. Runs that are
there already are skipped, so an interrupted study continues. Networks start from random weights.
Nothing is chosen with data of the target domain. With one thread results can be repeated exactly.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from nac_openood.files import make_folder, write_text
from nac_openood.network.replica import kept_random_state
from nac_openood.sources.networks import build
from nac_openood.sources.readers import (
    domain_classes,
    domain_folders,
    read_domain,
    split_indices,
    split_seed,
)
from nac_openood.sources.transforms import IMAGENET_MEAN, IMAGENET_STD
from nac_openood.training import ERM, NACEntropy, SaveCheckpoints, train

ARCH, LAYER, SIDE = "resnet_embedded", "avgpool", 64
STEPS, EVERY, BATCH, RATE = 600, 50, 32, 1e-3  # a batch has so many images of each domain
TRIALS = (0, 1, 2)
ENTROPY_TARGETS = ("art_painting", "sketch")
PAD = 8  # pixels by which training images are moved at most


class Variant(NamedTuple):
    """How to train: the weight of the NAC entropy, None for plain ERM, its direction and form."""

    lam: Optional[float] = None
    maximize: bool = True
    form: str = "paper"


# With these weights the gradient of the entropy was about a tenth of that of the cross-entropy in
# the middle of an ERM run, on training data of the source domains. (With the 1e-4 that the authors'
# code has it was less than a thousandth.)
VARIANTS: Mapping[str, Variant] = {
    "erm": Variant(),
    "max": Variant(0.05, True),
    "min": Variant(0.05, False),
    "max_surprisal": Variant(0.005, True, "surprisal"),
    "min_surprisal": Variant(0.005, False, "surprisal"),
}


class Domain(NamedTuple):
    """All images of a domain in memory: uint8 `[n, 3, 64, 64]` and labels int64 `[n]`."""

    pixels: Tensor
    labels: Tensor


def read_domains(root: Path) -> dict[str, Domain]:
    """The domains, sorted by name, decoded once."""
    folders = domain_folders(root)
    classes = domain_classes(folders.values())
    found = {}
    for name, path in folders.items():
        folder = read_domain(path, classes, _as_uint8)
        pixels = torch.stack([folder[i]["data"] for i in range(len(folder))])
        found[name] = Domain(pixels, torch.from_numpy(folder.labels))
    return found


def _as_uint8(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image.resize((SIDE, SIDE)))).permute(2, 0, 1).contiguous()


def normalized(pixels: Tensor) -> Tensor:
    """Float32 images, normalized as for ImageNet, `[..., 3, H, W]`."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return pixels.float().div(255).sub(mean).div(std)


class Augmented(Dataset[tuple[Tensor, int]]):
    """Training images, moved by up to `PAD` pixels and mirrored at random."""

    def __init__(self, domain: Domain, rows: np.ndarray) -> None:
        self.labels = domain.labels[rows]
        padded = F.pad(domain.pixels[rows].float(), (PAD,) * 4, mode="replicate")
        self.padded = padded.to(torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        down, right, mirror = torch.randint(0, 2 * PAD + 1, (3,)).tolist()
        image = self.padded[index, :, down : down + SIDE, right : right + SIDE]
        image = image.flip(-1) if mirror % 2 else image
        return normalized(image), int(self.labels[index])


@torch.no_grad()
def accuracy(net: nn.Module, domain: Domain, rows: np.ndarray) -> float:
    """Share of correct predictions, in percent."""
    right = 0
    for part in torch.from_numpy(rows).split(128):
        right += int((net(normalized(domain.pixels[part])).argmax(1) == domain.labels[part]).sum())
    return 100 * right / len(rows)


class Run:
    """One training run: a variant, a target domain and a trial."""

    def __init__(self, out: Path, domains: Mapping[str, Domain], key: tuple[str, str, int]) -> None:
        self.variant, self.target, self.trial = key
        self.folder = out / self.variant / self.target / f"trial_{self.trial}"
        self.domains = domains
        seeds = [split_seed(self.trial, i) for i in range(len(domains))]
        sizes = [len(domain.labels) for domain in domains.values()]
        rows = [split_indices(n, seed) for n, seed in zip(sizes, seeds)]
        self.train_rows = {name: part[0] for name, part in zip(domains, rows)}
        self.held_rows = {name: part[1] for name, part in zip(domains, rows)}
        self.sources = [name for name in domains if name != self.target]
        self.checkpoints: list[dict[str, Any]] = []

    @property
    def record(self) -> Path:
        """The file that is written last, when the run is complete."""
        return self.folder / "run.json"

    def carry_out(self) -> None:
        """Train, keep checkpoints, write the record."""
        make_folder(self.folder)
        start, cpu = time.perf_counter(), time.process_time()
        with kept_random_state(self.trial):
            n_classes = int(max(domain.labels.max() for domain in self.domains.values())) + 1
            net = build(ARCH, n_classes).to(memory_format=torch.channels_last)
        variant = VARIANTS[self.variant]
        entropy = None if variant.lam is None else NACEntropy(net, LAYER, form=variant.form)
        log = train(
            net, self.loaders(), algorithm=ERM(), entropy=entropy, lam=variant.lam or 0.0,
            maximize=variant.maximize, steps=STEPS, rate=RATE, every=EVERY,
            on_checkpoint=self.keep, seed=self.trial, progress=False,
        )  # fmt: skip
        for checkpoint, row in zip(self.checkpoints, log):
            checkpoint.update(loss=row.loss, entropy=row.entropy)
        told = {
            "variant": self.variant, "lam": variant.lam, "maximize": variant.maximize,
            "form": variant.form,
            "target": self.target, "trial": self.trial, "sources": self.sources,
            "arch": ARCH, "steps": STEPS, "batch": BATCH, "rate": RATE,
            "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu,
            "torch": torch.__version__, "checkpoints": self.checkpoints,
        }  # fmt: skip
        write_text(self.record, json.dumps(told, indent=1))

    def loaders(self) -> list[DataLoader[Any]]:
        """Shuffled minibatches of each source domain."""
        return [
            DataLoader(
                Augmented(self.domains[name], self.train_rows[name]), BATCH, shuffle=True,
                drop_last=True, generator=torch.Generator().manual_seed(self.trial),
            )
            for name in self.sources
        ]  # fmt: skip

    def keep(self, step: int, net: nn.Module) -> None:
        """Save a checkpoint, and measure it on held-out source data and on the target."""
        SaveCheckpoints(self.folder)(step, net)
        held = {n: accuracy(net, self.domains[n], self.held_rows[n]) for n in self.sources}
        target = self.domains[self.target]
        self.checkpoints.append(
            {
                "step": step,
                "val_by_domain": held,
                "val": float(np.mean(list(held.values()))),
                "target": accuracy(net, target, self.train_rows[self.target]),
                "target_held": accuracy(net, target, self.held_rows[self.target]),
            }
        )


def wanted(variants: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str, int]]:
    """The runs in order: ERM trial by trial, then entropy target by target."""
    runs = []
    for variant in variants:
        chosen = targets if variant == "erm" else ENTROPY_TARGETS
        runs += [(variant, target, trial) for trial, target in product(TRIALS, chosen)]
    plain = [run for run in runs if run[0] == "erm"]
    others = [run for run in runs if run[0] != "erm"]
    return plain + sorted(others, key=lambda run: (VARIANTS[run[0]].form, run[1], run[2]))


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with PACS's domains")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    domains = read_domains(args.data)
    for key in wanted(args.variants, list(domains)):
        run = Run(args.out, domains, key)
        if not run.record.is_file():
            run.carry_out()
            last = run.checkpoints[-1]
            print(*key, f"validation {last['val']:.1f}, target {last['target']:.1f}", flush=True)


if __name__ == "__main__":
    main()
