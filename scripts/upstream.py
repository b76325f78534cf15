"""Write the pull request that brings NAC to OpenOOD, and rows for its leaderboard.

    python scripts/upstream.py write OPENOOD
    python scripts/upstream.py rows RESULTS --description "100 epochs" [--method nac nac_plus]

`write` adds files to a source tree of OpenOOD, in its style, and registers the postprocessors:
`git diff` in the tree is then the pull request. `rows` prints the rows of a comparison
(`nac-openood compare`) for a CSV file of OpenOOD's leaderboard. See docs/upstream.md.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path
from typing import Any, Sequence

import numpy as np

POSTPROCESSOR = '''\
from .base_postprocessor import BasePostprocessor


class NACPostprocessor(BasePostprocessor):
    """Neuron Activation Coverage (ICLR 2024), and its variant NAC+.

    https://arxiv.org/abs/2306.02879, implemented in the package nac-openood.
    The name in the config, `nac` or `nac_plus`, says which of them it is.
    """
    def __new__(cls, config):
        try:
            import nac_openood
        except ImportError as error:
            raise ImportError(f'The postprocessor {config.postprocessor.name} '
                              'needs a package: pip install '
                              'nac-openood') from error
        return nac_openood.NACPostprocessor(config)
'''
CONFIGS = {
    "nac": """\
# layers and settings are those of the paper for the ID dataset and the network
postprocessor:
  name: nac
  APS_mode: True
""",
    "nac_plus": """\
# layers are found by running the network; there is nothing to search
postprocessor:
  name: nac_plus
  APS_mode: False
  postprocessor_args:
    n_samples: 1000
    layers: auto
