"""What is read, under which conditions, and that nothing of the caller's changes."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from nac_openood import ProbeError
from nac_openood.core.reading import pooling_for
from nac_openood.network.architectures import Layer, find_layer
from nac_openood.network.probe import PassPlan, classify, read

NAMES = ["avgpool", "layer3", "layer2", "layer1"]


def layers(net, names=NAMES):
    return {name: find_layer(net, name) for name in names}


def one_at_a_time(net, x, layer):
    """Direct autograd for one layer, from the definition."""
    kept = {}

    def keep(module, inputs, output):
        kept["z"] = output.detach().requires_grad_()
        return kept["z"].clone()

    handle = net.get_submodule(layer.path).register_forward_hook(keep)
    logits = net(x)
    handle.remove()
    loss = -torch.log_softmax(logits, dim=-1).mean(dim=-1).sum()
    (g,) = torch.autograd.grad(loss, kept["z"])
    pool = pooling_for(layer.layout, g.shape, layer.alias)
    return pool(kept["z"].detach()), pool(g), logits.detach()


def test_numbers_worked_out_by_hand(hand_net):
    # x = (2, 1): hidden = (3, 1), softmax = (e^2, 1) / (e^2 + 1), gradient = softmax - 1/2
    probed = read(hand_net, torch.tensor([[2.0, 1.0], [-1.0, 3.0]]), layers(hand_net, ["hidden"]))
    reading = probed["hidden"]
    assert reading.activation.tolist() == [[3.0, 1.0], [2.0, -4.0]]  # before the in-place ReLU
    assert probed.logits.tolist() == [[3.0, 1.0], [2.0, 0.0]]
    p = np.exp(2) / (np.exp(2) + 1) - 0.5
    np.testing.assert_allclose(reading.gradient.numpy(), [[p, -p], [p, 0.0]], atol=1e-7)


@pytest.mark.parametrize("arch", ["resnet50", "vit_b_16"])
def test_states_equal_one_layer_at_a_time_autograd(arch):
    torch.manual_seed(0)
    size = {"image_size": 64} if arch == "vit_b_16" else {}
    net = getattr(torchvision.models, arch)(**size).eval()
    nn.init.normal_(net.heads.head.weight if arch == "vit_b_16" else net.fc.weight, std=0.02)
    names = NAMES if arch == "resnet50" else ["ln", "block11", "block10", "block9"]
    x = torch.randn(2, 3, 64, 64)
    probed = read(net, x, layers(net, names))
    for name, layer in layers(net, names).items():
        z, g, logits = one_at_a_time(net, x, layer)
        ours = probed[name]
        # steep enough that states spread over (0, 1), flat enough that none saturates
        steepness = 4.0 / (z * g).abs().max()
        state, expected = (torch.sigmoid(steepness * a * b) for a, b in (ours, (z, g)))
        assert expected.std() > 1e-3
        torch.testing.assert_close(state, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(probed.logits, logits, rtol=1e-5, atol=1e-5)


def expected_readings(net, x):
    return {name: one_at_a_time(net, x, layer)[:2] for name, layer in layers(net).items()}


def same(probed, expected, rtol=1e-4, atol=1e-6):
    for name, (z, g) in expected.items():
        torch.testing.assert_close(probed[name].activation, z, rtol=rtol, atol=atol)
        torch.testing.assert_close(probed[name].gradient, g, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "caller", [nullcontext, torch.no_grad, torch.enable_grad, torch.inference_mode]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_any_caller_and_frozen_networks(small_net, images, caller, frozen):
    expected = expected_readings(small_net, images)
    small_net.requires_grad_(not frozen)
    with caller():
        probed = read(small_net, images.clone(), layers(small_net))
    same(probed, expected, rtol=0, atol=0)
    for reading in probed.values():
        assert not reading.activation.requires_grad
        assert not reading.gradient.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(small_net, images, dtype):
    expected = expected_readings(small_net, images)
    with torch.autocast("cpu", dtype=dtype):
        probed = read(small_net, images, layers(small_net))
        # the caller's own backward in the same autocast region still finds its graph
        small_net(images).sum().backward()
    assert small_net.fc.weight.grad is not None
    for name, (z, g) in expected.items():
        ours = probed[name]
        assert ours.activation.dtype == ours.gradient.dtype == torch.float32
        for mine, reference in ((ours.activation, z), (ours.gradient, g)):
            assert torch.corrcoef(torch.stack([mine.flatten(), reference.flatten()]))[0, 1] > 0.99


def test_half_gradients_do_not_underflow(small_net, images):
    # nearly uniform logits over small weights: gradients of about 1e-8, zero in float16
    with torch.no_grad():
        small_net.fc.weight.mul_(1e-3)
        small_net.fc.bias.copy_(torch.tensor([4e-4, 0, 0, 0]))
    with torch.autocast("cpu", dtype=torch.float16):
        probed = read(small_net, images, layers(small_net, ["avgpool"]))
    assert (probed["avgpool"].gradient == 0).float().mean() < 0.5


def test_double_and_half_networks(small_net, images):
    double = read(small_net.double(), images, layers(small_net))
    assert double["layer3"].activation.dtype == torch.float64
    bfloat = read(small_net.bfloat16(), images, layers(small_net))
    assert bfloat["layer3"].activation.dtype == torch.float32


def compiled_in_place(net):
    net.compile(backend="eager")
    return net


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager"), compiled_in_place]
)
def test_wrapped_networks(small_net, images, wrap):
    expected = expected_readings(small_net, images)
    wrapped = wrap(small_net)
    same(read(wrapped, images, layers(wrapped)), expected, rtol=0, atol=0)
    with torch.no_grad():
        wrapped(images)  # also after it has been traced without hooks
    same(read(wrapped, images, layers(wrapped)), expected, rtol=0, atol=0)


def test_ddp(small_net, images, tmp_path):
    expected = expected_readings(small_net, images)
    method = f"file://{tmp_path}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(small_net)
        same(read(wrapped, images, layers(wrapped)), expected, rtol=0, atol=0)
    finally:
        torch.distributed.destroy_process_group()


# -- nothing of the caller's changes --------------------------------------------------------------


def snapshot(net):
    return {
        "training": [m.training for m in net.modules()],
        "requires_grad": [p.requires_grad for p in net.parameters()],
        "grad": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "state": {k: v.clone() for k, v in net.state_dict().items()},
        "hooks": [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for m in net.modules()
        ],
        "forward": ["forward" in vars(m) for m in net.modules()],
        "rng": (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()),
        "modes": (torch.is_grad_enabled(), torch.is_autocast_cache_enabled()),
    }


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return a == b


class Crash(nn.Module):
    def forward(self, x):
        raise RuntimeError("the network crashed")


@pytest.mark.parametrize("end", ["normal", "crash", "bad layer", "bad input", "backward"])
def test_nothing_changes_on_any_exit(small_net, images, end):
    small_net.train()
    small_net.layer2.eval()  # a half frozen network
    small_net.layer1.requires_grad_(False)
    small_net(images).sum().backward()
    chosen, error = layers(small_net), nullcontext()
    if end == "crash":
        small_net.avgpool = Crash()
        error = pytest.raises(RuntimeError, match="the network crashed")
    elif end == "bad layer":
        chosen = {"dropout2": Layer("dropout2", "layer1", "tokens")}
        error = pytest.raises(ProbeError)
    elif end == "bad input":
        images = images[:0]
        error = pytest.raises(ProbeError, match="at least one sample")
    elif end == "backward":
        small_net.fc.register_forward_hook(lambda m, i, o: o.detach())
        error = pytest.raises(ProbeError, match="no gradient reaches")
    before = snapshot(small_net)
    with error:
        read(small_net, images, chosen)
    after = snapshot(small_net)
    for key in before:
        assert equal(before[key], after[key]), key


def test_the_network_runs_in_eval_mode(small_net, images):
    expected = expected_readings(small_net, images)
    same(read(small_net.train(), images, layers(small_net)), expected, rtol=0, atol=0)
    assert small_net.training
    assert torch.equal(classify(small_net, images), small_net.eval()(images))


# -- errors name the layer --------------------------------------------------------------------------


class Odd(nn.Module):
    """A network with everything that cannot be probed."""

    def __init__(self):
        super().__init__()
        self.twice, self.side, self.unused = nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4)
        self.pair = nn.LSTM(4, 4)
        self.rows = nn.Identity()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        self.side(x)
        x, _ = self.pair(self.twice(self.twice(x)))
        x = self.rows(torch.cat([x, x]))[: len(x)]
        return self.head(x)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("twice", "layer 'twice' .* ran more than once"),
        ("pair", "layer 'pair' .*LSTM.* returns tuple, expected one tensor"),
        ("side", "no gradient reaches layer 'side': the logits do not depend"),
        ("unused", "layer 'unused' did not run"),
        ("rows", "layer 'rows' outputs 4 rows for a batch of 2"),
    ],
)
def test_layers_that_cannot_be_read_are_named(name, message):
    net = Odd()
    with pytest.raises(ProbeError, match=message):
        read(net, torch.rand(2, 4), layers(net, [name, "head"]))


# -- only the gradients that were asked for, and no work for the others ------------------


class Operations(TorchDispatchMode):
    """The names of all operations that run, those of the backward pass among them."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def count(self, word):
        return sum(word in name for name in self.names)


