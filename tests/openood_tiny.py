"""A CIFAR-10 benchmark of a few generated images in OpenOOD's layout on disk, and a net for it.

Ten in-distribution classes are ten colors, the OOD sets are stripes, so that a net with a fitted
head is right about its training set (OpenMax needs one right answer a class) and every method has
something to tell apart.
"""

import colorsys
import sys
from typing import Mapping

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from nac_openood.plugin.source import find_openood
from nac_openood.sources.sets import BENCHMARKS

#: Marks of tests that run OpenOOD, which warns of itself and its dependencies.
REAL_OPENOOD = [
    pytest.mark.openood,
    *(
        pytest.mark.filterwarnings(f"ignore::{category}")
        for category in ("DeprecationWarning", "FutureWarning", "SyntaxWarning", "UserWarning")
    ),
]


def real_openood(test):
    """Mark one test as those of `REAL_OPENOOD`."""
    for mark in REAL_OPENOOD:
        test = mark(test)
    return test


N_CLASSES, SIZE = 10, 32
# name of the list -> (folder of the images, how many, whether they are in-distribution)
LISTS = {
    "train_cifar10": ("cifar10/train", 100, True),
    "val_cifar10": ("cifar10/val", 20, True),
    "test_cifar10": ("cifar10/test", 10, True),
    "test_cifar10c": ("cifar10c", 10, True),
    "val_tin": ("tin/val", 10, False),
    "test_tin": ("tin/test", 10, False),
    "test_cifar100": ("cifar100", 10, False),
    "test_mnist": ("mnist", 10, False),
    "test_svhn": ("svhn", 10, False),
    "test_texture": ("texture", 10, False),
    "test_places365": ("places365", 10, False),
}
# OpenOOD's own knobs, small: sweeps of two points at most, neighbors and dimensions that fit
# 100 training images.
# name -> (arguments, sweep)
_ARGS: Mapping[str, tuple[dict, dict]] = {
    **dict.fromkeys(
        ("odin", "iodin"),
        ({"temperature": 1000, "noise": 0.0014}, {"temperature": [1, 1000], "noise": [0.0014]}),
    ),
    "mds_ensemble": (
        {"noise": 0.0014, "feature_type_list": ["mean"], "alpha_list": [1]}
        | {"reduce_dim_list": ["none"]},
        {"noise_list": [0.0014]},
    ),
    "gram": ({"powers": [1, 2]}, {"powers_list": [[1, 2]]}),
    "ebo": ({"temperature": 1}, {"temperature_list": [1]}),
    "react": ({"percentile": 90}, {"percentile_list": [85, 99]}),
    "vim": ({"dim": 16}, {"dim_list": [16]}),
    "knn": ({"K": 3}, {"K_list": [3, 5]}),
    "ash": ({"percentile": 90}, {"percentile_list": [65, 90]}),
    "gen": ({"gamma": 0.1, "M": 10}, {"gamma_list": [0.1, 1], "M_list": [10]}),
    "dice": ({"p": 90}, {"p_list": [90]}),
    "rankfeat": ({"accelerate": False, "temperature": 1}, {}),
    "she": ({"metric": "inner_product"}, {}),
    **dict.fromkeys(
        ("adascale_a", "adascale_l"),
        (
            {"num_samples": 5000, "percentile": [75, 85], "k1": 5, "k2": 1, "lmbda": 10, "o": 0.05},
            {"percentile_list": [[60, 65], [75, 85]], "k1_list": [5], "k2_list": [1]}
            | {"lmbda_list": [10], "o_list": [0.05]},
        ),
    ),
}
_NO_SEARCH = ("dice",)
# The 21 methods of the paper without OpenGAN, which trains a GAN first.
BASELINES = ("openmax", "msp", "temp_scaling", "odin", "mds", "mds_ensemble", "rmds", "gram", "ebo")
BASELINES += ("gradnorm", "react", "mls", "klm", "vim", "knn", "dice", "rankfeat", "ash", "she")
BASELINES += ("gen",)
# Later ones, which read the network.
ON_NETWORKS = ("iodin", "adascale_a", "adascale_l")


def write_benchmark(root):
    """Write the CIFAR-10 benchmark below `root`, which is then a `data_root` for OpenOOD."""
    lists = {n: (f"images_classic/{folder}", *more) for n, (folder, *more) in LISTS.items()}
    return write_lists(root, "cifar10", lists)


def write_lists(root, benchmark, lists):
    """Write images and a benchmark's lists, given as `LISTS` below `images_classic` are."""
    rng = np.random.default_rng(0)
    folder_of_lists = root / "benchmark_imglist" / benchmark
    folder_of_lists.mkdir(parents=True)
    for name, (folder, count, in_distribution) in lists.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        lines = []
        for i in range(count):
            pixels = _color(i % N_CLASSES) if in_distribution else _stripes(rng)
            pixels = pixels + rng.normal(0, 8, (SIZE, SIZE, 3))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(root / folder / f"{i}.png")
            # The lists name images without the first folder, images_classic or images_largescale.
            path = f"{folder.split('/', 1)[1]}/{i}.png"
            lines.append(f"{path} {i % N_CLASSES if in_distribution else -1}\n")
        (folder_of_lists / f"{name}.txt").write_text("".join(lines))
    return root


