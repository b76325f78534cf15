"""A comparison that looks like a real one, made of seeded random scores."""

from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from nac_openood.benchmark.run import results as stored
from nac_openood.benchmark.run.results import FAR, NEAR, NetworkInfo, Results, Row, SetInfo
from nac_openood.benchmark.run.store import StoredScores, method_folder, write_scores
from nac_openood.detector.outcomes import Scores

#: name -> (title, how far ID and OOD lie apart, ms per image).
METHODS = {
    "openmax": ("OpenMax", 1.25, 1.4),
    "msp": ("MSP", 1.55, 1.1),
    "odin": ("ODIN", 1.05, 4.6),
    "rmds": ("RMDS", 1.75, 2.1),
    "gram": ("Gram", 0.6, 26.0),
    "ebo": ("EBO", 1.6, 1.12),
    "opengan": ("OpenGAN", 0.5, 1.6),
    "vim": ("VIM", 1.65, 2.2),
    "knn": ("KNN", 1.83, 2.9),
    "rankfeat": ("RankFeat", 0.8, 31.0),
    "gen": ("GEN", 1.72, 1.14),
    "nac": ("NAC", 1.86, 3.4),
}
ERROR = "RuntimeError: <script>alert('x')</script> & 3 > 2, out of memory"
#: Those without results: status and error.
WITHOUT = {
    "gram": ("failed", ERROR),
    "opengan": ("absent", "OpenGAN needs a trained GAN; none given."),
}
WORKED = len(METHODS) - len(WITHOUT)
SETS = (
    SetInfo("cifar10", "id", 300), SetInfo("cifar100", "near", 240), SetInfo("tin", "near", 220),
    SetInfo("mnist", "far", 200), SetInfo("svhn", "far", 200), SetInfo("texture", "far", 180),
    SetInfo("places365", "far", 200, skipped=3),
)  # fmt: skip
RUNS = (
    NetworkInfo("s0", "results/cifar10/s0/best.ckpt", 95.2),
    NetworkInfo("s1", "results/s1/best.ckpt", 94.9),
)
#: How much easier than the average each set is, for all methods and for NAC.
EASE = {"cifar100": -0.25, "tin": -0.1, "mnist": 0.5, "svhn": 0.35, "texture": 0.2, "places365": 0}
LAYERS = {"avgpool": 1.0, "layer3": 0.9, "layer2": 0.65, "layer1": 0.35}


def _scored(draw, method, info, role_shift, scale):
    latent = draw.normal(role_shift, 1, info.images)
    label = draw.integers(0, 10, info.images) if info.role in ("id", "csid") else -1
    wrong = draw.random(info.images) < 0.05
    prediction = np.where(wrong, 0, np.broadcast_to(label, info.images))
    layers = {}
    score = latent * scale
    if method == "nac":
        for name, share in LAYERS.items():
            noise = draw.normal(0, 1.2 - share, info.images)
            layers[name] = (1 / (1 + np.exp(-latent * share - noise))).astype(np.float32)
        score = np.mean(list(layers.values()), axis=0)
    labels = np.broadcast_to(label, info.images).copy()
    return Scores(score.astype(np.float32), prediction, labels, layers)


def _row(folder, sets, method, run, scores):
    title, apart, ms = METHODS[method]
    draw = np.random.default_rng([ord(c) for c in f"{method}/{run}"])
    scored, metrics = {}, {}
    for info in sets:
        shift = apart if info.role == "id" else 0.8 * apart if info.role == "csid" else 0.0
        shift -= 0 if info.role in ("id", "csid") else EASE[info.name]
        scored[info.name] = _scored(draw, method, info, shift, 1 + len(method))
        if scores:
            path = method_folder(folder, run, method) / f"{info.name}.safetensors"
            write_scores(path, StoredScores(scored[info.name]))
    inside = np.concatenate([scored[s.name].score for s in sets if s.role in ("id", "csid")])
    for role, group in (("near", NEAR), ("far", FAR)):
        names = [s.name for s in sets if s.role == role]
        own = [{**stored.ood_metrics(inside, scored[n].score), "ACC": 95.0} for n in names]
        metrics.update(zip(names, own))
        if names:
            metrics[group] = {k: float(np.mean([m[k] for m in own])) for k in own[0]}
    return Row(
        method, title, run, "nac_openood 0.1.0" if method == "nac" else "OpenOOD 1.5", "ok", None,
        metrics, setup_seconds=20 * ms, ms_per_image=ms + (0.05 if run == "s1" else 0),
        peak_mb=100 + ms, shared_pass=ms < 2,
        hyperparameters=_HYPERPARAMETERS.get(method, {}), search=_SEARCHES.get(method),
    )  # fmt: skip