""",
}
_CIFAR = "python scripts/eval_ood.py \\\n    --id-data {data} \\\n    --root ./results/{root} \\\n"
_IMAGENET = (
    "python scripts/eval_ood_imagenet.py \\\n    --tvs-pretrained \\\n    --arch resnet50 \\\n"
)
_END = "    --postprocessor {name} \\\n    --save-score --save-csv{more}\n"
#: ID dataset -> the command, and whether there is full-spectrum OOD detection.
SCRIPTS = {
    "cifar10": (_CIFAR.replace("{root}", "cifar10_resnet18_32x32_base_e100_lr0.1_default"), False),
    "cifar100": (
        _CIFAR.replace("{root}", "cifar100_resnet18_32x32_base_e100_lr0.1_default"),
        False,
    ),
    "imagenet200": (
        _CIFAR.replace("{root}", "imagenet200_resnet18_224x224_base_e90_lr0.1_default"),
        True,
    ),
    "imagenet": (_IMAGENET, True),
}
_IMPORT = r"(?=^from \.npos_postprocessor )", "from .nac_postprocessor import NACPostprocessor\n"
_API = r"(from openood\.postprocessors import \([^)]*)\)", r"\1, NACPostprocessor)"
#: (file, the edit that imports the class, the indent of the table of postprocessors or None).
EDITS = (
    ("openood/postprocessors/__init__.py", _IMPORT, None),
    ("openood/postprocessors/utils.py", _IMPORT, "        "),
    ("openood/evaluation_api/postprocessor.py", _API, "    "),
)
COLUMNS = ("Training", "Postprocessor", "Near-OOD_AUROC", "Far-OOD_AUROC", "ID_Accuracy")
COLUMNS += ("Outlier_Data", "Arch", "Additional_Description")
ARCHITECTURES = {
    "resnet18_32x32": "ResNet18",
    "resnet18_224x224": "ResNet18",
    "resnet50": "ResNet50",
    "swin_t": "Swin-T",
    "vit_b_16": "ViT-B/16",
}


class UpstreamError(Exception):
    """The tree or the results cannot be used."""


def script(name: str, data: str) -> str:
    """The shell script that evaluates a postprocessor on a benchmark."""
    command, full_spectrum = SCRIPTS[data]
    lines = f"#!/bin/bash\n# sh scripts/ood/{name}/{data}_test_ood_{name}.sh\n"
    for more in ("", " --fsood") if full_spectrum else ("",):
        lines += "\n" + (command + _END).format(data=data, name=name, more=more)
    return lines


def write(tree: Path) -> list[str]:
    """Write all files into a source tree of OpenOOD; their names, relative to it."""
    if not (tree / "openood" / "postprocessors").is_dir():
        raise UpstreamError(f"expected a source tree of OpenOOD, but {tree} is none")
    texts = {"openood/postprocessors/nac_postprocessor.py": POSTPROCESSOR}
    for name, config in CONFIGS.items():
        texts[f"configs/postprocessors/{name}.yml"] = config
        for data in SCRIPTS:
            texts[f"scripts/ood/{name}/{data}_test_ood_{name}.sh"] = script(name, data)
    for file, insertion, indent in EDITS:
        texts[file] = registered((tree / file).read_text(encoding="utf-8"), file, insertion, indent)
    for file, text in texts.items():
        path = tree / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        if path.suffix == ".sh":
            path.chmod(0o755)
    return list(texts)


def registered(text: str, file: str, insertion: tuple[str, str], indent: str | None) -> str:
    """A file of OpenOOD that imports the class and, with an indent, has it in its table."""
    if "NACPostprocessor" in text:
        raise UpstreamError(f"{file} has a NACPostprocessor already: take a tree without it")
    edits = [insertion]
    if indent is not None:
        entries = "".join(f"\n{indent}'{name}': NACPostprocessor," for name in CONFIGS)
        edits.append((r"(^ *postprocessors = \{[^}]*,)(?=\n *\})", rf"\1{entries}"))
    for pattern, replacement in edits:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if count != 1:
            raise UpstreamError(f"{file} has another form than in OpenOOD 1.5: edit it by hand")
    return text


def rows(folder: Path, methods: Sequence[str], training: str, description: str) -> list[list[str]]:
    """The leaderboard's rows of a comparison's results, with OpenOOD's (population) deviations."""
    from nac_openood.benchmark.run.results import Results
    from nac_openood.sources.sets import BENCHMARKS

    found = Results.load(folder)
    benchmark = BENCHMARKS.get(found.id_name)
    sets = tuple(found.names("near")), tuple(found.names("far"))
    if benchmark is None or sets != (benchmark.near, benchmark.far):
        raise UpstreamError(f"{folder} is not a comparison on the test sets of OpenOOD")
    skipped = sum(each.skipped for each in found.sets)
    if skipped:
        raise UpstreamError(f"{skipped} images were skipped: the leaderboard is about all of them")
    accuracies = {run.name: run.accuracy for run in found.runs}
    table = []
    for method in methods:
        ours = [row for row in found.rows if row.method == method and row.status == "ok"]
        if len(ours) != len(found.runs):
            raise UpstreamError(
                f"{method} has results for {len(ours)} of {len(found.runs)} networks"
            )
        near, far = ([row.metrics[each]["AUROC"] for row in ours] for each in ("nearood", "farood"))
        numbers = [text(values) for values in (near, far, [accuracies[row.run] for row in ours])]
        arch = ARCHITECTURES.get(found.arch, found.arch)
        table.append([training, ours[0].title, *numbers, "No", arch, description])
    return table


def text(values: Sequence[Any]) -> str:
    """The mean, and the deviation over several networks; "/" if there is no number."""
    if None in values:
        return "/"
    spread = f" ± {np.std(values):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write the pull request into a source tree")
    writing.add_argument("tree", type=Path, help="a source tree of OpenOOD")
    listing = commands.add_parser("rows", help="print rows for the leaderboard")
    listing.add_argument("results", type=Path, help="folder of a comparison")
    listing.add_argument("--method", nargs="+", default=list(CONFIGS), help="default: %(default)s")
    listing.add_argument("--training", default="CrossEntropy", help="default: %(default)s")
    listing.add_argument("--description", required=True, help="for example '100 epochs'")
    args = parser.parse_args(words)
    try:
        if args.command == "write":
            print("\n".join(write(args.tree)))
        else:
            found = rows(args.results, args.method, args.training, args.description)
            csv.writer(sys.stdout, lineterminator="\n").writerows([COLUMNS, *found])
    except UpstreamError as error:
        print(f"{error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
