"""Tables of benchmarks/notes/pacs_study.md from the figures in its JSON file."""

from __future__ import annotations

from collections import Counter
from typing import Any, Iterable, Mapping, Optional, Sequence

import numpy as np
from scipy.stats import sem
from templates import rendered

from nac_openood.benchmark.paper.published import PrintedValue, published_choice, table
from nac_openood.evaluation.ranking import CRITERIA

Figures = Mapping[str, Any]

TARGETS = {"art_painting": "Art", "cartoon": "Cartoon", "photo": "Photo", "sketch": "Sketch"}
DOMAINS = (*TARGETS, "average")
VARIANTS = {
    "erm": "ERM",
    "max": "maximize, as printed",
    "min": "minimize, as printed",
    "max_surprisal": "maximize, surprisal",
    "min_surprisal": "minimize, surprisal",
}
CHOICES = {"RC": ("validation", "nac-me"), "ACC": ("validation", "nac-me", "oracle")}
#: Criteria that the paper does not have.
OTHERS = {"default": "NAC-ME with M 50, alpha 0.1, O* 500", "training": "training accuracy"}
#: Rows of the paper's table of NAC entropy.
PRINTED = {"erm": "ERM", "nac_maximize": "maximize", "nac_minimize": "minimize"}


def page(figures: Figures) -> str:
    """The page as Markdown."""
    rankings, runs = figures["rankings"], figures["runs"]
    seconds = [run["cpu_seconds"] for run in runs]
    known = {name: [one for one in rankings if one["target"] == name] for name in TARGETS}
    return rendered(
        "pacs_study.md.j2",
        trim=False,
        n_runs=len(runs),
        minutes=f"{sum(seconds) / 60:.0f}",
        each=f"{np.mean(seconds) / 60:.1f}",
        reading=f"{np.mean([one['cpu_seconds'] for one in rankings]):.0f}",
        trials=", ".join(f"{TARGETS[name]} {len(found)}" for name, found in known.items()),
        nac_me=nac_me_table(rankings),
        nac_me_paper=nac_me_paper(),
        **read_off(rankings),
        **entropy(runs),
    )


def nac_me_table(rankings: Sequence[Figures]) -> str:
    """RC and ACC of each criterion."""
    rows = []
    for metric, names in CHOICES.items():
        key, scale = metric.lower(), 100 if metric == "RC" else 1
        for name in names:
            values = [_times(scale, one[key][name]) for one in rankings]
            rows.append(_row(f"{metric}, {CRITERIA[name]}", rankings, values))
        for name, title in OTHERS.items():
            values = [_times(scale, one[name][key]) for one in rankings]
            rows.append(_row(f"{metric}, {title}", rankings, values))
    rows.append(_row("ACC, last checkpoint", rankings, [one["last"] for one in rankings]))
    return _table(["", *TARGETS.values(), "Average"], rows)


def nac_me_paper() -> str:
    """The same rows of the paper."""
    printed = published_choice("pacs", "resnet18")
    rows = [
        [f"{metric}, {CRITERIA[name]}", *(_printed(printed[d][name][metric]) for d in DOMAINS)]
        for metric, names in CHOICES.items()
        for name in names
    ]
    return _table(["", *TARGETS.values(), "Average"], rows)


def entropy_paper() -> str:
    """The paper's table of NAC entropy, as printed."""
    found = {(at["algorithm"], at["domain"]): v for at, v in table("Table 18").cells()}
    rows = [
        [title, *(_printed(found[name, d]) for d in DOMAINS)] for name, title in PRINTED.items()
    ]
    return _table(["", *TARGETS.values(), "Average"], rows)


