"""The miniature CIFAR-10 benchmark as loaders, without OpenOOD."""

from torch.utils.data import DataLoader

from nac_openood.sources.imglist import BENCHMARKS
from nac_openood.sources.networks import CifarResNet18, load_checkpoint

CIFAR10 = BENCHMARKS["cifar10"]
CHECKPOINT = "checkpoints/cifar10_resnet18_32x32_base/s0/best.ckpt"


def loader(root, name, batch_size=100):
    return DataLoader(CIFAR10.images(root, name, CIFAR10.transform()), batch_size=batch_size)


def trained(folder):
    return load_checkpoint(CifarResNet18(), folder / CHECKPOINT)
