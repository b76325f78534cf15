"""NAC at work on real images that come with scikit-learn: handwritten digits and photographs.

Digits 0 to 7 are what a small residual network learns; digits 8 and 9 (near) and patches of two
photographs (far) are what it has never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from nac_openood.bench.networks import ResidualBlock
from nac_openood.detector import NACDetector
from nac_openood.search import SURROGATES, search, surrogate_ood

_KNOWN = 8  # digits 0..7 are in-distribution
_LAYERS = ["avgpool", "layer3", "layer2", "layer1"]


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Args:
        accuracy: of the network on test digits 0..7.
        auroc: AUROC by out-of-distribution set, for NAC and for the softmax confidence (MSP).
        kept: share of the sets that the calibrated detector calls in-distribution.
    """

    accuracy: float
    auroc: dict[str, dict[str, float]]
    kept: dict[str, float]


class DigitNet(nn.Module):
    """A small residual network with the module names of a ResNet, for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ResidualBlock(1, 16, 1)
        self.layer2 = ResidualBlock(16, 32, 1)
        self.layer3 = ResidualBlock(32, 64, 2)
        self.layer4 = ResidualBlock(64, 128, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(128, _KNOWN)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[batch, 8]` of images `[batch, 1, 8, 8]`."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def run(
    epochs: int = 12, seed: int = 0, say: Callable[[str], None] = lambda text: None
) -> DemoResult:
    """Train, fit, calibrate and score; `say` is told what is going on."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        train, val, test = _digits(seed)
        say(f"training a small residual network on {len(train[1])} digits 0..{_KNOWN - 1}")
        net = _train(DigitNet(), *train, epochs=epochs)
    say("reading the network once, searching NAC's settings without it")
    reader = NACDetector(net, _LAYERS)
    stand_ins = surrogate_ood(*val, per_image=len(SURROGATES), seed=seed)
    fit, inside, outside = (reader.read_loader(_loader(x)) for x in (train[0], val[0], stand_ins))
    found = search(fit, inside, outside, layers=reader.configs)
    detector = NACDetector(net, found.layers).fit_readings(fit).calibrate(_loader(val[0]))
    seen = detector.score_loader(_loader(*test))
    threshold = detector.threshold_
    auroc, kept = {}, {"digits 0..7 (test)": float((seen.score >= threshold).mean())}
    for name, images in _strange().items():
        say(f"scoring {len(images)} images: {name}")
        score = detector.score_loader(_loader(images)).score
        confidence = [_confidence(net, x) for x in (test[0], images)]
        auroc[name] = {"NAC": _auroc(seen.score, score), "MSP": _auroc(*confidence)}
        kept[name] = float((score >= threshold).mean())
    return DemoResult(float((seen.prediction == seen.label).mean()), auroc, kept)


def _digits(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of the known digits: train, validation, test."""
    images, labels = _all_digits()
    known = np.flatnonzero(labels.numpy() < _KNOWN)
    rest, test = train_test_split(known, test_size=0.25, random_state=seed)
    train, val = train_test_split(rest, test_size=0.2, random_state=seed)
    return [(images[i], labels[i]) for i in (train, val, test)]


def _all_digits() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.images / 8.0 - 1.0, dtype=torch.float32)[:, None]
    return images, torch.tensor(digits.target, dtype=torch.int64)


def _strange() -> dict[str, Tensor]:
    images, labels = _all_digits()
    return {"digits 8 and 9 (near)": images[labels >= _KNOWN], "photo patches (far)": _patches()}


def _patches(side: int = 32) -> Tensor:
    """Patches of scikit-learn's photographs, gray and shrunk to 8x8."""
    photos = load_sample_images().images
    patches = []
    for photo in photos:
        gray = torch.tensor(photo, dtype=torch.float32).mean(dim=2) / 127.5 - 1.0
        tiles = gray.unfold(0, side, side).unfold(1, side, side).reshape(-1, 1, side, side)
        patches.append(F.interpolate(tiles, size=8, mode="area"))
    return torch.cat(patches)


def _loader(*tensors: Tensor) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*tensors), batch_size=100)


def _train(net: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    batches = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs * len(batches))
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def _confidence(net: nn.Module, images: Tensor) -> np.ndarray:
    with torch.inference_mode():
        return net(images).softmax(dim=1).amax(dim=1).numpy()


def _auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    positive = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    return float(roc_auc_score(positive, np.concatenate([inside, outside])))
