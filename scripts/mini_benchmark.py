"""Runs all methods on a benchmark with both backends and writes docs/comparison.md.

    OPENOOD_SRC=OpenOOD python scripts/mini_benchmark.py --data-root DIR --checkpoint DIR --out DIR

The slow methods use their default hyperparameters (a search of AdaSCALE's runs the network 144
times per validation image). Each result is stored: after an interruption the script continues; when
everything is done it only writes the page.

`--recorded FILE ...` adds other networks, of which a pass was recorded. A file holds a dict, by
`torch.save`: `title`, `about`, `weight` and `bias` of the head, and `sets`: "train", "id_val",
"test", "near/NAME" and "far/NAME", each with `early` (the means of the layers that NAC+ reads, a
list of `[samples, neurons]`), `feature` (the input of the head) and `label` (-1: unknown).

`--again nac_plus` forgets the stored results of a method first, e.g. because its code has changed;
`--keep-slow` leaves the section on slow methods as it is on the page, and `--slow-once gram` runs
such methods with OpenOOD's implementation only.
"""

from __future__ import annotations

import argparse
import shutil
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import nac_openood
from nac_openood import files
from nac_openood.benchmark.methods.backends import NACScorer
from nac_openood.benchmark.methods.table import (
    LATER_METHODS,
    METHODS,
    OPENOOD,
    PYTORCH_OOD,
)
from nac_openood.benchmark.run.results import FAR, NEAR, Results
from nac_openood.cli import main as command
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.report.comparison import verdict
from nac_openood.report.methods import Ranked
from nac_openood.tables import Cell
from nac_openood.tensor_files import versions

ROWS = {**METHODS, **LATER_METHODS}
#: What the slow methods are compared with.
_USUAL = ("msp", "ebo", "gen", "knn", "fdbd", "nac_plus")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "comparison.md"
_HEAD = """\
# Benchmark results

All methods on a miniature of OpenOOD's CIFAR-10 benchmark, and on [other
networks](#other-networks). `scripts/mini_benchmark.py` writes this page.

The network is OpenOOD's ResNet-18, trained on CIFAR-10 for a short schedule (accuracy
{accuracy:.2f} %). Near-OOD is CIFAR-100 and Tiny ImageNet; far-OOD is MNIST, Textures and two
substitutes for SVHN and Places365. So the figures rank methods on *this* benchmark, and cannot be
compared with OpenOOD's leaderboard.

The first columns are AUROC and FPR@95, in percent, of OpenOOD's own postprocessors. FPR@95 is given
by [both conventions](compare.md#what-is-measured): OOD found, as in OpenOOD, and ID kept. The other
backend is pytorch-ood or, for later methods than the paper's, this package's functions ([which runs
where](compare.md#later-methods)); a dash means that there is only one implementation. The last
column is the largest difference in AUROC between the two, of any OOD set.

In the first table, hyperparameters are searched on validation data. The second table has the slow
methods, and some others for comparison, with default hyperparameters.
"""
_OTHERS = """
## Other networks

Near / far AUROC in percent of NAC+ and of the methods that share one pass over the network, in the
order of their mean rank. The first network is that of the tables above. For the others, nothing is
searched: all methods use their default hyperparameters. A dash is a method that failed, which
counts as the last rank: OpenMax and SHE need a correct prediction of every class in the training
data.

**This is not a blind test of NAC+**, which was developed in four versions
([the study](../benchmarks/notes/nac_plus_study.md)):

- Its parts (version 2) were chosen on the ResNet-20, the first CIFAR-100 network and the one
  trained with Adam, a VGG like this one, the ViT, the text network without Business and ResNet-18's
  validation data. ResNet-56 and the second CIFAR-100 network were kept apart from this choice.
- Its weights (version 3) were chosen on the same networks and on a text network without World. They
  were checked on the ResNet-44, other CIFAR-100 networks and the text network without Sci/Tech, and
  changed after that.
- Two later changes of the weights (the final form of version 3, and version 4) were made after a
  look at all networks here.
- Of the OOD sets here, the digits, the texts and the other four classes of CIFAR-10 were used in
  the choice. The others were not.

"""
_SECTION = """
## {title}

{images:,} test images. With OpenOOD's own postprocessors: {verdict}

"""


