"""The miniature CIFAR-10 benchmark as loaders and as readings, without OpenOOD."""

import numpy as np
from torch.utils.data import DataLoader, Subset

from nac_openood.detector.batches import balanced_indices, dataset_labels
from nac_openood.detector.readings import Readings
from nac_openood.network.architectures import find_layer
from nac_openood.network.probe import PassPlan, read
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import CifarResNet18
from nac_openood.sources.sets import BENCHMARKS

CIFAR10 = BENCHMARKS["cifar10"]
CHECKPOINT = "checkpoints/cifar10_resnet18_32x32_base/s0/best.ckpt"
READINGS = "readings.safetensors"
LAYERS = ("avgpool", "layer4", "layer3", "layer2", "layer1")
#: The images of the training list that the authors fit NAC on, and those that they do not.
FITTING, OTHERS = "fitting", "others"
#: Layers whose gradients are read, where not all are: those of NAC-ME, and none for NAC+.
GRADIENTS = {OTHERS: ("avgpool", "layer4", "layer3"), "val_cifar10": ()}


def images(root, name):
    """The images of a list, or of a part of the training list."""
    if name not in (FITTING, OTHERS):
        return CIFAR10.images(root, name, CIFAR10.transform())
    training = images(root, "train_cifar10")
    return Subset(training, training_rows(training)[name].tolist())


def training_rows(training):
    """Where the images of both parts are in the training list."""
    rows = np.asarray(balanced_indices(dataset_labels(training), 1000))
    return {FITTING: rows, OTHERS: np.setdiff1d(np.arange(len(training)), rows)}


def loader(root, name, batch_size=100):
    return DataLoader(images(root, name), batch_size=batch_size)


def first(root, name, n):
    """The first `n` images of a list, or all that it has."""
    found = images(root, name)
    return DataLoader(Subset(found, range(min(n, len(found)))), batch_size=100)


def trained(folder):
    return load_checkpoint(CifarResNet18(), folder / CHECKPOINT)


def read_list(folder, root, name, out):
    """Write the readings of a whole list, in its order, of the layers in `LAYERS`."""
    net, batches = trained(folder), loader(root, name)
    layers = {layer: find_layer(net, layer) for layer in LAYERS}
    plan = PassPlan(net, next(iter(batches))["data"])
    options = {"gradients": GRADIENTS.get(name, LAYERS)}
    passes = ((read(net, b["data"], layers, plan, **options), b["label"]) for b in batches)
    Readings.save_parts(out / READINGS, (Readings.of_pass(*each) for each in passes))
