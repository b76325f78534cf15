#!/usr/bin/env python
"""Rank the checkpoints of the PACS study by NAC-ME, and write benchmarks/notes/pacs_study.md.

    python scripts/pacs_report.py --data PACS --out pacs_study

Takes what `scripts/pacs_study.py` has trained so far. Rankings are kept in `OUT/ranking`, so a
second call is quick. All figures go into pacs_study.json beside the page, which is made of them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
import torch
from pacs_page import page
from pacs_study import ARCH, LAYER, TRIALS, Domain, Run, normalized, read_domains
from torch import Tensor, nn
from torch.utils.data import Dataset

from nac_openood.core.layer_config import IntegralConfig
from nac_openood.evaluation.integral import CheckpointReadings
from nac_openood.evaluation.rank import rank_checkpoints
from nac_openood.evaluation.ranking import CRITERIA, Ranking, rank_correlation
from nac_openood.files import write_json, write_text
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import build

NOTES = Path(__file__).parents[1] / "benchmarks" / "notes"
SPACE = "pacs"  # the settings of the paper's table


class Plain(Dataset[tuple[Tensor, int]]):
    """Images without augmentation; `name` tells them from others."""

    def __init__(self, name: str, domain: Domain, rows: np.ndarray) -> None:
        self.name, self.pixels = name, domain.pixels[rows]
        self.labels = domain.labels[rows].numpy()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return normalized(self.pixels[index]), int(self.labels[index])

    def identity(self) -> str:
        """The name, which says domain, trial and split."""
        return self.name


class Ranked(NamedTuple):
    """A ranking, how many training samples each checkpoint has right, and the CPU seconds."""

    ranking: Ranking
    correct: list[int]
    seconds: float


def ranked(run: Run, out: Path) -> Ranked:
    """Rank a run's checkpoints; the time is that of the first call."""
    folder = out / "ranking" / run.target / f"trial_{run.trial}"
    clock = folder / "seconds.json"

    def part(names: Sequence[str], rows: Mapping[str, np.ndarray], role: str) -> dict[str, Plain]:
        return {n: Plain(f"{n} {run.trial} {role}", run.domains[n], rows[n]) for n in names}

    start = time.process_time()
    ranking = rank_checkpoints(
        {path.stem: str(path) for path in sorted(run.folder.glob("step_*.pt"))},
        load=_network,
        train=part(run.sources, run.train_rows, "train"),
        val=part(run.sources, run.held_rows, "held"),
        test=part([run.target], run.train_rows, "train"),
        oracle=part([run.target], run.held_rows, "held"),
        layer=LAYER, space=SPACE, out=folder, progress=False,
    )  # fmt: skip
    if not clock.is_file():
        write_text(clock, json.dumps(time.process_time() - start))
    readings = [folder / "readings" / f"{c.name}.safetensors" for c in ranking.checkpoints]
    correct = [len(CheckpointReadings.load(path).product) for path in readings]
    return Ranked(ranking, correct, json.loads(clock.read_text()))


def _network(path: str) -> nn.Module:
    # as in training: faster on a CPU
    return load_checkpoint(build(ARCH, 7), path).to(memory_format=torch.channels_last)


def figures(run: Run, found: Ranked) -> dict[str, Any]:
    """What the page needs of a ranking; accuracies in percent."""
    ranking, correct, seconds = found
    test = [100 * (c.test or 0.0) for c in ranking.checkpoints]
    default = next(c for c in ranking.candidates if c.config == IntegralConfig())
    by_setting = [rank_correlation(c.coverage, test) for c in ranking.candidates]
    return {
        "target": run.target, "trial": run.trial, "cpu_seconds": seconds,
        "rc": {name: ranking.rc(name) for name in CRITERIA},
        "rc_val": ranking.rc_val,
        "acc": {name: 100 * ranking.accuracy(name) for name in CRITERIA},
        "best": max(test), "last": test[-1],
        "config": ranking.config.to_dict(),
        "default": _criterion(default.coverage, test),
        "training": _criterion(correct, test), "correct": correct,
        "hindsight": max(rc for rc in by_setting if rc is not None),
        "steps": [c.step for c in ranking.checkpoints],
        "coverage": [c.coverage for c in ranking.checkpoints],
        "val": [100 * c.val for c in ranking.checkpoints], "test": test,
    }  # fmt: skip


def _criterion(scores: Sequence[float], test: Sequence[float]) -> dict[str, Any]:
    return {"rc": rank_correlation(scores, test), "acc": test[int(np.argmax(scores))]}


def trained(out: Path) -> list[dict[str, Any]]:
    """The last and the best-validated checkpoint of every run so far; accuracies in percent."""
    found = []
    for path in sorted(out.glob("*/*/trial_*/run.json")):
        told = json.loads(path.read_text())
        checkpoints = told.pop("checkpoints")
        chosen = max(checkpoints, key=lambda c: c["val"])
        keys = ("variant", "lam", "form", "target", "trial", "seconds", "cpu_seconds", "torch")
        found.append(
            {key: told.get(key) for key in keys}
            | {"val": chosen["val"], "target_acc": chosen["target"]}
            | {"last_val": checkpoints[-1]["val"], "last_target": checkpoints[-1]["target"]}
            | {"loss": checkpoints[-1]["loss"], "entropy": checkpoints[-1]["entropy"]}
        )
    return found


def main() -> None:
    """Rank, summarize, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with PACS's domains")
    parser.add_argument("--out", type=Path, help="folder of the study")
    parser.add_argument("--runs-only", action="store_true", help="keep the rankings in the file")
    parser.add_argument("--page-only", action="store_true", help="keep all figures in the file")
    args = parser.parse_args()
    document = NOTES / "pacs_study.json"
    told = json.loads(document.read_text()) if args.runs_only or args.page_only else {}
    if not args.page_only:
        told["runs"] = trained(args.out)
        if not args.runs_only:
            told["rankings"] = rankings(args.data, args.out)
        write_json(document, told)
    write_text(NOTES / "pacs_study.md", page(told))


def rankings(data: Path, out: Path) -> list[dict[str, Any]]:
    """The figures of all ERM runs that are complete."""
    torch.set_num_threads(1)
    domains = read_domains(data)
    keys = [("erm", target, trial) for trial in TRIALS for target in domains]
    runs = [Run(out, domains, key) for key in keys]
    return [figures(run, ranked(run, out)) for run in runs if run.record.is_file()]


if __name__ == "__main__":
    main()
