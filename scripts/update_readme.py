"""Write stored figures into the README and the docs (`PAGES`); `--check` only compares.

Make them first: python scripts/demo_figures.py, python benchmarks/speed.py --save,
python benchmarks/memory.py --save, python benchmarks/processes.py --save,
python scripts/nac_plus_figures.py, python benchmarks/validity.py --save
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Callable

from nac_openood.benchmark.run.results import Results
from nac_openood.cli import build_parser
from nac_openood.cli.output import in_options
from nac_openood.detector.display import share_text
from nac_openood.report.comparison import summary_table
from nac_openood.report.gallery import sentences

ROOT = Path(__file__).resolve().parents[1]


def speed() -> str:
    found = json.loads((ROOT / "benchmarks" / "speed.json").read_text())
    passes = found["passes"]
    rows = list(dict.fromkeys(name for ratios in passes.values() for name in ratios))
    torch_version = found["torch"].split("+")[0]
    lines = [
        "Scoring time with four layers of 50 bins over a plain forward pass of the same batch "
        f"(CPU, {found['threads']} threads, torch {torch_version}; `benchmarks/speed.py`):",
        "",
        "| | " + " | ".join(passes) + " |",
        "| --- |" + " --- |" * len(passes),
    ]
    for row in rows:
        cells = (f"{r[row]:.2f} x" if row in r else "-" for r in passes.values())
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    for row in found["memory"][next(iter(passes))]:
        cells = (f"{found['memory'][title][row]:.0f} MB" for title in passes)
        lines.append(f"| {row}, memory | " + " | ".join(cells) + " |")
    lines += [
        "",
        "NAC+ needs no backward pass, and neither does NAC with the deepest layer only. A ratio "
        "below 1 is possible: on CPUs we run large batches in parts, the plain pass does not. "
        "Memory is what scoring the batch adds to that of the process.",
    ]
    step, wide = found["histogram"], found["bins"]["5000"]
    lines += [
        "",
        f"Counting and scoring 200 x 2048 states in 1000 bins is {step['faster']:.0f} x faster "
        f"than comparing with every bin, in 1/{step['smaller']:.0f} of the extra memory. From 50 "
        f"to 5000 bins fitting takes {wide['time']:.2f} x the time and {wide['memory']:.2f} x the "
        "memory.",
        "",
    ]
    return "\n".join(lines)


def demo() -> str:
    """The demo's table as the terminal shows it, below a picture of its report."""
    results = Results.load(ROOT / "benchmarks" / "demo")
    alt = "The report of nac-openood demo: where NAC stands, and the ranking of all methods"
    shown = in_options(summary_table(results), build_parser()[1]["demo"])
    return f"![{alt}](demo/report.png)\n\n```\n{shown}\n```\n"


def confident() -> str:
    """Three confident mistakes of the demo's network, and how many such mistakes are caught."""
    results = Results.load(ROOT / "benchmarks" / "demo")
    assert results.confident is not None, "the demo's network makes no confident mistakes"
    shown = [
        f"{share_text(e.confidence)} sure of a {e.answer}, p = {e.p_value:.2g}"
        for e in results.confident.examples
    ]
    alt = f"A network trained on digits, shown parts of photographs: {'; '.join(shown)}"
    seen, caught = sentences(results, results.confident)
    return f"[![{alt}](docs/demo/confident.png)](docs/demo.md)\n\n{seen} **{caught}**\n"


#: Methods of the README's short table: ours, the best of the others and the usual baselines.
_SHORT = ("nac_plus", "nac", "gen", "ash", "ebo", "msp", "knn", "vim")


def measured() -> str:
    """AUROCs on the demo's digits and on the miniature benchmark, of a few methods."""
    results = Results.load(ROOT / "benchmarks" / "demo")
    titles = {row.method: row.title for row in results.rows}
    miniature = _miniature()
    lines = [
        "| AUROC in percent | digits, near | digits, far | mini CIFAR-10, near "
        "| mini CIFAR-10, far |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for method in _SHORT:
        digits = (results.value(method, group, "AUROC").mean for group in ("nearood", "farood"))
        title = titles[method]
        shown = f"**{title}**" if method.startswith("nac") else title
        cells = [f"{value:.2f}" for value in digits] + miniature[title]
        lines += [f"| {shown} | " + " | ".join(cells) + " |"]
    return "\n".join(lines) + "\n"


def _miniature() -> dict[str, list[str]]:
    """Near and far AUROC by method, from the first table of docs/comparison.md."""
    page = (ROOT / "docs" / "comparison.md").read_text()
    table = page.split("## Fast methods")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?:\*\*)?([\w+]+)(?:\*\*)? \| (.*) \|$", table, re.MULTILINE)
    cells = {title: numbers.split(" | ") for title, numbers in rows}
    return {title: [numbers[0], numbers[3]] for title, numbers in cells.items() if numbers[0]}


