"""What a hyperparameter search costs inside OpenOOD, as a ratio.

    OPENOOD_SRC=<source tree> NAC_BENCH=<miniature benchmark> python benchmarks/openood_setup.py

Times the construction of the real `Evaluator` with the search of the CIFAR-10 config (256 points)
against one pass of `NACDetector` over the fitting subset and both validation sets, and against
OpenOOD's own Cartesian sweep on cached readings. Without NAC_BENCH small generated data are used.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
if os.environ.get("OPENOOD_SRC"):
    sys.path.append(os.environ["OPENOOD_SRC"])

import nac_openood
from nac_openood import NACDetector
from nac_openood.detector.batches import fitting_loader
from nac_openood.detector.config import preset

nac_openood.register(compat=True)
from openood.evaluation_api import Evaluator
from openood.networks.resnet18_32x32 import ResNet18_32x32


def data_and_network(folder: Path) -> tuple[Path, torch.nn.Module]:
    net = ResNet18_32x32(num_classes=10).eval()
    bench = os.environ.get("NAC_BENCH")
    if not bench:
        from openood_tiny import write_benchmark

        return write_benchmark(folder), net
    with tarfile.open(Path(bench) / "cifar10-mini.tar") as archive:
        archive.extractall(folder)
    path = Path(bench) / "checkpoints" / "cifar10_resnet18_32x32_base" / "s0" / "best.ckpt"
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return folder, net


def evaluate(net: torch.nn.Module, data: Path, config: Path) -> tuple[Evaluator, float]:
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        found = Evaluator(
            net, "cifar10", str(data), str(config),
            postprocessor_name="nac", batch_size=100, num_workers=0,
        )  # fmt: skip
    return found, time.perf_counter() - start


def main(folder: Path) -> None:
    data, net = data_and_network(folder / "data")
    document = preset("cifar10", "resnet").to_dict()
    configs = {}
    for search_in in ("setup", "openood"):
        document["postprocessor"]["postprocessor_args"]["search_in"] = search_in
        configs[search_in] = folder / search_in
        (configs[search_in] / "postprocessors").mkdir(parents=True)
        path = configs[search_in] / "postprocessors" / "nac.yml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
    ours, seconds = evaluate(net, data, configs["setup"])
    loaders = ours.dataloader_dict
    detector = NACDetector(net, "cifar10")
    start = time.perf_counter()
    subset = fitting_loader(loaders["id"]["train"], 1000)
    for loader in (subset, loaders["id"]["val"], loaders["ood"]["val"]):
        detector.read_loader(loader, progress=False)
    one_pass = time.perf_counter() - start
    theirs, swept = evaluate(net, data, configs["openood"])
    result = ours.postprocessor.search_result
    rows = {
        "one pass over fitting subset and validation sets": one_pass,
        f"Evaluator with our search, {result.evaluated} points [<= 1.3]": seconds,
        "Evaluator with OpenOOD's own sweep": swept,
        "the search itself": result.seconds,
    }
    for title, took in rows.items():
        print(f"{title:50}{took:8.1f} s {took / one_pass:6.2f} x")
    same = ours.postprocessor.get_hyperparam() == theirs.postprocessor.get_hyperparam()
    print(f"validation AUROC {100 * result.best.auroc:.4f}; both chose the same settings: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
