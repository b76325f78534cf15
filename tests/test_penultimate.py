"""The closed form of the gradient at the head's input: the same bits, and only where it holds."""

import pytest
import torch
import torchvision
from torch import nn

from nac_openood import LayerConfig, NACDetector
from nac_openood.network.architectures import find_layer
from nac_openood.network.plan import PassPlan
from nac_openood.network.probe import read
from nac_openood.sources.small_networks import CifarResNet18


def both(net, x, path):
    """Readings in closed form where it may be, and by a backward pass; and whether it was."""
    layers = {path: find_layer(net, path)}
    plan, without = PassPlan(net, x), PassPlan(net, x)
    without.try_closed_form = False
    closed = read(net, x, layers, plan)[path]
    return closed, read(net, x, layers, without)[path], plan.try_closed_form


def equal(first, second):
    return torch.equal(first.activation, second.activation) and torch.equal(
        first.gradient, second.gradient
    )


class Net(nn.Module):
    def __init__(self, between=None, head=None):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.between = between or nn.Identity()
        self.fc = head or nn.Linear(7, 5)

    def forward(self, x):
        return self.fc(self.between(self.pool(self.features(x)).flatten(1)))


@pytest.fixture
def x():
    return torch.randn(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("make", "path", "size"),
    [
        (Net, "pool", 9),
        (lambda: Net(nn.Dropout(0.5)), "between", 9),
        (lambda: CifarResNet18(), "avgpool", 32),
        (lambda: torchvision.models.resnet18(num_classes=11), "avgpool", 64),
        (lambda: Net().double(), "pool", 9),
    ],
)
def test_the_closed_form_has_the_bits_of_a_backward_pass(make, path, size):
    torch.manual_seed(0)
    net = make()
    x = torch.randn(5, 3, size, size, dtype=next(net.parameters()).dtype)
    closed, backward, used = both(net, x, path)
    assert used and equal(closed, backward)


class Twice(Net):
    def forward(self, x):
        z = self.pool(self.features(x)).flatten(1)
        return self.fc(z) + z.mean()


class InPlace(Net):
    def forward(self, x):
        return self.fc(self.pool(self.features(x)).flatten(1).mul_(2.0))


class Normalized(nn.Linear):
    def forward(self, x):
        return super().forward(x / x.norm(dim=1, keepdim=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(nn.ReLU()),  # equal values, another gradient
        lambda: Net(nn.Hardtanh(-50, 50)),
        Twice,
        InPlace,
        lambda: Net(head=Normalized(7, 5)),
        lambda: Net(head=nn.utils.parametrizations.weight_norm(nn.Linear(7, 5))),
        lambda: Net(head=nn.Sequential(nn.Linear(7, 5), nn.Tanh())),
        lambda: Net().bfloat16(),
    ],
)
def test_everything_else_goes_backward(make, x):
    torch.manual_seed(0)
    net = make()
    x = x.to(next(net.parameters()).dtype)
    closed, backward, used = both(net, x, "pool")
    assert not used and equal(closed, backward)
    assert not closed.gradient.isnan().any()


def test_hooks_that_change_the_head_go_backward(x):
    net = Net()
    net.fc.register_forward_hook(lambda module, inputs, output: output * 3)
    closed, backward, used = both(net, x, "pool")
    assert not used and equal(closed, backward)


def test_hooks_that_change_the_heads_gradient_go_backward(x):
    net = Net()
    net.fc.register_full_backward_hook(lambda module, inner, outer: (3 * inner[0],))
    closed, backward, used = both(net, x, "pool")
    assert not used and equal(closed, backward)


def test_global_hooks_go_backward(x):
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output * 2 if isinstance(module, nn.Linear) else None
    )
    try:
        closed, backward, used = both(Net(), x, "pool")
    finally:
        handle.remove()
    assert not used and equal(closed, backward)


def test_reference_nac_of_the_penultimate_layer_is_forward_only(small_net, images, monkeypatch):
    expected = NACDetector(small_net, {"avgpool": LayerConfig()})
    expected._plan = PassPlan(small_net, images)
    expected._plan.try_closed_form = False
    expected.fit([images])
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: pytest.fail("a backward pass"))
    found = NACDetector(small_net, {"avgpool": LayerConfig()}).fit([images])
    score = found.score(images * 1.5)
    monkeypatch.undo()
    assert torch.equal(score, expected.score(images * 1.5))
    counts = [d.rule_.histograms["avgpool"].counts for d in (found, expected)]
    assert torch.equal(*counts)