def run(
    args: argparse.Namespace, backend: str, out: Path, methods: list[str], *more: str
) -> Results:
    code = command(
        ["compare", "--id-data", "cifar10", "--arch", "resnet18_32x32", "--backend", backend,
         "--data-root", args.data_root, "--checkpoint", args.checkpoint, "--out", str(out),
         "--methods", *methods, *more]
    )  # fmt: skip
    if code not in (0, 2):
        raise SystemExit(code)
    return Results.load(out)


def forget(out: Path, methods: Sequence[str]) -> None:
    """Remove the stored results of methods."""
    for name in methods:
        for folder in out.glob(f"runs/*/{name}"):
            shutil.rmtree(folder)


def section(
    args: argparse.Namespace,
    title: str,
    methods: list[str],
    *more: str,
    known: Sequence[Results] = (),
) -> tuple[str, Results]:
    """A table of both backends, and the rank of our methods; the results of OpenOOD's."""
    found: list[Results] = []
    for backend in (OPENOOD, PYTORCH_OOD):
        out = Path(args.out) / title.replace(" ", "-").lower() / f"by-{backend}"
        forget(out, args.again)
        for other in [*known, *found][:1]:
            for source in other.folder.glob("runs/*/*"):
                if source.name in ("features", *_rules()):  # these need no backend
                    target = out / source.relative_to(other.folder)
                    shutil.copytree(source, target, dirs_exist_ok=True)
        once = [] if backend == OPENOOD else args.slow_once
        found.append(run(args, backend, out, [m for m in methods if m not in once], *more))
    first = found[0]
    args.accuracy = args.accuracy or first.runs[0].accuracy
    head = _SECTION.format(
        title=title,
        images=sum(s.images for s in first.sets),
        verdict=verdict(Ranked(first)),
    )
    return head + table(*found), first


def table(first: Results, second: Results) -> str:
    """A row per method in the order of the first results, with the second beside them."""
    lines = [
        "| | near AUROC | near FPR@95 (OOD found) | near FPR@95 (ID kept) | far AUROC "
        "| far FPR@95 (OOD found) | far FPR@95 (ID kept) | near AUROC, other backend "
        "| far AUROC, other backend | largest difference of a set, AUROC |",
        "| --- |" + " ---: |" * 9,
    ]
    for ranked in Ranked(first).methods:
        if ranked.status != "ok":
            lines.append(f"| {ranked.title} | {ranked.status} |" + " |" * 8)
            continue
        method = ranked.method
        measured = ("AUROC", "FPR@95", "FPR@95_IN")
        cells = [str(Cell.of(first.value(method, g, m))) for g in (NEAR, FAR) for m in measured]
        if {OPENOOD} == {*ROWS[method].backends} or OPENOOD not in ROWS[method].backends:
            cells += ["-"] * 3
        else:
            cells += [str(Cell.of(second.value(method, g, "AUROC"))) for g in (NEAR, FAR)]
            cells.append(difference(first, second, method))
        title = f"**{ranked.title}**" if ranked.ours else ranked.title
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def difference(first: Results, second: Results, method: str) -> str:
    """The largest difference of AUROC over the OOD sets."""
    pairs = [
        (first.value(method, name, "AUROC"), second.value(method, name, "AUROC"))
        for name in [*first.names("near"), *first.names("far")]
    ]
    found = [abs(a.mean - b.mean) for a, b in pairs if a is not None and b is not None]
    return f"{max(found):.2f}" if found else "-"


