"""Whether promises hold: false alarms, discoveries and alarms of monitors, by simulation.

    python benchmarks/validity.py [--save] [--quick] [--readings DIR]

- False alarms of p-values: six distributions with heavy tails and ties, 16 to 1,000 calibration
  samples, for scores as they are ("nac") and fused by NAC+.
- P-values for one calibration set: the share of sets whose false alarms exceed a level anywhere.
- Selections: the false discovery rate with 1, 10 and 50 % OOD samples.
- Monitors: false alarms on long ID streams, and delays on mixtures with 5, 20 and 50 % OOD inputs,
  beside a mean of scores with a fixed limit.
- Real data: a ResNet trained on the embedded digits; and, with --readings, the miniature CIFAR-10
  benchmark (the folder of scripts/nac_plus_figures.py; for NAC, nac_*.safetensors beside them).
  ID samples are split at random.
- Power: what it costs that half of NAC+'s calibration samples only rank, on the same data.

`--save` writes benchmarks/validity.json, from which scripts/update_readme.py makes the tables of
benchmarks/notes/validity.md. Exits with 1 if a promise is broken by more than chance.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.fusion import DISTANCE, LOGITS, TOWARDS
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.metrics import auroc
from nac_openood.core.plus import NACPlus
from nac_openood.core.pvalues import PValues
from nac_openood.detector.decisions import calibrate_rule, select
from nac_openood.detector.drift import DriftMonitor
from nac_openood.detector.outcomes import ScoredBatch
from nac_openood.files import write_json

LEVELS = (0.2, 0.1, 0.05, 0.01, 0.001)
SIZES = (16, 20, 50, 100, 500, 1000)
_NEW = 200  # new samples per calibration set
Draw = np.random.Generator

#: Six distributions of scores: light and heavy tails, skewed both ways, with ties, of two kinds.
SHAPES: dict[str, Callable[[Draw, Any], np.ndarray]] = {
    "normal": lambda draw, size: draw.normal(size=size),
    "Cauchy": lambda draw, size: draw.standard_cauchy(size),
    "exponential": lambda draw, size: draw.exponential(size=size),
    "log-normal, negative": lambda draw, size: -draw.lognormal(size=size, sigma=2),
    "ties (Poisson)": lambda draw, size: draw.poisson(3, size).astype(float),
    "mixture": lambda draw, size: np.where(
        draw.random(size) < 0.1, draw.normal(-8, 3, size), draw.normal(size=size)
    ),
}


class Rates:
    """Rates of alarms over calibration sets, and whether they are above their levels."""

    def __init__(self) -> None:
        self._sets: list[list[float]] = []

    def add(self, p: Tensor) -> None:
        self._sets.append([float((p <= level).double().mean()) for level in LEVELS])

    def result(self) -> dict[str, Any]:
        rates = np.array(self._sets)
        mean, error = rates.mean(axis=0), rates.std(axis=0, ddof=1) / math.sqrt(len(rates))
        over = [float((m - a) / max(e, 1e-12)) for m, a, e in zip(mean, LEVELS, error)]
        return {"rates": mean.tolist(), "errors_over": over, "sets": len(rates)}


def fused(parts: dict[str, Tensor], n: int) -> tuple[PValues, Tensor]:
    """NAC+'s p-values calibrated on the first `n` samples, and the scores of the others."""
    rule = NACPlus({"layer": LayoutConfig()})
    none = torch.zeros(n, dtype=torch.int64)
    batch = ScoredBatch({name: part[:n] for name, part in parts.items()}, none, none, 1)
    pvalues, _ = calibrate_rule(rule, [batch])
    return pvalues, rule.combine({name: part[n:] for name, part in parts.items()})


