"""How exactly an ONNX program gives what Python gives, on every test image of a benchmark.

    python benchmarks/export_equality.py DATA_ROOT CHECKPOINT [EVERY]

DATA_ROOT is laid out as OpenOOD has it, for CIFAR-10; CHECKPOINT is one of a CIFAR ResNet-18. NAC+
is fitted on 1000 training images, calibrated on the validation images and exported. Images whose
scores differ are judged once more in Python, alone instead of in a batch: does Python agree with
itself there? EVERY 10 takes one test image of ten. The figures are those in docs/deploy.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import onnxruntime
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset

from nac_openood import NACDetector
from nac_openood.detector.export import INPUT
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import CifarResNet18
from nac_openood.sources.sets import BENCHMARKS

CIFAR10 = BENCHMARKS["cifar10"]
TESTS = ("cifar10", *CIFAR10.near, *CIFAR10.far)
BATCH, CLOSE = 100, 1e-5


class Answers(NamedTuple):
    """What is said about images, in tensors with a row for each."""

    logits: Tensor
    score: Tensor
    p_value: Tensor
    decision: Tensor


def of_python(detector: NACDetector, batches: list[Tensor]) -> Answers:
    found = [detector.judge(x) for x in batches]
    with torch.inference_mode():
        logits = torch.cat([detector.net(x) for x in batches])
    columns = zip(*((v.score, v.p_value, v.out()) for v in found))
    return Answers(logits, *map(torch.cat, columns))


def of_onnx(path: Path, batches: list[Tensor]) -> Answers:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = [session.run(Answers._fields, {INPUT: x.numpy()}) for x in batches]
    return Answers(*(torch.cat([torch.from_numpy(a) for a in column]) for column in zip(*found)))


def show(title: str, found: Answers, expected: Answers) -> None:
    print(title)
    for name in Answers._fields[:3]:
        apart = (getattr(found, name) - getattr(expected, name)).abs().reshape(len(found.score), -1)
        far = int((apart.amax(1) > CLOSE).sum())
        print(f"  {name}: at most {apart.max():.2g} apart; {far} images by more than {CLOSE}")
    print(
        f"  decisions that differ: {int((found.decision != expected.decision).sum())}", flush=True
    )


def main() -> None:
    root, checkpoint = map(Path, sys.argv[1:3])
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 1

    def images(name: str) -> DataLoader:
        return DataLoader(CIFAR10.images(root, name, CIFAR10.transform()), BATCH)

    net = load_checkpoint(CifarResNet18(), checkpoint).eval()
    detector = NACDetector(net, "auto", rule="nac_plus")
    detector.fit(images("train_cifar10"), 1000).calibrate(images("val_cifar10"))
    test = ConcatDataset([images(f"test_{name}").dataset for name in TESTS])
    chosen = Subset(test, range(0, len(test), every))
    x = torch.cat([batch["data"] for batch in DataLoader(chosen, BATCH)])
    print(f"{len(x)} images, onnxruntime {onnxruntime.__version__}, torch {torch.__version__}")
    expected = of_python(detector, list(x.split(BATCH)))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "detector.onnx"
        detector.export(program, x[:4])
        found = of_onnx(program, list(x.split(BATCH)))
    show("ONNX Runtime and Python", found, expected)
    apart = (found.score - expected.score).abs() > CLOSE
    if apart.any():
        alone = of_python(detector, list(x[apart].split(1)))
        n = int(((alone.score - expected.score[apart]).abs() > CLOSE).sum())
        print(f"{n} of {int(apart.sum())} have another score in Python, too, if judged alone")


if __name__ == "__main__":
    main()
