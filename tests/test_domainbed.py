"""Checkpoints of DomainBed load without DomainBed."""

import pathlib

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn

from nac_openood import NACError
from nac_openood.sources.checkpoints import load_checkpoint, run_checkpoints, training_step
from nac_openood.sources.networks import build


class Featurizer(nn.Module):
    """As DomainBed has it: a backbone whose head is an identity, and dropout."""

    def __init__(self, network, head):
        super().__init__()
        self.network, self.dropout = network, nn.Dropout(0.0)
        setattr(network, head, nn.Identity())

    def forward(self, x):
        return self.dropout(self.network(x))


class Algorithm(nn.Module):
    """ERM of DomainBed: the same parts under two names."""

    def __init__(self, network, head, width):
        super().__init__()
        self.featurizer = Featurizer(network, head)
        self.classifier = nn.Linear(width, 7)
        self.network = nn.Sequential(self.featurizer, self.classifier)


def save(path, algorithm, **more):
    args = {
        "data_dir": pathlib.PosixPath("/data"), "lr": np.float64(5e-5), "steps": np.int64(5001),
        "test_envs": [0],
    }  # fmt: skip
    content = {"args": args, "model_hparams": {"resnet18": True}, "test_acc": np.float32(0.5)}
    torch.save({**content, "model_dict": algorithm.state_dict(), **more}, path)


@pytest.fixture
def resnet():
    torch.manual_seed(0)
    return Algorithm(torchvision.models.resnet18(), "fc", 512).eval()


@torch.no_grad()
def test_a_resnet(resnet, tmp_path):
    save(tmp_path / "model_step300.pkl", resnet, coverage={"micro_avg": np.zeros(3)})
    net = load_checkpoint(build("resnet18", 7), tmp_path / "model_step300.pkl")
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(net(x), resnet.network(x))


@torch.no_grad()
def test_a_vit(tmp_path):
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224")
    algorithm = Algorithm(network, "head", 192).eval()
    save(tmp_path / "vit.pkl", algorithm)
    net = load_checkpoint(build("timm:vit_tiny_patch16_224", 7), tmp_path / "vit.pkl")
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(net(x), algorithm.network(x))


def test_other_parts_of_an_algorithm_are_left_out(resnet, tmp_path):
    """SelfReg has projections, and a moving average is what an algorithm predicts with."""
    state = resnet.state_dict()
    sma = {k.replace("network.0.", "network_sma.0.").replace("network.1.", "network_sma.1."): v + 1
           for k, v in state.items() if k.startswith("network.")}  # fmt: skip
    torch.save({"model_dict": {**state, **sma, "cdpl.weight": torch.zeros(3)}}, tmp_path / "x.pkl")
    net = load_checkpoint(build("resnet18", 7), tmp_path / "x.pkl")
    assert torch.equal(net.fc.weight, resnet.classifier.weight + 1)


def test_what_does_not_fit_is_reported(resnet, tmp_path):
    save(tmp_path / "a.pkl", resnet)
    with pytest.raises(NACError, match=r"size mismatch for fc.weight: .*\[7, 512\].*\[5, 512\]"):
        load_checkpoint(build("resnet18", 5), tmp_path / "a.pkl")
    save(tmp_path / "c.pkl", resnet, hparams=nn.Identity())  # a class, as the authors' fork has one
    with pytest.raises(NACError, match="could run code. Save .*its 'model_dict'"):
        load_checkpoint(build("resnet18", 7), tmp_path / "c.pkl")


def test_checkpoints_of_a_run(tmp_path):
    for name in ("model_step900.pkl", "model_step1200.pkl", "model_step0.pkl", "log.txt"):
        (tmp_path / name).touch()
    steps = [training_step(c) for c in run_checkpoints([tmp_path])]
    assert steps == [0, 900, 1200]
    (tmp_path / "last.pt").touch()
    names = [c.name for c in run_checkpoints([tmp_path])]  # without a step, as they are given
    assert names == ["last", "model_step0", "model_step1200", "model_step900"]