def false_alarms(times: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        for n in SIZES:
            draw, plain, plus = np.random.default_rng(n), Rates(), Rates()
            for k in range(times):
                scores = torch.from_numpy(shape(draw, n + _NEW))
                plain.add(PValues(scores[:n])(scores[n:]))
                if k % 4 == 0:
                    shared = shape(draw, n + _NEW)  # the parts of a sample depend on each other
                    parts = {
                        part: torch.from_numpy(shape(draw, n + _NEW) + shared)
                        for part in ("layer", "layer (distance)", LOGITS, TOWARDS)
                    }
                    parts[DISTANCE] = parts[TOWARDS].roll(1).abs()
                    pvalues, scores = fused(parts, n)
                    plus.add(pvalues(scores))
            for rule, rates in (("nac", plain), ("nac_plus", plus)):
                found[f"{rule}, {name}, n = {n}"] = rates.result()
            print(f"false alarms: {name}, n = {n}", file=sys.stderr)
    return found


def conditional(times: int) -> dict[str, Any]:
    """How often the false alarms of one calibration set exceed a level, wherever that is."""
    found = {}
    for n in SIZES:
        for confidence in (0.9, 0.95):
            draw = np.random.default_rng(n)
            # scores are uniform, so the share of false alarms at a level is a score
            ordered = np.sort(draw.random((times, n)), axis=1)
            below = torch.arange(n) - 0.5
            p = PValues(np.arange(n), confidence=confidence)(below).numpy()
            limit = PValues(np.arange(1.0, n + 1), confidence=confidence).threshold or -math.inf
            at_limit = ordered[:, int(limit) - 1] if limit > 0 else np.zeros(times)
            found[f"n = {n}, confidence {confidence}"] = {
                "broken": float((ordered > p).any(axis=1).mean()),
                "threshold_broken": float((at_limit > 0.05).mean()),
                "promised": round(1 - confidence, 2),
                "sets": times,
            }
    return found


def selections(times: int) -> dict[str, Any]:
    found = {}
    for share in (0.01, 0.1, 0.5):
        for n in (100, 1000):
            for fdr in (0.05, 0.1, 0.2):
                draw, false, power, m = np.random.default_rng(n), [], [], 1000
                for _ in range(times):
                    ood = np.arange(m) < share * m
                    scores = draw.normal(size=m) - 4 * ood
                    pvalues = PValues(draw.normal(size=n))
                    out = select(pvalues(torch.from_numpy(scores)), fdr, pvalues).out
                    false.append((out & ~ood).sum() / max(1, out.sum()))
                    power.append(out[ood].mean())
                error = float(np.std(false, ddof=1) / math.sqrt(times))
                found[f"{share:.0%} OOD, n = {n}, fdr = {fdr}"] = {
                    "fdr": float(np.mean(false)), "error": error, "asked": fdr,
                    "found": float(np.mean(power)), "sets": times,
                }  # fmt: skip
    return found


def monitors(streams: int, length: int) -> dict[str, Any]:
    """False alarms on ID streams, and delays of alarms on mixtures that begin after 1,000 inputs.

    OOD scores are 2.5 standard deviations lower. The baseline is the mean of the last 100 scores
    with the limit that one window exceeds with probability 0.01.
    """
    before, limits = 1000, (0.5, 0.2, 0.1, 0.05, 0.01)
    peaks, naive_alarms = [], 0
    for seed in range(streams):
        draw = np.random.default_rng(seed)
        scores = draw.normal(size=length)
        monitor = DriftMonitor(draw.normal(size=1000), seed=seed)
        peak = -math.inf
        for start in range(0, length, 100):
            monitor.update_scores(scores[start : start + 100])
            peak = max(peak, max(value for _, value in monitor.history[-100:]))
        peaks.append(peak)
        naive_alarms += naive_delay(scores) is not None
        print(f"monitor: stream {seed + 1} of {streams}", file=sys.stderr)
    alarms = {str(a): float(np.mean([p >= -math.log10(a) for p in peaks])) for a in limits}
    delays: dict[str, Any] = {}
    for share in (0.05, 0.2, 0.5):
        ours, naive = [], []
        for seed in range(20):
            draw = np.random.default_rng(10**6 + seed)
            ood = (draw.random(20_000) < share) & (np.arange(20_000) >= before)
            scores = draw.normal(size=20_000) - 2.5 * ood
            monitor = DriftMonitor(draw.normal(size=1000), seed=seed)
            for start in range(0, len(scores), 50):
                if monitor.update_scores(scores[start : start + 50]):
                    break
            ours.append((monitor.alarm_at or math.inf) - before)
            late = naive_delay(scores[before:])
            naive.append(math.inf if late is None else late)
        delays[f"{share:.0%}"] = [float(np.median(ours)), float(np.median(naive))]
    return {
        "streams": streams, "length": length, "alarms": alarms,
        "naive_alarms": naive_alarms / streams, "delays": delays,
    }  # fmt: skip


def naive_delay(scores: np.ndarray, window: int = 100) -> int | None:
    """When the mean of a window of scores is first below its 1 % quantile."""
    means = np.convolve(scores, np.ones(window) / window, "valid")
    below = means < -2.326 / math.sqrt(window)
    return int(below.argmax()) + window if below.any() else None


# -- real networks and data ----------------------------------------------------------------


class Data(NamedTuple):
    """A detector, and its network's readings: of fitting, of ID and of OOD samples by group."""

    name: str
    detector: Any
    fit: Any
    inside: Any
    outside: dict[str, list[Any]]


def embedded() -> Iterator[Data]:
    from torch.utils.data import ConcatDataset, DataLoader

    from nac_openood import NACDetector
    from nac_openood.demo.embedded import embedded_sets
    from nac_openood.demo.trained import trained

    sets, net = embedded_sets(), trained("resnet_embedded")
    for rule in ("nac", "nac_plus"):
        detector = NACDetector(net, "auto", rule=rule)
        fit = detector.read_loader(DataLoader(sets.train, 100), in_distribution=True)
        others = ConcatDataset([sets.id_val, sets.test])
        outside = {
            group: [detector.read_loader(DataLoader(data, 100)) for data in found.values()]
            for group, found in {"near": sets.near, "far": sets.far}.items()
            if rule == "nac_plus"
        }
        inside = detector.read_loader(DataLoader(others, 100))
        yield Data(f"{rule}, digits", detector, fit, inside, outside)


def miniature(folder: Path) -> Iterator[Data]:
    from nac_openood import NACDetector, Readings
    from nac_openood.sources.networks import build

    net = build("resnet18_32x32", 10)
    groups = {"near": ("cifar100", "tin"), "far": ("mnist", "texture", "places365")}
    early = {name: LayoutConfig() for name in ("layer1", "layer2", "layer3")}
    for rule, prefix, layers in (
        ("nac", "nac_", "cifar10"),
        ("nac_plus", "", {**early, "avgpool": LayoutConfig(head_input=True)}),
    ):
        lists = ["train_cifar10", "val_cifar10", "test_cifar10"]
        if prefix and not (folder / f"{prefix}{lists[0]}.safetensors").is_file():
            continue
        fit, *inside = (Readings.load(folder / f"{prefix}{name}.safetensors") for name in lists)
        outside = {
            group: [Readings.load(folder / f"test_{name}.safetensors") for name in names]
            for group, names in groups.items()
            if rule == "nac_plus"
        }
        detector = NACDetector(net, layers, rule=rule)
        yield Data(f"{rule}, mini CIFAR-10", detector, fit, Readings.concatenate(inside), outside)


def fitted(data: Data) -> Any:
    from nac_openood.detector.readings import fit_rule

    rule = fit_rule(data.detector._new_rule(), data.fit.batches())
    rule.calibrate(map(rule.parts, data.inside.batches()))  # counts held-out training samples
    return rule


def parts_of(rule: Any, readings: Any) -> dict[str, Tensor]:
    batches = [rule.parts(batch) for batch in readings.batches()]
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def power(found: Iterable[Data], times: int) -> dict[str, Any]:
    """NAC+ with a score that half of the calibration samples shape, and that all of them do.

    AUROC and detection rate at 5 % false alarms (5 % of the other ID samples), in percent, means
    over the OOD sets of a group and over random calibration samples.
    """
    results: dict[str, Any] = {}
    for data in found:
        if not data.outside:
            continue
        rule = fitted(data)
        inside = parts_of(rule, data.inside)
        outside = {g: [parts_of(rule, each) for each in sets] for g, sets in data.outside.items()}
        n_all = data.inside.n_samples
        for n in [n for n in (100, 200, 1000) if n <= n_all // 2]:
            draw, runs = np.random.default_rng(n), []
            for _ in range(times):
                order = torch.from_numpy(draw.permutation(n_all))
                half, whole = order[1:n:2], order[:n]
                runs.append([
                    number
                    for rows in (half, whole)
                    for number in power_of(rule, inside, outside, rows, order[n:])
                ])  # fmt: skip
            title = data.name.partition(", ")[2]
            mean = np.mean(runs, axis=0).tolist()
            results[f"{title}, n = {n}"] = {"half": mean[:4], "all": mean[4:], "sets": times}
            print(f"power: {title}, n = {n}", file=sys.stderr)
    return results


def power_of(rule: Any, inside: Any, outside: Any, rows: Tensor, test: Tensor) -> list[float]:
    """AUROC and detection rate of near OOD, then of far OOD."""
    fusion = rule._new_fusion({name: part[rows] for name, part in inside.items()})
    known, numbers = fusion.score({name: part[test] for name, part in inside.items()}), []
    limit = known.quantile(0.05)
    for sets in outside.values():
        scores = [fusion.score(parts) for parts in sets]
        aurocs = [float(auroc(known, score)) for score in scores]
        detected = [float((score < limit).double().mean()) for score in scores]
        numbers += [100 * float(np.mean(aurocs)), 100 * float(np.mean(detected))]
    return numbers


def real(found: Iterable[Data], times: int) -> dict[str, Any]:
    """False alarms of random splits of ID samples that the network was not trained on."""
    results = {}
    for data in found:
        rule, name, inside = fitted(data), data.name, data.inside
        parts = parts_of(rule, inside)
        n_all = inside.n_samples
        for n in [n for n in SIZES if n <= n_all // 2]:
            draw, rates = np.random.default_rng(n), Rates()
            for _ in range(times):
                order = torch.from_numpy(draw.permutation(n_all))
                own = {part: values[order[:n]] for part, values in parts.items()}
                new = {part: values[order[n:]] for part, values in parts.items()}
                batch = ScoredBatch(own, inside.prediction[order[:n]], inside.label, 1)
                pvalues, _ = calibrate_rule(rule, [batch])
                rates.add(pvalues(rule.combine(new)))
            results[f"{name}, n = {n}"] = rates.result()
            print(f"real: {name}, n = {n}", file=sys.stderr)
    return results


def broken(found: dict[str, Any]) -> list[str]:
    """The promises that were broken by more than three standard errors."""
    names = []
    for part in ("false_alarms", "real"):
        names += [f"{part}: {n}" for n, r in found[part].items() if max(r["errors_over"]) > 3]
    for name, result in found["conditional"].items():
        a = result["promised"]
        allowed = a + 3 * math.sqrt(a * (1 - a) / result["sets"])
        if max(result["broken"], result["threshold_broken"]) > allowed:
            names.append(f"conditional: {name}")
    for name, result in found["selections"].items():
        if result["fdr"] > result["asked"] + 3 * result["error"]:
            names.append(f"selections: {name}")
    streams = found["monitors"]["streams"]
    for level, share in found["monitors"]["alarms"].items():
        a = float(level)
        if share > a + 3 * math.sqrt(a * (1 - a) / streams):
            names.append(f"monitors: {level}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write benchmarks/validity.json")
    parser.add_argument("--quick", action="store_true", help="a tenth of the draws")
    parser.add_argument("--readings", type=Path, help="of the miniature benchmark")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # about few calibration samples
    by = 10 if options.quick else 1
    data = [*embedded(), *(miniature(options.readings) if options.readings else ())]
    found = {
        "real": real(data, 400 // by),
        "power": power(data, 50 // by),
        "false_alarms": false_alarms(2000 // by),
        "conditional": conditional(20_000 // by),
        "selections": selections(400 // by),
        "monitors": monitors(100 // by, 100_000 // by),
    }
    names = found["broken"] = broken(found)
    print("\n".join(names) if names else "every promise holds")
    if options.save:
        write_json(Path(__file__).parent / "validity.json", found)
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main())
