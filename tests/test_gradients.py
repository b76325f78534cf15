"""A pass computes the gradients that it is asked for, and does no work for the others."""

import pytest
import torch
from test_probe import NAMES, layers, one_at_a_time
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from nac_openood import ProbeError
from nac_openood.network.architectures import find_layer
from nac_openood.network.probe import PassPlan, read


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
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
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
