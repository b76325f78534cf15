"""A user's network, weights, transform and image folders, as the command line meets them.

Four classes are four colors, OOD images are stripes; the network is trained for a second or two.
"""

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

COLORS = {
    "bluejay": (40, 80, 220),
    "cardinal": (220, 40, 50),
    "goldfinch": (230, 210, 40),
    "parrot": (40, 190, 60),
}
SIZES = {"train": 60, "val": 30, "test": 20}
TRANSFORM = "resize: 36\ncrop: 32\nmean: [0.5, 0.5, 0.5]\nstd: [0.25, 0.25, 0.25]\n"
#: The network and its data, as options of commands in a copy of the folder.
NETWORK = ["--arch", "net.py:make", "--checkpoint", "net.pt", "--device", "cpu"]
DATA = ["--transform", "transform.yml", "--train", "birds/train", "--val", "birds/val"]
CODE = Path(__file__).parent / "data" / "v0.1" / "net.py"


def fill(folder: Path) -> None:
    """Write net.py, net.pt, transform.yml, birds/{train,val,test}/CLASS/*.png and stripes/."""
    rng = np.random.default_rng(0)
    shutil.copy(CODE, folder / "net.py")
    (folder / "transform.yml").write_text(TRANSFORM)
    for part, count in SIZES.items():
        for name, color in COLORS.items():
            images = folder / "birds" / part / name
            images.mkdir(parents=True)
            for number in range(count):
                noise = rng.normal(0, 30, (36, 36, 3)) + rng.normal(0, 25, 3)
                _save(np.array(color) + noise, images / f"{number}.png")
    (folder / "stripes").mkdir()
    for number in range(20):
        wave = 120 * np.sin(np.arange(36) * rng.uniform(0.8, 2.5))[:, None, None]
        _save(128 + np.broadcast_to(wave, (36, 36, 3)), folder / "stripes" / f"{number}.png")
    torch.save(_trained(folder).state_dict(), folder / "net.pt")


def _save(pixels: np.ndarray, path: Path) -> None:
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)


def _trained(folder: Path) -> torch.nn.Module:
    from nac_openood.sources.networks import build
    from nac_openood.sources.readers import labelled_samples
    from nac_openood.sources.transforms import read_settings

    transform = read_settings(folder / "transform.yml").transform()
    images = labelled_samples(folder / "birds/train", transform)
    x, y = torch.stack([item["data"] for item in images]), torch.from_numpy(images.labels)
    torch.manual_seed(0)
    net = build(f"{folder / 'net.py'}:make", len(COLORS)).train()
    steps = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(40):
        steps.zero_grad()
        F.cross_entropy(net(x), y).backward()
        steps.step()
    sys.modules.pop(type(net).__module__)  # the folder is renamed when it is complete
    return net.eval()


@contextmanager
def copied(own_project, copy):
    """A copy of the folder, as the current folder for as long as it takes to prepare it."""
    shutil.copytree(own_project, copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copy)
        yield copy
