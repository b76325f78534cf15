"""What is read, under which conditions, and that nothing of the caller's changes."""

import random
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from nac_openood import ProbeError
from nac_openood.core.reading import pooling_for
from nac_openood.network.architectures import Layer, find_layer, known_layers
from nac_openood.network.probe import classify, read

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


def test_channels_last(small_net, images):
    expected = expected_readings(small_net, images)
    small_net.to(memory_format=torch.channels_last)
    probed = read(
        small_net, images.contiguous(memory_format=torch.channels_last), layers(small_net)
    )
    same(probed, expected)


def autocast(dtype):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        context = torch.autocast("cpu", dtype=dtype)
    if said:
        pytest.skip(f"this torch has no {dtype} autocast on CPUs")
    return context


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(small_net, images, dtype):
    expected = expected_readings(small_net, images)
    with autocast(dtype):
        probed = read(small_net, images, layers(small_net))
        # the caller's own backward in the same autocast region still finds its graph
        small_net(images).sum().backward()
    assert small_net.fc.weight.grad is not None
    for name, (z, g) in expected.items():
        ours = probed[name]
        assert ours.activation.dtype == ours.gradient.dtype == torch.float32
        for mine, theirs in ((ours.activation, z), (ours.gradient, g)):
            assert torch.corrcoef(torch.stack([mine.flatten(), theirs.flatten()]))[0, 1] > 0.99


def test_half_gradients_do_not_underflow(small_net, images):
    # nearly uniform logits over small weights: gradients of about 1e-8, zero in float16
    with torch.no_grad():
        small_net.fc.weight.mul_(1e-3)
        small_net.fc.bias.copy_(torch.tensor([4e-4, 0, 0, 0]))
    with autocast(torch.float16):
        probed = read(small_net, images, layers(small_net, ["avgpool"]))
    assert (probed["avgpool"].gradient == 0).float().mean() < 0.5


def test_double_and_half_networks(small_net, images):
    double = read(small_net.double(), images, layers(small_net))
    assert double["layer3"].activation.dtype == torch.float64
    bfloat = read(small_net.bfloat16(), images, layers(small_net))
    assert bfloat["layer3"].activation.dtype == torch.float32


def test_compiled_networks(small_net, images):
    expected = expected_readings(small_net, images)
    compiled = torch.compile(small_net, backend="eager")
    same(read(compiled, images, layers(compiled)), expected, rtol=0, atol=0)
    compiled(images)  # also after it has been traced without hooks
    same(read(compiled, images, layers(compiled)), expected, rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="needs torch >= 2.6")
def test_networks_compiled_in_place(small_net, images):
    expected = expected_readings(small_net, images)
    small_net.compile(backend="eager")
    with torch.no_grad():
        small_net(images)
    same(read(small_net, images, layers(small_net)), expected, rtol=0, atol=0)


def test_data_parallel(small_net, images):
    expected = expected_readings(small_net, images)
    wrapped = nn.DataParallel(small_net)
    same(read(wrapped, images, layers(wrapped)), expected, rtol=0, atol=0)


def test_ddp(small_net, images, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    expected = expected_readings(small_net, images)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(small_net)
        same(read(wrapped, images, layers(wrapped)), expected, rtol=0, atol=0)
    finally:
        torch.distributed.destroy_process_group()


def test_batches_do_not_matter(small_net, images):
    whole = read(small_net, images, layers(small_net))
    parts = [read(small_net, part, layers(small_net)) for part in images.split(7)]
    for name in NAMES:
        joined = torch.cat([p[name].gradient for p in parts])
        torch.testing.assert_close(joined, whole[name].gradient, rtol=1e-4, atol=1e-6)


def test_no_graph_before_the_earliest_layer(small_net, images):
    seen = {}
    small_net.layer1.register_forward_hook(lambda m, i, o: seen.update(first=o.requires_grad))
    small_net.layer4.register_forward_hook(lambda m, i, o: seen.update(later=o.requires_grad))
    read(small_net, images, layers(small_net, ["avgpool", "layer3"]))
    assert seen == {"first": False, "later": True}


def test_one_backward_for_all_layers(small_net, images):
    passes = []
    handle = small_net.fc.register_full_backward_hook(lambda *_: passes.append(1))
    read(small_net, images, layers(small_net))
    handle.remove()
    assert passes == [1]


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
        self.whole = nn.Identity()
        self.rows = nn.Identity()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        self.side(x)
        x, _ = self.pair(self.twice(self.twice(x)))
        self.whole(x.long())
        x = self.rows(torch.cat([x, x]))[: len(x)]
        return self.head(x)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("twice", "layer 'twice' .* ran more than once"),
        ("pair", "layer 'pair' .*LSTM.* returns tuple, expected one tensor"),
        ("side", "do not depend on the output of layer 'side'"),
        ("unused", "layer 'unused' did not run"),
        ("whole", "layer 'whole' .* outputs torch.int64"),
        ("rows", "layer 'rows' outputs 4 rows for a batch of 2"),
    ],
)
def test_layers_that_cannot_be_read_are_named(name, message):
    net = Odd()
    with pytest.raises(ProbeError, match=message):
        read(net, torch.rand(2, 4), layers(net, [name, "head"]))


def test_logits_that_do_not_depend_on_any_layer():
    net = Odd()
    net.requires_grad_(False)
    with pytest.raises(ProbeError, match="the logits do not depend on"):
        net.forward = lambda x: (net.side(x), x[:, :3])[1]
        read(net, torch.rand(2, 4), layers(net, ["side"]))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda y: y[:, :, None], r"expected logits of shape \[batch, classes\].*got \[2, 2, 1\]"),
        (lambda y: "logits", "got str"),
        (lambda y: y[:1], "logits for 1 samples, given input of shape"),
    ],
)
def test_outputs_that_are_not_logits(hand_net, output, message):
    hand_net.head.register_forward_hook(lambda m, i, o: output(o))
    with pytest.raises(ProbeError, match=message):
        read(hand_net, torch.rand(2, 2), layers(hand_net, ["hidden"]))


class Named:
    def __init__(self, logits):
        self.logits = logits


@pytest.mark.parametrize("wrap", [lambda y: (y, y), lambda y: {"logits": y}, Named])
def test_outputs_that_hold_logits(hand_net, wrap):
    x = torch.rand(2, 2)
    expected = read(hand_net, x, layers(hand_net, ["hidden"]))["hidden"]
    hand_net.register_forward_hook(lambda m, i, o: wrap(o))
    assert torch.equal(read(hand_net, x, layers(hand_net, ["hidden"]))["hidden"][1], expected[1])


def test_bad_inputs(hand_net):
    with pytest.raises(ProbeError, match="expected a batch as a torch.Tensor.*got list of list"):
        read(hand_net, [[1.0, 2.0]], layers(hand_net, ["hidden"]))
    with torch.inference_mode():
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ProbeError, match="made inside torch.inference_mode"):
        read(net, torch.rand(2, 2), layers(net, ["0"]))


def test_known_layers_of_an_unknown_network(hand_net):
    assert known_layers(hand_net) == []