class Replay(nn.Module):
    """Gives back what a network computed: its samples are early activations and features."""

    def __init__(self, sizes: Sequence[int], weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.early = nn.ModuleList(nn.Identity() for _ in sizes[:-1])
        self.feature, self.fc = nn.Identity(), nn.Linear(*weight.shape[::-1])
        self.fc.weight.data, self.fc.bias.data = weight.clone(), bias.clone()

    def forward(self, x: Tensor) -> Any:
        """Logits of samples `[batch, sum of sizes]`."""
        *early, feature = x.split(self.sizes, dim=1)
        for module, activation in zip(self.early, early):
            module(activation)
        return self.fc(self.feature(feature))


def recorded(args: argparse.Namespace, file: Path) -> tuple[str, str, Results]:
    """Title, description and results of a network whose pass was recorded."""
    kept = torch.load(file, weights_only=True)
    sets = {
        name: TensorDataset(torch.cat([*each["early"], each["feature"]], dim=1), each["label"])
        for name, each in kept["sets"].items()
    }
    some = kept["sets"]["train"]
    sizes = [part.shape[1] for part in (*some["early"], some["feature"])]
    early = {f"early.{i}": LayoutConfig() for i in range(len(some["early"]))}
    layers = {"nac_plus": {**early, "feature": LayoutConfig(head_input=True)}, "nac_plus_1": early}
    configs = {name: nac_openood.NACConfig(own, rule=name) for name, own in layers.items()}
    ours = [
        ROWS[name]._replace(rule=None, scorer=partial(NACScorer, config, rule=name))
        for name, config in configs.items()
    ]
    groups = {
        group: {n.partition("/")[2]: data for n, data in sets.items() if n.startswith(group)}
        for group in ("near", "far")
    }
    out = Path(args.out) / f"recorded-{file.stem}"
    forget(out, args.again)
    fast = [name for name, row in ROWS.items() if row.needs == "features" and not row.slow]
    net = Replay(sizes, kept["weight"], kept["bias"]).eval()
    results = nac_openood.compare(
        {"net": net}, methods=[*fast, *ours], search=False, backend=PYTORCH_OOD, out=out,
        n_classes=len(kept["weight"]), arch=file.stem, say=print,
        **{name: sets[name] for name in ("train", "id_val", "test")}, **groups,
    )  # fmt: skip
    return kept["title"], kept["about"], results


def others(first: Results, networks: Sequence[tuple[str, str, Results]]) -> str:
    """What the networks are, and a table: methods by mean rank, a column for each network."""
    lines = []
    for title, about, found in networks:
        images, accuracy = found.sets[0].images, found.runs[0].accuracy
        lines.append(f"- **{title}** (accuracy {accuracy:.1f} % of {images:,} samples): {about}.")
    named = [("ResNet-18, CIFAR-10", first), *((title, found) for title, _, found in networks)]
    ranked = [{m.method: m for m in Ranked(found).worked} for _, found in named]
    tried = [name for name in ranked[0] if all(name in found.methods() for _, found in named)]
    means = {
        name: [fmean(_rank(each, tried, name, group) for each in ranked) for group in (NEAR, FAR)]
        for name in tried
    }
    heads = ["", "mean rank, near", "mean rank, far", *(title for title, _ in named)]
    lines += ["", f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for name in sorted(tried, key=lambda name: fmean(means[name])):
        cells = [f"{mean:.1f}" for mean in means[name]]
        cells += [
            " / ".join(f"{each[name].auroc(g):.2f}" for g in (NEAR, FAR)) if name in each else "-"
            for each in ranked
        ]
        title = ROWS[name].title
        cells.insert(0, f"**{title}**" if name in _rules() else title)
        lines.append(f"| {' | '.join(cells)} |")
    above = [
        f"{ROWS[name].title} ({title})"
        for (title, _), each in zip(named, ranked)
        for name in tried
        if name in each
        and all(each[name].auroc(g) > each["nac_plus"].auroc(g) for g in (NEAR, FAR))
    ]
    lines += ["", f"Above NAC+ on both near- and far-OOD: {', '.join(above) or 'none'}."]
    return "\n".join(lines) + "\n"


def _rank(methods: dict[str, Any], tried: Sequence[str], name: str, group: str) -> int:
    """The rank of a method among those that were tried; 1 is best, and failures are last."""
    if name not in methods:
        return len(tried)
    own = methods[name].auroc(group)
    return 1 + sum(methods[other].auroc(group) > own for other in tried if other in methods)


def _rules() -> list[str]:
    return [name for name, row in ROWS.items() if row.rule]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--data-root", "--checkpoint", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--recorded", type=Path, nargs="*", default=[])
    parser.add_argument("--again", nargs="*", default=[])
    parser.add_argument("--keep-slow", action="store_true")
    parser.add_argument("--slow-once", nargs="*", default=[])
    args = parser.parse_args()
    args.accuracy = None
    fast = [name for name, row in ROWS.items() if not row.slow]
    text, first = section(args, "Fast methods", fast)
    if args.keep_slow:
        text += "".join(f"\n## {part}" for part in PAGE.read_text("utf-8").split("\n## ")[2:-1])
    else:
        slow = [*_USUAL, *(name for name, row in ROWS.items() if row.slow)]
        text += section(args, "Slow methods", slow, "--no-search", known=[first])[0]
    text += _OTHERS + others(first, [recorded(args, file) for file in args.recorded])
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    files.write_text(
        PAGE, f"{_HEAD.format(accuracy=args.accuracy)}{text}\nMade with {made}, OpenOOD 3c35632.\n"
    )


if __name__ == "__main__":
    main()