def nothing_saved(tensor):
    raise AssertionError("a graph was recorded")


@pytest.mark.parametrize("nothing", [False, (), frozenset()])
@pytest.mark.parametrize("fast", [None, False, True])
def test_without_gradients_there_is_no_graph_and_no_backward(small_net, images, nothing, fast):
    expected = read(small_net, images, layers(small_net))
    plan = None if fast is None else PassPlan(small_net, images, fast=fast)
    operations = Operations()
    with operations, saved_tensors_hooks(nothing_saved, nothing_saved):
        probed = read(small_net, images, layers(small_net), plan, gradients=nothing)
    assert operations.count("convolution") == 4
    assert operations.count("backward") == 0
    assert operations.count("clone") <= 1 + bool(fast)  # of the input, which may be overwritten
    assert list(probed) == NAMES
    for name, reading in probed.items():
        assert reading.gradient is None
        close = dict(rtol=1e-4, atol=1e-6) if fast else dict(rtol=0, atol=0)
        torch.testing.assert_close(reading.activation, expected[name].activation, **close)
    torch.testing.assert_close(probed.logits, expected.logits)


def test_the_graph_starts_at_the_first_layer_with_a_gradient(small_net, images):
    expected = read(small_net, images, layers(small_net))
    graph = {}
    for name in ("layer1", "layer2", "layer3", "layer4"):
        module = small_net.get_submodule(name)
        module.register_forward_hook(lambda m, i, o, n=name: graph.update({n: o.requires_grad}))
    operations = Operations()
    with operations:
        probed = read(small_net, images, layers(small_net), gradients={"layer3", "avgpool"})
    assert graph == {"layer1": False, "layer2": False, "layer3": False, "layer4": True}
    assert operations.count("convolution_backward") == 1
    for name in NAMES:
        assert torch.equal(probed[name].activation, expected[name].activation)
    assert torch.equal(probed["layer3"].gradient, expected["layer3"].gradient)
    assert torch.equal(probed["avgpool"].gradient, expected["avgpool"].gradient)
    assert probed["layer1"].gradient is None and probed["layer2"].gradient is None


