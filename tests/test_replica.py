"""A replica computes what the network computes, with the network's weights and none of its objects."""

import copy

import pytest
import torch
from conftest import SmallNet
from test_probe import equal, layers, snapshot
from torch import nn
from torch.nn.utils import prune

from nac_openood import ProbeError
from nac_openood.network.probe import PassPlan, classify, read
from nac_openood.network.replica import Replica, private_copy


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 4)


class Base(nn.Module):
    """`self.part` is trained with dropout, so that a pass over the original module shows."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(linear(), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = linear(1)


class ByList(Base):
    def __init__(self):
        super().__init__()
        self.steps = [self.part, (self.head,)]

    def forward(self, x):
        return self.steps[1][0](self.steps[0](x))


class ByClosure(Base):
    def __init__(self):
        super().__init__()
        self.both = lambda x: self.head(self.part(x))

    def forward(self, x):
        return self.both(x)


class ByHook(Base):
    """A forward hook keeps features on the network for a forward that looks there."""

    def __init__(self):
        super().__init__()
        self.part.register_forward_hook(self._keep)
        self.head.register_forward_pre_hook(lambda module, inputs: (self.kept,))

    def _keep(self, module, inputs, output):
        self.kept = output

    def forward(self, x):
        self.part(x)
        return self.head(x)


@pytest.mark.parametrize("make", [ByList, ByClosure, ByHook])
def test_modules_are_found_in_whatever_way_forward_reaches_them(make):
    net, x = make().train(), torch.randn(6, 4)
    before = snapshot(net)
    probed = read(net, x, layers(net, ["part.1", "head"]))
    plain = classify(net, x)
    assert equal(before, snapshot(net))
    assert "kept" not in vars(net)
    with torch.no_grad():
        expected = net.eval()(x)
    assert torch.equal(probed.logits, expected) and torch.equal(plain, expected)


def test_a_private_copy_needs_no_gradients_and_shares_memory():
    net = nn.Sequential(nn.LSTM(4, 4), SmallNet())
    copy = private_copy(nn.DataParallel(net.train()))
    assert not copy.training and net.training
    assert not any(p.requires_grad for p in copy.parameters())
    assert all(p.requires_grad for p in net.parameters())
    pointers = [[p.data_ptr() for p in n.parameters()] for n in (copy, net)]
    assert pointers[0] == pointers[1]
    copy[0](torch.rand(2, 4, requires_grad=True))[0].sum().backward()
    assert all(p.grad is None for p in net.parameters())
    copy[1].fc.register_forward_hook(lambda *_: None)
    assert not net[1].fc._forward_hooks


# -- reuse ----------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """The replicas that were made."""
    made, init = [], Replica.__init__
    monkeypatch.setattr(
        Replica, "__init__", lambda self, net, **more: made.append(net) or init(self, net, **more)
    )
    return made


CHANGES = {
    "a setting": lambda net: setattr(net.layer1[1], "eps", 0.5),
    "a module": lambda net: setattr(net, "avgpool", nn.AdaptiveMaxPool2d(1)),
    "a parameter": lambda net: setattr(net.fc, "bias", nn.Parameter(torch.ones(4))),
    "a buffer": lambda net: setattr(net.layer1[1], "running_mean", torch.ones(6)),
    "a hook": lambda net: net.fc.register_forward_hook(lambda m, i, o: o * 2),
    "a forward": lambda net: setattr(net.fc, "forward", lambda x: x[:, :4]),
    "the weights": lambda net: net.fc.weight.data.mul_(2),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_reuses_replicas_until_the_network_changes(small_net, images, made, change, fast):
    net, plan = small_net.train(), PassPlan(small_net, images, fast=fast)
    made.clear()
    first, again = (read(net, images, layers(net), plan).logits for _ in range(2))
    assert torch.equal(first, again) and len(made) == 1
    CHANGES[change](net)
    changed = read(net, images, layers(net), plan).logits
    assert not torch.allclose(changed, first)
    torch.testing.assert_close(changed, read(net, images, layers(net)).logits)
    assert net.training


class Counts(SmallNet):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x.mul_(2)) + self.calls


@pytest.mark.parametrize("planned", [False, True])
def test_what_forward_keeps_on_self_is_dropped_and_its_input_is_a_copy(images, planned):
    net, original = Counts(), images.clone()
    plan = PassPlan(net, images) if planned else None
    first, second = (read(net, images, layers(net), plan).logits for _ in range(2))
    assert torch.equal(first, second) and "calls" not in vars(net)
    assert torch.equal(images, original)


def test_a_copied_plan_has_no_replicas_of_the_original(small_net, images, made):
    plan = PassPlan(small_net, images)
    expected = read(small_net, images, layers(small_net), plan).logits
    net, copied = copy.deepcopy((small_net, plan))
    made.clear()
    assert torch.equal(read(net, images, layers(net), copied).logits, expected)
    assert made == [net]


def test_a_replica_is_not_used_again_after_an_error(small_net, images, made):
    plan = PassPlan(small_net, images)
    with pytest.raises(ProbeError):
        read(small_net, images[:, :2], layers(small_net), plan)
    made.clear()
    expected = read(small_net, images, layers(small_net)).logits
    assert torch.equal(read(small_net, images, layers(small_net), plan).logits, expected)
    assert len(made) == 2


# -- hooks of the caller's ------------------------------------------------------------------------


class Recorder:
    """Looks modules up by identity, as many feature extractors do."""

    def __init__(self, net):
        self.names = {module: name for name, module in net.named_modules()}
        self.seen = []
        for module in self.names:
            module.register_forward_hook(self.hook)

    def hook(self, module, inputs, output):
        self.seen.append(self.names[module])


def test_hooks_that_look_their_module_up(small_net, images):
    expected = read(small_net, images, layers(small_net))
    recorder = Recorder(small_net)
    names, seen = dict(recorder.names), []
    small_net.fc.register_forward_hook(lambda m, i, o: seen.append(names[m]))
    for _ in range(2):
        found = read(small_net, images, layers(small_net))
        assert equal(list(found.values()), list(expected.values()))
    assert len(recorder.seen) == 2 * len(recorder.names) and recorder.seen[-1] == ""
    assert seen == 2 * ["fc"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "normalize",
    [
        nn.utils.weight_norm,
        nn.utils.parametrizations.weight_norm,
        lambda conv: nn.utils.spectral_norm(conv.train()).eval(),
        lambda conv: prune.random_unstructured(conv, "weight", 0.5),
    ],
)
def test_hooks_and_parametrizations_that_make_weights(small_net, images, normalize):
    conv = normalize(small_net.layer1[0])
    with torch.no_grad():
        first = small_net(images)
        changed = getattr(conv, "weight_orig", conv.bias)
        assert torch.equal(classify(small_net, images), first)
        changed.add_(torch.randn_like(changed))
        logits = read(small_net, images, layers(small_net)).logits
        assert torch.equal(logits, small_net(images))
        assert not torch.equal(logits, first)


# -- odd modules ----------------------------------------------------------------------------------


def test_compiled_modules_inside_run_eagerly(small_net, images):
    net, expected = small_net, read(small_net, images, layers(small_net))
    net.layer2 = torch.compile(net.layer2, backend="eager")
    net.layer3.compile(backend="eager")
    net.run_pool = torch.compile(net.avgpool.forward, backend="eager")
    net.avgpool.forward = lambda x: net.run_pool(x)
    with torch.no_grad():
        net(images)
    net.train()
    found = read(net, images, layers(net))
    assert equal(list(found.values()), list(expected.values()))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("training", [False, True])
def test_scripted_modules_inside(small_net, images, training):
    expected = read(small_net, images, layers(small_net))
    small_net.layer2 = torch.jit.script(small_net.layer2)
    small_net.train(training)
    before = snapshot(small_net)
    found = read(small_net, images, layers(small_net))
    assert equal(before, snapshot(small_net))
    torch.testing.assert_close(found["layer1"], expected["layer1"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["layer2"], expected["layer2"], rtol=1e-4, atol=1e-6)
