import pytest
import torch
import torchvision
from conftest import SmallNet
from test_probe import NAMES, expected_readings, layers, same
from torch import nn

from nac_openood.network.probe import PassPlan, classify, read


def test_every_batchnorm_of_a_resnet_is_folded():
    torch.manual_seed(0)
    net, x = torchvision.models.resnet18().double().eval(), torch.randn(2, 3, 64, 64)
    fast = PassPlan(net, x, fast=True)
    assert len(fast.foldable) == 20
    assert_fast_is_exact(net, x, plan=fast)


class Residual(nn.Module):
    """Convolutions that must not be folded: used twice, run twice, or without statistics."""

    def __init__(self):
        super().__init__()
        self.kept = nn.Conv2d(3, 3, 1)
        self.shared = nn.Conv2d(3, 3, 1)
        self.plain, self.bare = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)
        self.a, self.b, self.c = (other_norm(3) for _ in range(3))
        self.folds, self.d = nn.Conv2d(3, 3, 1, bias=False), other_norm(3, affine=False)
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
    fast = PassPlan(net, x, fast=True)
    assert [pair[:2] for pair in fast.foldable] == [(net.folds, net.d)]
    # a convolution that is read is not folded either
    assert_fast_is_exact(net, x, ["a", "folds", "fc"], fast)


def test_large_batches_run_in_parts(small_net, images, monkeypatch):
    monkeypatch.setattr("nac_openood.network.probe._LARGEST_BLOCK", 5 * 6 * 9 * 9 * 4)
    plan = PassPlan(small_net, images)
    assert [len(part) for part in plan.parts(images)] == [5, 5, 5, 5, 4]
    expected = expected_readings(small_net, images)
    same(read(small_net, images, layers(small_net), plan), expected)
    fast = PassPlan(small_net, images, fast=True)
    same(read(small_net, images, layers(small_net), fast), expected)


# -- what must not be folded, or not as it was at first -------------------------------------------


def assert_fast_is_exact(net, x, names=NAMES, plan=None):
    """Fast and exact readings agree, in double precision up to rounding alone."""
    plan = plan or PassPlan(net, x, fast=True)
    exact, fast = (read(net, x, layers(net, names), p) for p in (None, plan))
    for name in names:
        torch.testing.assert_close(tuple(fast[name]), tuple(exact[name]), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(fast.logits, exact.logits, rtol=1e-9, atol=1e-11)


@pytest.fixture
def wide(small_net):
    return small_net.double()


class Functional(nn.Module):
    """Runs another network with weights of its own."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.tensors = {n: t.detach() * 1.5 for n, t in net.named_parameters()}
        self.tensors |= {n: t + 1 for n, t in net.named_buffers()}

    def forward(self, x):
        return torch.func.functional_call(self.net, self.tensors, (x,))


def test_functional_call(wide, images):
    net, plain = Functional(wide), wide(images.double())
    plan = PassPlan(net, images, fast=True)
    assert len(plan.foldable) == 3
    assert_fast_is_exact(net, images, ["net.layer1", "net.layer3", "net.avgpool"], plan)
    assert not torch.equal(classify(net, images), plain)  # those weights do matter
    assert torch.equal(wide(images.double()), plain)


def other_norm(n, **options):
    norm = nn.BatchNorm2d(n, **options).double()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm.eval()


@pytest.mark.parametrize("change", ["norm", "conv", "between", "identity", "statistics", "forward"])
def test_modules_replaced_after_the_first_pass(wide, images, change):
    plan = PassPlan(wide, images, fast=True)
    assert_fast_is_exact(wide, images, plan=plan)
    if change == "norm":
        wide.layer1[1] = other_norm(6)
    elif change == "conv":
        wide.layer2[0] = nn.Conv2d(6, 8, 3, stride=2).double()
    elif change == "between":
        wide.layer1.insert(1, nn.Tanh())
    elif change == "identity":
        wide.layer1[1] = nn.Identity()
    elif change == "statistics":
        wide.layer1[1].running_mean = wide.layer1[1].running_var = None
    else:
        wide.layer1.forward = lambda x: wide.layer1[2](wide.layer1[1](wide.layer1[0](x).tanh()))
    assert_fast_is_exact(wide, images, plan=plan)
    folded = {"norm": 3, "conv": 3, "statistics": 3}.get(change, 2)
    assert len(plan.foldable) == folded


@pytest.mark.parametrize("when", ["before", "after"])
def test_global_forward_hooks(wide, images, when):
    plan = PassPlan(wide, images, fast=True)
    seen = []

    def clamp(module, inputs, output):
        seen.append(module)
        return output.clamp(max=0.5) if isinstance(module, nn.Conv2d) else None

    handle = nn.modules.module.register_module_forward_hook(clamp)
    try:
        assert_fast_is_exact(wide, images, plan=plan if when == "after" else None)
    finally:
        handle.remove()
    assert any(isinstance(module, nn.BatchNorm2d) for module in seen)


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
@pytest.mark.parametrize("path", ["layer1.0", "layer1.1"])
def test_hooked_modules_are_not_folded(wide, images, kind, path):
    plan, seen = PassPlan(wide, images, fast=True), []
    module, passes = wide.get_submodule(path), []
    getattr(module, f"register_{kind}")(lambda *values: seen.append(values[-1]))
    for p in (None, plan):
        read(wide, images, layers(wide, ["avgpool"]), p)
        passes.append([t[0].detach() if isinstance(t, tuple) else t.detach() for t in seen])
        seen.clear()
    torch.testing.assert_close(*passes, rtol=1e-9, atol=1e-11)


class Exposed(nn.Module):
    """A convolution whose output is also that of the block around it."""

    def __init__(self):
        super().__init__()
        self.block, self.norm = nn.Sequential(nn.Conv2d(3, 3, 1)), other_norm(3)

    def forward(self, x):
        return self.norm(self.block(x)).mean((2, 3))


def test_blocks_that_show_the_convolution(images):
    net = Exposed().double().eval()
    assert len(PassPlan(net, images, fast=True).foldable) == 1
    assert_fast_is_exact(net, images, ["block", "norm"])
    net.block.register_forward_hook(lambda m, i, o: o * 2)
    assert_fast_is_exact(net, images, ["norm"])


# -- networks that draw in evaluation mode ---------------------------------------------------------


class Draws(SmallNet):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def test_what_a_network_draws_leaves_no_trace(images):
    net = Draws().eval()
    plan, state = PassPlan(net, images), torch.get_rng_state()
    first, second = (read(net, images, layers(net), plan).logits for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