def test_parameters_made_in_inference_mode(images):
    with torch.inference_mode():
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(196, 3))
        inside = read(net, images, layers(net, ["0"]), gradients=False)
    for plan in (None, PassPlan(net, images), PassPlan(net, images, fast=True)):
        probed = read(net, images, layers(net, ["0"]), plan, gradients=False)
        assert not probed.logits.is_inference() and not probed["0"].activation.is_inference()
        torch.testing.assert_close(probed.logits, inside.logits)
    with pytest.raises(ProbeError, match="Inference tensors cannot be saved for backward"):
        read(net, images, layers(net, ["0"]))


class Detaches(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.first, self.second, self.mode = nn.Linear(4, 4), nn.Linear(4, 3), mode

    def forward(self, x):
        if self.mode == "detach":
            return self.second(self.first(x)).detach()
        with getattr(torch, self.mode)():
            return self.second(self.first(x))


@pytest.mark.parametrize("mode", ["detach", "no_grad", "inference_mode"])
def test_networks_that_turn_gradients_off(mode):
    net, x = Detaches(mode), torch.rand(5, 4)
    probed = read(net, x, layers(net, ["first", "second"]), gradients=False)
    with torch.no_grad():
        assert torch.equal(probed.logits, net.second(net.first(x)))
        assert torch.equal(probed["first"].activation, net.first(x))
    assert not probed.logits.is_inference()
    if mode == "no_grad":  # the taps turn them on again
        gradient = read(net, x, layers(net, ["first"]))["first"].gradient
        net.mode = "enable_grad"
        assert torch.equal(gradient, one_at_a_time(net, x, find_layer(net, "first"))[1])
    else:
        with pytest.raises((ProbeError, RuntimeError), match="no gradient reaches|[Ii]nference"):
            read(net, x, layers(net, ["first"]))
