"""Write benchmarks/notes/analyses.md from analyses.json, after taking in what `analyze` found.

    python scripts/analyses_page.py --embedded DIR --mini DIR --pacs DIR    # take in what is new
    python scripts/analyses_page.py                                         # write the page again

Folders that are not given keep what benchmarks/notes/analyses.json says about them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import yaml
from templates import rendered

from nac_openood import analysis
from nac_openood.files import write_json

HERE = Path(__file__).parent
NOTES = HERE.parent / "benchmarks" / "notes"
KINDS = (
    "states", "layers", "params", "samples", "near", "weighted", "calibration", "agreement",
    "cost", "schemes",
)  # fmt: skip
#: The title of each source, and the tables of a finding that the page shows.
SOURCES = {
    "embedded": "Embedded data",
    "mini": "Miniature benchmark",
    "pacs": "PACS, photo against sketch",
}
SHOWN: Mapping[str, Sequence[int]] = {"states": (0, 1), "params": (0, 1, 2), "calibration": (0, 2)}
#: The figures of a source that the page shows, by kind.
FIGURES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "mini": {
        "states": ("fpr95",), "layers": ("auroc",), "params": ("steepness", "bound", "n_bins"),
        "samples": ("auroc",), "near": ("auroc",), "weighted": ("auroc",),
        "calibration": ("reliability_svhn",), "agreement": ("rank_correlation_ood",),
    },
    "pacs": {"states": ("neuron", "coverage")},
}  # fmt: skip

Finding = Mapping[str, Any]


def kept(folder: Path) -> dict[str, Any]:
    """The findings in a folder by kind, without figures, pictures and single numbers."""
    found = {}
    for kind in KINDS:
        path = folder / f"{kind}.json"
        if path.is_file():
            whole = json.loads(path.read_text(encoding="utf-8"))
            about = {key: whole["about"][key] for key in ("id_name", "arch", "accuracy", "samples")}
            tables = [whole["tables"][i] for i in SHOWN.get(kind, (0,)) if i < len(whole["tables"])]
            found[kind] = {
                **{key: whole[key] for key in ("title", "sentence")},
                "tables": tables, "about": about, "against": against(kind, whole),
                # those of other kinds are on the page in its own words, or name files
                "notes": whole["notes"] if kind == "cost" else [],
            }  # fmt: skip
    return found


def main_auroc(found: Finding, **at: Any) -> float:
    """The far-OOD AUROC of a record."""
    wanted = {**at, "dataset": "farood"}
    values = [r["AUROC"] for r in found["records"] if wanted.items() <= r.items()]
    return float(sum(values) / len(values))


def against(kind: str, found: Finding) -> str:
    """What the paper says, and whether it is so here."""
    told = _AGAINST.get(kind)
    return "The paper has no such analysis." if told is None else told(found)


def _column(found: Mapping[str, Any], group: str, title: str) -> dict[str, float]:
    """A column of a table by the text of the first one; of means with a spread, the means."""
    place = [(c["group"], c["title"]) for c in found["columns"]].index((group, title))
    entries = {row[0]: row[place] for row in found["rows"]}
    return {name: e[0] if isinstance(e, list) else e for name, e in entries.items()}


def _states(found: Finding) -> str:
    values = _column(found["tables"][1], "Far-OOD", "AUROC")
    text = "In the paper all three parts together are best there (Table 16, ImageNet). "
    best = max(values, key=lambda name: values[name])
    return text + ("So they are here." if best == "z*dg*(p-u)" else "Here they are not.")


def _layers(found: Finding) -> str:
    paths = [row[0] for row in found["tables"][0]["rows"]]
    values = [main_auroc(found, layers=path) for path in paths]
    rises = all(b >= a for a, b in zip(values, values[1:]))
    text = "In the paper every further layer helps on CIFAR-10 (Table 4). "
    return text + ("So it does here." if rises else "Here it does not.")


def _params(found: Finding) -> str:
    return "In the paper alpha 100, r 1 and M 50 are best on CIFAR-10 (Tables 5 to 7)."


def _samples(found: Finding) -> str:
    values = _column(found["tables"][0], "Far-OOD, r kept", "AUROC")
    *_, whole = values.values()
    enough = next(size for size, value in values.items() if value > whole - 1)
    enough = enough.replace(" (", " samples (")
    return (
        "In the paper 1 % of the training data (500 of 50,000 images) is about as good as all of "
        f"it (Figure 7). Here, with r kept, it takes {enough} to come within one point of all."
    )


def _near(found: Finding) -> str:
    first = found["tables"][0]["rows"][0][0]
    text = "In the paper NAC is best on CIFAR-10 (Table 15). "
    return text + ("So it is here." if first == "NAC" else "Here it is not.")


def _weighted(found: Finding) -> str:
    ways = ("searched weights", "equal weights")
    searched, equal = (main_auroc(found, weights=way) for way in ways)
    text = "In the paper weights raise it from 94.60 to 95.80 % on CIFAR-10 (Table 17). "
    return text + ("They raise it here, too." if searched > equal else "Here they do not.")


def _calibration(found: Finding) -> str:
    errors = {
        (r["dataset"], r["method"]): r["RMS"]
        for r in found["records"]
        if r["mixture"] == "all samples" and r["dataset"] != "ID alone"
    }
    sets = list(dict.fromkeys(name for name, _ in errors))
    lower = sum(errors[name, "NAC"] < errors[name, "MSP"] for name in sets)
    return (
        "In the paper the error of NAC is lower than those of MSP and TempScale on all six sets "
        "(Table 19); it does not say how coverage becomes a probability. Here coverage itself, "
        f"taken as the probability, has a lower error than MSP on {lower} of {len(sets)} sets."
    )


def _cost(found: Finding) -> str:
    summary = found["values"]["summary"]
    nac, gen = summary["NAC, 1 layer"], summary.get("GEN")
    text = "In the paper NAC on one layer is faster than GEN, and set up faster than ViM and SHE, "
    text += "which look at all of ImageNet (Table 14). "
    if gen is None:
        return text
    return (
        text + f"Here NAC on one layer takes {nac['ratio'][0]:.2f} times a forward pass, GEN "
        f"{gen['ratio'][0]:.2f}."
    )


def _schemes(found: Finding) -> str:
    pairs = [
        (main_auroc(found, scheme=s, method="nac"), main_auroc(found, scheme=s, method="native"))
        for s in dict.fromkeys(r["scheme"] for r in found["records"])
    ]
    better = sum(nac > native for nac, native in pairs)
    return (
        "In the paper NAC is better than the native detector on all three networks (Table 3). "
        f"Here it is better on {better} of {len(pairs)}; they were trained only briefly."
    )


_AGAINST = {
    "states": _states, "layers": _layers, "params": _params, "samples": _samples, "near": _near,
    "weighted": _weighted, "calibration": _calibration, "cost": _cost, "schemes": _schemes,
}  # fmt: skip


def page(findings: Mapping[str, Mapping[str, Finding]]) -> str:
    """The page as Markdown."""
    printed = yaml.safe_load((HERE / "analyses_paper.yml").read_text(encoding="utf-8"))
    return rendered(
        "analyses.md.j2", findings=findings, kinds=KINDS, sources=SOURCES, table=markdown,
        printed=printed, figures=figures,
        about={name: kind.help for name, kind in analysis.KINDS.items()},
    )  # fmt: skip


def figures(source: str, kind: str) -> list[str]:
    """The names of the figures of an analysis, in benchmarks/notes/analyses."""
    return [f"{source}-{kind}-{key}.svg" for key in FIGURES.get(source, {}).get(kind, ())]


def copy_figures(source: str, folder: Path) -> None:
    """Copy the figures that the page shows into benchmarks/notes/analyses."""
    (NOTES / "analyses").mkdir(exist_ok=True)
    for kind in FIGURES.get(source, {}):
        for name in figures(source, kind):
            shutil.copyfile(folder / name[len(source) + 1 :], NOTES / "analyses" / name)


def markdown(found: Mapping[str, Any]) -> str:
    """A table of a finding as Markdown."""
    heads = [" ".join(filter(None, (c["group"], c["title"]))) for c in found["columns"]]
    marks = ["---:" if c["number"] else "---" for c in found["columns"]]
    lines = [heads, marks, *([_text(entry) for entry in row] for row in found["rows"])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(entry: Any) -> str:
    if entry is None:
        return "-"
    if isinstance(entry, str):
        return entry.replace("|", "\\|")
    if isinstance(entry, (int, float)):
        return f"{entry:.2f}"
    mean, spread = entry
    if mean is None:
        return "-"
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Take in new findings and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in SOURCES:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR")
    args = parser.parse_args(arguments)
    file = NOTES / "analyses.json"
    findings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name in SOURCES:
        folder = getattr(args, name)
        findings[name] = {**findings.get(name, {}), **(kept(folder) if folder else {})}
        if folder:
            copy_figures(name, folder)
    write_json(file, findings)
    (NOTES / "analyses.md").write_text(page(findings), encoding="utf-8")


if __name__ == "__main__":
    main()