def write_configs(root):
    """Write a config for each baseline below `root`, which is then a `config_root`."""
    folder = root / "postprocessors"
    folder.mkdir(parents=True)
    for name in (*BASELINES, *ON_NETWORKS):
        args, sweep = _ARGS.get(name, ({}, {}))
        config: dict = {"name": name, "APS_mode": bool(sweep) and name not in _NO_SEARCH}
        config.update({"postprocessor_args": args} if args else {})
        config.update({"postprocessor_sweep": sweep} if sweep else {})
        text = yaml.safe_dump({"postprocessor": config}, sort_keys=False)
        (folder / f"{name}.yml").write_text(text)
    return root


def write_checkpoint(root, net):
    """Write `net` where `scripts/eval_ood.py --root` looks for it."""
    (root / "s0").mkdir(parents=True)
    torch.save(net.state_dict(), root / "s0" / "best.ckpt")
    return root


def fit_head(net, data_root):
    """Give a ResNet of OpenOOD batch statistics and a head that knows the training images."""
    cifar10 = BENCHMARKS["cifar10"]
    training = cifar10.images(data_root, "train_cifar10", cifar10.transform())
    images = torch.stack([item["data"] for item in training])
    labels = torch.from_numpy(training.labels)
    norms = [module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for module in norms:
        module.momentum = 1.0
    with torch.no_grad():
        net.train()(images)
        net.eval()
        _, features = net(images, return_feature=True)
        ones = torch.ones(len(features), 1)
        targets = 4.0 * torch.nn.functional.one_hot(labels, N_CLASSES).float()
        solution = torch.linalg.pinv(torch.cat([features, ones], 1), rtol=1e-3) @ targets
        net.fc.weight.copy_(solution[:-1].T)
        net.fc.bias.copy_(solution[-1])
    for module in norms:
        module.momentum = 0.1
    return net


def _color(label):
    rgb = colorsys.hsv_to_rgb(label / N_CLASSES, 0.9, 0.5 + 0.4 * (label % 2))
    return 255 * np.broadcast_to(np.array(rgb), (SIZE, SIZE, 3))


def _stripes(rng):
    wave = np.sin(np.arange(SIZE) * rng.uniform(0.5, 2.0))
    return 128 + 120 * np.broadcast_to(wave[:, None, None], (SIZE, SIZE, 3))


# ---- OpenOOD itself, when it is there


def need_openood(*, scripts=False):
    """The root of OpenOOD, put on `sys.path`; skips the test where there is none."""
    root = find_openood()
    if root is None:
        pytest.skip("OpenOOD is not installed, and OPENOOD_SRC names no source tree of it")
    if scripts and not (root / "scripts" / "eval_ood.py").is_file():
        pytest.skip(f"OpenOOD in {root} has no scripts: point OPENOOD_SRC at a source tree")
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return root


def tree_with_data(root, tmp_path, data_root):
    """A tree that OpenOOD's scripts take for theirs, with `data_root` as its data.

    The scripts look for data and configs beside the folder they lie in. Links to the files of the
    real tree, in folders of our own, let unmodified scripts find generated data.
    """
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    for script in (root / "scripts").glob("*.py"):
        (tree / "scripts" / script.name).symlink_to(script)
    for name in ("openood", "main.py"):
        (tree / name).symlink_to(root / name)
    (tree / "data").symlink_to(data_root)
    write_configs(tree / "configs")
    for folder in (root / "configs").iterdir():
        if folder.name != "postprocessors":
            (tree / "configs" / folder.name).symlink_to(folder)
    return tree


def make_net(data_root, *, blocks=1):
    """OpenOOD's ResNet-18 for 32x32 images, by default at half its depth, with a fitted head."""
    from openood.networks.resnet18_32x32 import ResNet18_32x32

    torch.manual_seed(0)
    return fit_head(ResNet18_32x32(num_blocks=[blocks] * 4, num_classes=N_CLASSES), data_root)


def evaluator(net, data_root, config_root="nowhere", **options):
    """OpenOOD's Evaluator on the tiny CIFAR-10 benchmark, by default of NAC."""
    from openood.evaluation_api import Evaluator

    return Evaluator(
        net,
        "cifar10",
        data_root=str(data_root),
        config_root=str(config_root),
        **{"postprocessor_name": "nac", "num_workers": 0, **options},
    )


def cifar10_tree(folder):
    """OpenOOD's tree with tiny data for CIFAR-10 and a checkpoint in results/run."""
    root = need_openood(scripts=True)
    data = write_benchmark(folder / "data")
    tree = tree_with_data(root, folder, data)
    write_checkpoint(tree / "results" / "run", make_net(data, blocks=2))
    return tree
