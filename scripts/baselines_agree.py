"""The table of docs/baselines.md: AUROC of OpenOOD's baselines and of pytorch-ood's, side by side.

    python scripts/baselines_agree.py --openood DIR --data-root DIR --checkpoint best.ckpt

Needs OpenOOD's source tree with its dependencies, its CIFAR-10 layout and a ResNet-18 for 32x32
images. `--train`, `--val` and `--test` thin the sets evenly. Methods that look at features only are
given the same features, of one pass; the others run on the network itself.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from nac_openood.bench.head import Head, head_of, with_features
from nac_openood.bench.imglist import BENCHMARKS
from nac_openood.bench.networks import CifarResNet18, load_checkpoint
from nac_openood.bench.scorer import Given
from nac_openood.bench.torch_ood import METHODS, make
from nac_openood.plugin.compat import compat
from nac_openood.ranking import auroc

NEAR, FAR = ["cifar100", "tin"], ["mnist", "svhn", "texture", "places365"]
CIFAR10 = BENCHMARKS["cifar10"]


class Dicts(Dataset[Any]):
    """Samples as OpenOOD's data sets give them."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.samples[index]
        return {**sample, "data_aux": sample["data"]}


def image_sets(args: argparse.Namespace) -> dict[str, Any]:
    sizes = {"train_cifar10": args.train, "val_cifar10": args.val, "val_tin": args.val}
    sizes.update({f"test_{name}": args.test for name in ["cifar10", *NEAR, *FAR]})
    found = {}
    for name, size in sizes.items():
        images = CIFAR10.images(args.data_root, name, CIFAR10.transform())
        size = min(size or len(images), len(images))
        rows = np.linspace(0, len(images) - 1, size).round().astype(int)
        found[name] = Dicts(Subset(images, rows.tolist()))
    return found


def loader(dataset: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=100)


def feature_sets(net: torch.nn.Module, images: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, dataset in images.items():
        rows: list[dict[str, Any]] = []
        for batch in loader(dataset):
            features = with_features(net, batch["data"]).features
            rows += [{"data": x, "label": int(y)} for x, y in zip(features, batch["label"])]
        found[name] = Dicts(rows)
    return found


def ours(method: str, net: torch.nn.Module, sets: dict[str, Any]) -> tuple[dict, Any]:
    loaders = {name: loader(dataset) for name, dataset in sets.items()}
    train, id_val, ood_val = (loaders[n] for n in ("train_cifar10", "val_cifar10", "val_tin"))
    scorer = make(method)
    fit = scorer.setup(
        Given(net, "cifar10", 10, train, id_val, ood_val, CIFAR10.std, progress=False)
    )
    tests = {n[5:]: loaders[n] for n in loaders if n.startswith("test_")}
    return {n: scorer.score(found).score for n, found in tests.items()}, dict(fit.hyperparameters)


def openoods(method: str, net: Any, sets: dict[str, Any], root: Path) -> tuple[dict, Any]:
    from openood.evaluation_api import Evaluator
    from openood.evaluation_api.postprocessor import get_postprocessor
    from openood.networks.ash_net import ASHNet

    loaders = {name: loader(dataset) for name, dataset in sets.items()}
    inside = {"train": loaders["train_cifar10"], "val": loaders["val_cifar10"]}
    outside = {"val": loaders["val_tin"]}
    post = get_postprocessor(str(root / "configs"), method, "cifar10")
    net = ASHNet(net) if method == "ash" else net
    post.setup(net, inside, outside)
    if post.APS_mode:
        evaluator = Evaluator.__new__(Evaluator)  # for its search, without its data
        evaluator.net, evaluator.postprocessor = net, post
        evaluator.dataloader_dict = {"id": inside, "ood": outside}
        evaluator.hyperparam_search()
    tests = {n[5:]: loaders[n] for n in loaders if n.startswith("test_")}
    scores = {n: post.inference(net, found, progress=False)[1] for n, found in tests.items()}
    return scores, post.get_hyperparam() if post.APS_mode else None


def means(scores: dict[str, np.ndarray]) -> tuple[float, float]:
    flat = {name: torch.as_tensor(np.asarray(s)).double().reshape(-1) for name, s in scores.items()}
    by_set = {n: 100 * float(auroc(flat["cifar10"], flat[n])) for n in [*NEAR, *FAR]}
    return float(np.mean([by_set[n] for n in NEAR])), float(np.mean([by_set[n] for n in FAR]))


def tried(run: Any, *given: Any) -> tuple[Optional[tuple[float, float]], Any]:
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            scores, point = run(*given)
        return means(scores), point
    except Exception as error:  # a method that fails is a row of the table too
        return None, f"{type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("openood", "data-root", "checkpoint"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("train", "val", "test"):
        parser.add_argument(f"--{name}", type=int, default=0, help="images a set, 0 for all")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    args = parser.parse_args()
    sys.path.append(str(args.openood))
    images = image_sets(args)
    net = load_checkpoint(CifarResNet18(), args.checkpoint)
    needed = {METHODS[m].adapter.needs for m in args.methods}
    features = feature_sets(net, images) if "features" in needed else {}
    head = Head(head_of(net, images["val_tin"][0]["data"][None])[1])
    with compat():
        from openood.networks.resnet18_32x32 import ResNet18_32x32

        theirs = load_checkpoint(ResNet18_32x32(), args.checkpoint).eval()
        for method in args.methods:
            by_features = METHODS[method].adapter.needs == "features"
            sets = features if by_features else images
            first = tried(openoods, method, head if by_features else theirs, sets, args.openood)
            second = tried(ours, method, head if by_features else net, sets)
            cells = [
                f"{v:.2f}"
                for pair in zip(*(r[0] or (np.nan,) * 2 for r in (first, second)))
                for v in pair
            ]
            print(f"| {method} | {' | '.join(cells)} | {first[1]} / {second[1]} |", flush=True)


if __name__ == "__main__":
    main()