def nac_plus() -> str:
    """What NAC+ and its parts are worth on the miniature benchmark."""
    found = json.loads((ROOT / "docs" / "nac_plus" / "figures.json").read_text())
    near, far = found["default"]
    weights = " | ".join(f"{float(w):g}" for w in found["weights"])
    lines = [
        "On the miniature CIFAR-10 benchmark (OpenOOD's ResNet-18 after a short training, 2,000 ID",
        "test images), as OpenOOD runs it, fitted on 1,000 training images: AUROC",
        f"**{near:.2f}** near, **{far:.2f}** far. [All methods side by side](comparison.md).",
        "Fitted on all 5,000:",
        "",
        "| | near AUROC | far AUROC |",
        "| --- | ---: | ---: |",
        *(f"| {title} | {n:.2f} | {f:.2f} |" for title, (n, f) in found["parts"].items()),
        "",
        "The weight of the logits trades near against far. It was set to 2 without a look at these",
        "test sets ([how](../benchmarks/notes/nac_plus_study.md)):",
        "",
        "![near and far AUROC against the weight of the logits](nac_plus/weight.png)",
        "",
        f"| weight of the logits | {weights} |",
        "| --- |" + " ---: |" * len(found["weights"]),
    ]
    for place, title in enumerate(("near AUROC", "far AUROC")):
        cells = (f"{pair[place]:.2f}" for pair in found["weights"].values())
        lines += [f"| {title} | " + " | ".join(cells) + " |"]
    lines += [
        "",
        f"False alarms, calibrated on {found['calibration_samples']:,} validation images. Images",
        "like these are in the expected range in 95 % of cases:",
        "",
        "| alarm at | false alarms on ID test images | expected |",
        "| --- | ---: | --- |",
    ]
    for alarms in found["false_alarms"]:
        rate, low, high = (100 * share for share in (alarms["rate"], *alarms["expected"]))
        lines += [f"| p <= {alarms['level']:g} | {rate:.1f} % | {low:.1f} to {high:.1f} % |"]
    lines += [
        "",
        "Fitting sizes, mean and range over five draws:",
        "",
        "| fitting images | near AUROC | far AUROC |",
        "| ---: | --- | --- |",
    ]
    for n, runs in found["sizes"].items():
        lines += [f"| {int(n):,} | " + " | ".join(_spread(list(v)) for v in zip(*runs)) + " |"]
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    mean = f"{sum(values) / len(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def memory() -> str:
    """Peak memory of fitting against the number of samples, and what ViT-B/16 keeps."""
    found = json.loads((ROOT / "benchmarks" / "memory.json").read_text())
    lines = [
        "| samples | NAC: peak | kept | NAC+: peak | kept |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for n in found["fit"]["nac"]:
        rows = (found["fit"][rule][n] for rule in ("nac", "nac_plus"))
        cells = (f"{row['extra_mb']:.1f} MB | {row['state_mb']:.2f} MB" for row in rows)
        lines += [f"| {int(n):,} | " + " | ".join(cells) + " |"]
    kept = found["vit"]["state_mb"]
    lines += [
        "",
        "A small convolutional network, two layers of up to 128 neurons, synthetic images,",
        f"batches of {found['batch']}; each fit in a process of its own "
        "(`benchmarks/memory.py`). NAC+ has set all its",
        "1,000 samples aside after 10,000. For ViT-B/16 with the paper's four layers,",
        f"{', '.join(found['vit']['layers'])}, NAC keeps {kept['nac']:.1f} MB and NAC+ "
        f"{kept['nac_plus']:.1f} MB, after 1.28 million images as",
        "after 10,000 (computed from the shapes, not measured over such a run).",
    ]
    return "\n".join(lines) + "\n"


def processes() -> str:
    """Throughput against the number of processes, and what happened when one was killed."""
    found = json.loads((ROOT / "benchmarks" / "processes.json").read_text())
    rates, kills = found["images_per_second"], found["kills"]
    running = [kill for kill in kills if kill["was_running"]]
    failed = sum(kill["code"] != 0 for kill in running)
    intact = sum(kill["intact"] for kill in running)
    lines = [
        "| processes | images/s | over one |",
        "| ---: | ---: | ---: |",
        *(f"| {n} | {rate:.0f} | {rate / rates['1']:.2f} x |" for n, rate in rates.items()),
        "",
        f"Scoring with NAC+ on a ResNet-18 with 32-pixel images, one thread per process, on "
        f"{found['cores']} cores (`benchmarks/processes.py`).",
        "",
        f"In {len(running)} runs of `fit` and `compare` in three processes, one process was killed "
        f"at a random moment. {failed} of the {len(running)} jobs ended with an error, after at "
        f"most {max(kill['seconds'] for kill in running):.1f} seconds. After {intact} of them "
        "every file was intact, and a comparison that was run again gave the scores of an "
        "undisturbed one.",
    ]
    return "\n".join(lines) + "\n"


def validity() -> str:
    """What benchmarks/validity.py measured: promises beside what happened."""
    found = json.loads((ROOT / "benchmarks" / "validity.json").read_text())
    levels = (0.2, 0.1, 0.05, 0.01, 0.001)
    rates = {**found["false_alarms"], **found["real"]}
    fewest = min(result["sets"] for result in rates.values())
    lines = [
        "False alarms, in percent of ID samples, mean over calibration sets: the highest of six",
        "distributions (normal, Cauchy, exponential, log-normal, with ties, a mixture), and those",
        f"of real images, split at random ({fewest} calibration sets or more, "
        "`benchmarks/validity.py`):",
        "",
        "| alarm at p <= | " + " | ".join(map(str, levels)) + " |",
        "| --- |" + " ---: |" * len(levels),
    ]
    groups: dict[str, list[list[float]]] = {}
    for name, result in rates.items():
        rule, *middle, n = name.split(", ")
        title = "NAC" if rule == "nac" else "NAC+"
        real = name in found["real"]
        key = f"{title}, {middle[0]}, {n}" if real else f"{title}, simulated, {n}"
        groups.setdefault(key, []).append(result["rates"])
    for key, runs in groups.items():
        highest = [100 * max(run[k] for run in runs) for k in range(len(levels))]
        lines += [f"| {key} | " + " | ".join(f"{rate:.2f}" for rate in highest) + " |"]
    over = max(max(result["errors_over"]) for result in rates.values())
    lines += [
        "",
        f"Of {len(rates) * len(levels)} rates, the one most above its level is {over:.1f} standard",
        "errors above it. Promises for one calibration set, broken in this share of sets (the",
        "p-values anywhere, the threshold at 5 %):",
        "",
        "| promise may be broken in | p-values | threshold |",
        "| --- | ---: | ---: |",
    ]
    for name, result in found["conditional"].items():
        if result["promised"] != 0.1:
            continue
        shares = (100 * result[key] for key in ("promised", "broken", "threshold_broken"))
        lines += ["| {}: {:.0f} % | {:.1f} % | {:.1f} % |".format(name, *shares)]
    lines += [
        "",
        "Selections from 1,000 samples, OOD scores four standard deviations lower:",
        "",
        "| | false discoveries | OOD samples found |",
        "| --- | ---: | ---: |",
    ]
    for name, result in found["selections"].items():
        if result["asked"] != 0.1:
            continue
        lines += [f"| {name} | {100 * result['fdr']:.1f} % | {100 * result['found']:.1f} % |"]
    watched = found["monitors"]
    lines += [
        "",
        f"Monitors on {watched['streams']} ID streams of {watched['length']:,} inputs, with 1,000",
        "calibration samples: "
        + ", ".join(
            f"{100 * s:.0f} % alarms at {float(a):.0%}" for a, s in watched["alarms"].items()
        )
        + ". A mean of the last 100 scores with a limit at its 1 % quantile raised",
        f"a false alarm in {100 * watched['naive_alarms']:.0f} % of the streams. Inputs from a",
        "change to the alarm (1 %), median of 20 streams; OOD scores are 2.5 deviations lower:",
        "",
        "| OOD inputs | monitor | mean of 100 scores |",
        "| --- | ---: | ---: |",
    ]
    for share, (ours, naive) in watched["delays"].items():
        lines += [f"| {share} | {ours:,.0f} | {naive:,.0f} |"]
    lines += [
        "",
        "What it costs that half of NAC+'s calibration samples only rank: AUROC, and OOD samples",
        "detected at 5 % false alarms, of a score shaped by half of them / by all of them, in",
        "percent (means of 50 random calibration sets):",
        "",
        "| calibration samples | near AUROC | far AUROC | near detected | far detected |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, result in found["power"].items():
        near, near_out, far, far_out = zip(result["half"], result["all"])
        cells = (f"{a:.2f} / {b:.2f}" for a, b in (near, far, near_out, far_out))
        lines += [f"| {name} | " + " | ".join(cells) + " |"]
    return "\n".join(lines) + "\n"


#: What stands between `<!-- name:begin -->` and `<!-- name:end -->`, by file.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"confident": confident, "measured": measured},
    "docs/demo.md": {"demo": demo},
    "docs/scale.md": {"memory": memory, "processes": processes, "speed": speed},
    "docs/method.md": {"figures": nac_plus},
    "benchmarks/notes/validity.md": {"validity": validity},
}


def updated(page: str) -> str:
    """The text of a page with the figures in it."""
    text = (ROOT / page).read_text()
    for name, make in PAGES[page].items():
        section = re.compile(rf"(<!-- {name}:begin[^>]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not section.search(text):
            sys.exit(f"{page} has no place for '{name}'")
        content = make()
        text = section.sub(lambda m, c=content: m.group(1) + c + m.group(2), text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        if "--check" not in sys.argv[1:]:
            (ROOT / page).write_text(updated(page))
        elif updated(page) != (ROOT / page).read_text():
            sys.exit(f"{page} is not what the stored figures say")