_LAYER = {"n_bins": 50, "full_count": 5, "steepness": 10.0, "weight": 1}
_HYPERPARAMETERS = {
    "knn": {"K": 50},
    "nac": {"state": "sigmoid", "n_samples": 1000, "layers": dict.fromkeys(LAYERS, _LAYER)},
}
_SEARCHES = {
    "knn": {"auroc": 0.9012, "points": 5},
    "nac": {
        "strategy": "layerwise", "objective": "auroc", "auroc": 0.9134, "fpr95": 0.34,
        "fpr95_in": 0.27, "guard": 0.512, "guard_threshold": 0.05, "points": 792, "seconds": 7.3,
    },
}  # fmt: skip


def _gallery(folder: Path) -> tuple[stored.HardSample, ...]:
    draw, found = np.random.default_rng(7), []
    (folder / "gallery").mkdir(parents=True, exist_ok=True)
    x, y = np.meshgrid(np.linspace(0, 1, 32), np.linspace(0, 1, 32))
    for i in range(12):
        kind, dataset = ("id-lowest", "cifar10") if i < 6 else ("ood-highest", SETS[1 + i % 3].name)
        waves = [np.sin(draw.uniform(3, 9) * x + draw.uniform(3, 9) * y + i) for _ in range(3)]
        pixels = (127 + 110 * np.stack(waves, axis=-1)).astype(np.uint8)
        file = f"gallery/{i:02d}.png"
        Image.fromarray(pixels).save(folder / file)
        values = draw.uniform(0, 0.4, 4) if i < 6 else draw.uniform(0.6, 1, 4)
        layers = dict(zip(LAYERS, map(float, values)))
        name = f"{dataset}/<img src=x>&{i}.png" if i == 0 else f"{dataset}/{i:05d}.png"
        found.append(stored.HardSample(kind, dataset, name, float(values.mean()), layers, file))
    return tuple(found)


def build(
    folder, change=lambda results: results, *, sets=SETS, methods=METHODS, runs=RUNS, scores=True
):
    """Write a results folder; `change` is applied before it is saved."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for method, run in product(methods, runs):
        if method in WITHOUT:
            rows.append(Row(method, METHODS[method][0], run.name, "OpenOOD 1.5", *WITHOUT[method]))
        else:
            rows.append(_row(folder, sets, method, run.name, scores))
    paper = {
        "method": "nac", "dataset": "nearood", "metric": "AUROC", "measured": 84.1,
        "measured_std": 0.2, "published": 84.6, "published_std": 0.03, "difference": -0.5,
    }  # fmt: skip
    results = Results(
        folder=folder, id_name="cifar10", arch="resnet18_32x32",
        command="nac-openood compare --id-data cifar10 --out 'my results' --runs s0 s1",
        created="2024-05-01T10:00:00", versions={"nac_openood": "0.1.0", "torch": "2.3.0"},
        machine={"device": "cpu", "threads": 2, "processor": "x86_64"}, sets=sets, runs=runs,
        rows=tuple(rows), gallery=_gallery(folder),
        paper=(paper, {**paper, "dataset": "farood", "measured": 94.2, "published": None,
                       "published_std": None, "difference": None}),
        notes=("3 images of places365 could not be read & were skipped.",),
    )  # fmt: skip
    results = change(results)
    results.save()
    return Results.load(folder)
