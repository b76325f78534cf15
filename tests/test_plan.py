import pytest
import torch
import torchvision
from test_probe import NAMES, equal, expected_readings, layers, same, snapshot
from torch import nn

from nac_openood import NACDetector
from nac_openood.core.plan import PassPlan
from nac_openood.core.probe import read


def test_the_same_numbers_up_to_rounding(small_net, images):
    fast = PassPlan(small_net, images, fast=True)
    assert len(fast.pairs) == 3
    same(read(small_net, images, layers(small_net), fast), expected_readings(small_net, images))


@pytest.mark.parametrize("caller", [torch.no_grad, torch.inference_mode])
def test_any_caller(small_net, images, caller):
    with caller():
        probed = NACDetector(small_net, NAMES, fast=True)._probe(images)
    same(probed, expected_readings(small_net, images))


def test_every_batchnorm_of_a_resnet_is_folded():
    torch.manual_seed(0)
    net, x = torchvision.models.resnet18().double().eval(), torch.randn(2, 3, 64, 64)
    fast = PassPlan(net, x, fast=True)
    assert len(fast.pairs) == 20
    plain, folded = (read(net, x, layers(net), f) for f in (None, fast))
    for name in NAMES:  # in double precision rounding is all that could differ
        for a, b in zip(plain.layers[name], folded.layers[name]):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_weights_changed_in_between_are_seen(small_net, images):
    fast = PassPlan(small_net, images, fast=True)
    read(small_net, images, layers(small_net), fast)
    with torch.no_grad():
        small_net.layer1[0].weight.mul_(2)
        small_net.layer2[1].running_mean.add_(1)
    same(read(small_net, images, layers(small_net), fast), expected_readings(small_net, images))


class Residual(nn.Module):
    """Convolutions that must not be folded: used twice, run twice, or without statistics."""

    def __init__(self):
        super().__init__()
        self.kept = nn.Conv2d(3, 3, 1)
        self.shared = nn.Conv2d(3, 3, 1)
        self.plain, self.bare = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)
        self.a, self.b, self.c = (nn.BatchNorm2d(3) for _ in range(3))
        self.folds, self.d = nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3, affine=False)
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        out = self.kept(x)
        x = self.a(out) + out
        x = self.c(self.shared(self.b(self.shared(x))))
        x = self.d(self.folds(self.bare(self.plain(x))))
        return self.fc(x.mean((2, 3)))


def test_only_what_is_safe_is_folded():
    torch.manual_seed(0)
    net, x = Residual().double().eval(), torch.randn(4, 3, 5, 5)
    for norm in (net.a, net.b, net.c, net.d):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    fast = PassPlan(net, x, fast=True)
    assert fast.pairs == [(net.folds, net.d)]
    names = ["a", "folds", "fc"]
    plain = read(net, x, layers(net, names))
    folded = read(net, x, layers(net, names), fast)  # a probed convolution is not folded either
    for name in names:
        torch.testing.assert_close(plain.layers[name], folded.layers[name], rtol=1e-9, atol=1e-9)


def test_large_batches_run_in_parts(small_net, images, monkeypatch):
    monkeypatch.setattr("nac_openood.core.plan._LARGEST_BLOCK", 5 * 6 * 9 * 9 * 4)
    plan = PassPlan(small_net, images)
    assert [len(part) for part in plan.parts(images)] == [5, 5, 5, 5, 4]
    expected = expected_readings(small_net, images)
    same(read(small_net, images, layers(small_net), plan), expected)
    fast = PassPlan(small_net, images, fast=True)
    same(read(small_net, images, layers(small_net), fast), expected)


@pytest.mark.parametrize("crash", [False, True])
def test_nothing_changes(small_net, images, crash):
    detector = NACDetector(small_net, NAMES, fast=True)
    small_net.train()
    before = snapshot(small_net)
    if crash:
        detector.fit([images])
        with pytest.raises(RuntimeError):
            detector.score(images[:, :2])
    else:
        detector.fit([images]).score(images)
    assert equal(before, snapshot(small_net))


def test_wrapped_and_transformer_networks(small_net, images):
    wrapped = nn.DataParallel(small_net)
    fast = PassPlan(wrapped, images, fast=True)
    same(read(wrapped, images, layers(wrapped), fast), expected_readings(small_net, images))
    linear = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    detector = NACDetector(linear, ["0"], fast=True).fit([torch.rand(5, 4)])
    assert detector.score(torch.rand(5, 4)).shape == (5,)
