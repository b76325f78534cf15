"""The miniature CIFAR-10 benchmark as loaders, without OpenOOD."""

import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

NORMALIZE = transforms.Normalize([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


class ListedImages(Dataset):
    """A list file of OpenOOD's benchmark_imglist."""

    def __init__(self, root, name):
        self.root = root
        self.imglist = (
            (root / "benchmark_imglist" / "cifar10" / f"{name}.txt").read_text().splitlines()
        )

    def __len__(self):
        return len(self.imglist)

    def __getitem__(self, index):
        path, label = self.imglist[index].split(" ", 1)
        image = Image.open(self.root / "images_classic" / path).convert("RGB")
        if image.size != (32, 32):
            image = image.resize((32, 32), Image.BILINEAR)
        data = NORMALIZE(transforms.functional.to_tensor(image))
        return {"data": data, "label": int(label)}


def loader(root, name, batch_size=100):
    return DataLoader(ListedImages(root, name), batch_size=batch_size)


class Block(nn.Module):
    def __init__(self, wide_in, wide, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(wide_in, wide, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.shortcut = nn.Sequential()
        if stride != 1 or wide_in != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(wide_in, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet18(nn.Module):
    """ResNet-18 for 32x32 images, with the parameter names of the shipped checkpoint."""

    def __init__(self, n_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        wide_in = 64
        for i, (wide, stride) in enumerate([(64, 1), (128, 2), (256, 2), (512, 2)], start=1):
            stage = nn.Sequential(Block(wide_in, wide, stride), Block(wide, wide, 1))
            self.add_module(f"layer{i}", stage)
            wide_in = wide
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, n_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def trained(folder):
    path = folder / "checkpoints" / "cifar10_resnet18_32x32_base" / "s0" / "best.ckpt"
    net = CifarResNet18()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return net.eval()
