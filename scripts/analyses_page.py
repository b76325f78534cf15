"""Write docs/analyses.md from docs/analyses.json, after taking in what `analyze` has found.

    python scripts/analyses_page.py --embedded DIR --mini DIR    # take in DIR/KIND.json, write both
    python scripts/analyses_page.py                              # write the page again

Folders that are not given keep what docs/analyses.json says about them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import jinja2
import yaml

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
KINDS = (
    "states", "layers", "params", "samples", "near", "weighted", "calibration", "agreement",
    "cost", "schemes",
)  # fmt: skip
#: The title of each source, and the tables of a finding that the page shows.
SOURCES = {"embedded": "Embedded data", "mini": "Miniature benchmark"}
SHOWN: Mapping[str, Sequence[int]] = {"states": (0, 1), "params": (0, 1, 2), "calibration": (0, 2)}

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
                **{key: whole[key] for key in ("title", "sentence", "notes")},
                "tables": tables, "about": about, "against": against(kind, whole),
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


def _states(found: Finding) -> str:
    names = {"output": "z", "gradient": "dKL/dz", "output*gradient": "the product"}
    layers = max((r["layers"] for r in found["records"]), key=len)
    values = {n: main_auroc(found, state=s, layers=layers) for s, n in names.items()}
    best = max(values, key=lambda n: values[n])
    listed = ", ".join(f"{n} {v:.2f} %" for n, v in values.items())
    same = "So it is here" if best == "the product" else f"Here {best} is best"
    return f"In the paper the product is best (Table 16). {same}: far-OOD AUROC {listed}."


def _layers(found: Finding) -> str:
    paths = [row[0] for row in found["tables"][0]["rows"]]
    values = [main_auroc(found, layers=path) for path in paths]
    rises = all(b >= a for a, b in zip(values, values[1:]))
    text = "In the paper every further layer helps (Table 4). "
    return text + ("So it does here." if rises else "Not here: see the table.")


def _params(found: Finding) -> str:
    deepest = found["records"][0]["layer"]
    best = {}
    for name in ("steepness", "bound", "n_bins"):
        rows = [r for r in found["records"] if r["parameter"] == name and r["layer"] == deepest
                and r["layers"] == "alone" and r["dataset"] == "farood"]  # fmt: skip
        best[name] = max(rows, key=lambda r: r["AUROC"])["value"] if rows else None
    told = ", ".join(
        f"{title} {best[name]:g}"
        for name, title in (("steepness", "alpha"), ("bound", "r"), ("n_bins", "M"))
        if best[name] is not None
    )
    return (
        "In the paper the deepest layer of CIFAR-10 is best with alpha 100, r 1 and M 50 (Tables "
        f"5 to 7). Here the best single values are {told}."
    )


def _samples(found: Finding) -> str:
    sizes = sorted({r["samples"] for r in found["records"]})
    way = "O* kept"
    few, many = (main_auroc(found, samples=size, way=way) for size in (sizes[0], sizes[-1]))
    close = "So it is here" if many - few < 1 else "Not here"
    return (
        "In the paper 1 % of the training data is about as good as all of it (Figure 7; 500 of "
        f"50,000 images). {close}: {sizes[0]} samples give {few:.2f} % far-OOD AUROC, "
        f"{sizes[-1]} give {many:.2f} %."
    )


def _near(found: Finding) -> str:
    names = [row[0] for row in found["tables"][0]["rows"]]
    return (
        "In the paper NAC has the best near-OOD AUROC on CIFAR-10 (Table 15). Here it is number "
        f"{names.index('NAC') + 1} of {len(names)}."
    )


def _weighted(found: Finding) -> str:
    ways = ("searched weights", "equal weights")
    searched, equal = (main_auroc(found, weights=way) for way in ways)
    return (
        "In the paper weights raise far-OOD AUROC on CIFAR-10 from 94.60 to 95.80 % (Table 17). "
        f"Here it goes from {equal:.2f} to {searched:.2f} %."
    )


def _calibration(found: Finding) -> str:
    errors = {
        (r["dataset"], r["method"]): r["RMS"]
        for r in found["records"]
        if r["mixture"] == "all samples" and r["dataset"] != "ID alone"
    }
    sets = list(dict.fromkeys(name for name, _ in errors))
    lower = sum(errors[name, "NAC"] < errors[name, "MSP"] for name in sets)
    return (
        "In the paper the error of NAC is lower than that of MSP and TempScale on all six sets "
        f"(Table 19). Here coverage, read as a probability, has a lower RMS error than MSP on "
        f"{lower} of {len(sets)} sets. The paper does not say how coverage becomes a probability."
    )


def _cost(found: Finding) -> str:
    summary = found["values"]["summary"]
    nac, gen = summary["NAC, 1 layer"], summary.get("GEN")
    text = "In the paper NAC on one layer is faster than GEN, and set up faster than ViM and SHE, "
    text += "which look at all of ImageNet (Table 14). "
    if gen is None:
        return text
    return (
        text + f"Here scoring with one layer takes {nac['ratio'][0]:.2f} forward passes, GEN "
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
        f"Here it is on {better} of {len(pairs)}, which were trained only briefly."
    )


_AGAINST = {
    "states": _states, "layers": _layers, "params": _params, "samples": _samples, "near": _near,
    "weighted": _weighted, "calibration": _calibration, "cost": _cost, "schemes": _schemes,
}  # fmt: skip


def page(findings: Mapping[str, Mapping[str, Finding]]) -> str:
    """The page as Markdown."""
    source = (HERE / "analyses.md.j2").read_text(encoding="utf-8")
    # what is written is Markdown, so nothing is escaped as HTML
    template = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    printed = yaml.safe_load((HERE / "analyses_paper.yml").read_text(encoding="utf-8"))
    return template.from_string(source).render(
        findings=findings, kinds=KINDS, sources=SOURCES, table=markdown, printed=printed
    )


def markdown(table: Mapping[str, Any]) -> str:
    """A table of a finding as Markdown."""
    heads = [" ".join(filter(None, (c["group"], c["title"]))) for c in table["columns"]]
    marks = ["---:" if c["number"] else "---" for c in table["columns"]]
    lines = [heads, marks, *([_text(entry) for entry in row] for row in table["rows"])]
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
    file = DOCS / "analyses.json"
    findings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name in SOURCES:
        folder = getattr(args, name)
        findings[name] = {**findings.get(name, {}), **(kept(folder) if folder else {})}
    file.write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")
    (DOCS / "analyses.md").write_text(page(findings), encoding="utf-8")


if __name__ == "__main__":
    main()