def read_off(rankings: Sequence[Figures]) -> dict[str, Any]:
    """What the text says about the table."""
    compared = {}
    for key in ("rc", "acc"):
        pairs = [(one[key]["nac-me"], one[key]["validation"]) for one in rankings]
        pairs = [pair for pair in pairs if None not in pair]  # RC may be undefined
        better, worse = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
        compared[key] = {"better": better, "worse": worse, "total": len(pairs)}
    last = [(one["last"], one["acc"]["nac-me"]) for one in rankings]
    better, worse = sum(a > b for a, b in last), sum(a < b for a, b in last)
    compared["last"] = {"better": better, "worse": worse, "total": len(last)}
    chosen = Counter(
        "M {n_bins}, alpha {steepness}, O* {full_count}".format(**one["config"]) for one in rankings
    )
    gain = np.mean([one["acc"]["nac-me"] - one["acc"]["validation"] for one in rankings])
    return {
        **compared,
        "gain": f"{gain:+.2f}",
        "rc_val": f"{100 * np.mean(_defined(one['rc_val'] for one in rankings)):.1f}",
        "hindsight": f"{100 * np.mean([one['hindsight'] for one in rankings]):.1f}",
        "degenerate": sum(map(_is_training_accuracy, rankings)),
        "settings": "; ".join(f"{told} ({count})" for told, count in chosen.most_common()),
    }


def _is_training_accuracy(ranking: Figures) -> bool:
    """Whether no bin is full, so that G only counts the correct training samples."""
    full = ranking["config"]["full_count"] * ranking["config"]["n_bins"]
    return bool(np.allclose(ranking["coverage"], np.array(ranking["correct"]) / full, rtol=1e-9))


def entropy(runs: Sequence[Figures]) -> dict[str, str]:
    """Tables of the runs with NAC entropy; empty texts if there are none yet."""
    targets = [t for t in TARGETS if any(r["target"] == t and r["variant"] != "erm" for r in runs)]
    if not targets:
        return {"entropy": "", "entropy_trials": "", "entropy_paper": ""}
    baseline = {_key(run): run for run in runs if run["variant"] == "erm"}
    rows, counts = [], []
    for variant, title in VARIANTS.items():
        mine = [r for r in runs if r["variant"] == variant and r["target"] in targets]
        if not mine:
            continue
        by_target = [[r for r in mine if r["target"] == t] for t in targets]
        gains = [r["target_acc"] - baseline[_key(r)]["target_acc"] for r in mine]
        spread = [r["entropy"] for r in mine if r["entropy"] is not None]
        rows.append(
            [
                title,
                "-" if mine[0]["lam"] is None else f"{mine[0]['lam']:g}",
                *(_cell([r["target_acc"] for r in found]) for found in by_target),
                "-" if variant == "erm" else _cell(gains, sign="+"),
                _cell([r["val"] for r in mine]),
                f"{np.mean(spread):.1f}" if spread else "-",
            ]
        )
        counts.append(f"{title} {' + '.join(str(len(found)) for found in by_target)}")
    names = [TARGETS[target] for target in targets]
    head = ["", "lam", *names, "difference from ERM", "validation", "H at the end"]
    return {
        "entropy": _table(head, rows),
        "entropy_trials": "; ".join(counts),
        "entropy_paper": entropy_paper(),
    }


def _key(run: Figures) -> tuple[str, int]:
    return run["target"], run["trial"]


def _row(title: str, rankings: Sequence[Figures], values: Sequence[Optional[float]]) -> list[str]:
    """Means over trials; the average is over domains first, then over complete trials."""
    known = [(one, value) for one, value in zip(rankings, values) if value is not None]
    cells = [_cell([v for one, v in known if one["target"] == target]) for target in TARGETS]
    by_trial = [[v for one, v in known if one["trial"] == trial] for trial in range(len(rankings))]
    averages = [float(np.mean(found)) for found in by_trial if len(found) == len(TARGETS)]
    return [title, *cells, _cell(averages)]


def _times(scale: float, value: Optional[float]) -> Optional[float]:
    return None if value is None else scale * value


def _printed(value: Optional[PrintedValue]) -> str:
    if value is None or value.mean is None:
        return "-"
    return f"{value.mean:.2f}" + ("" if value.std is None else f" ± {value.std:.1f}")


def _defined(values: Iterable[Optional[float]]) -> list[float]:
    return [value for value in values if value is not None]


def _cell(values: Sequence[float], sign: str = "") -> str:
    """Mean and standard error, of one value the value alone."""
    if not values:
        return "-"
    error = f" ± {sem(values):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):{sign}.1f}{error}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
