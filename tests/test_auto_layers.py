"""Layers chosen by running a network: classifiers of libraries, and toys with traps."""

import pytest
import timm
import torch
import torchvision
from conftest import SmallNet
from test_layers import NETWORKS, Wrapper
from test_padding import WORDS, ClassToken, TextNet
from test_probe import equal, snapshot
from torch import nn
from torchvision.models.resnet import BasicBlock

from nac_openood.errors import ProbeError
from nac_openood.network.architectures import Layer, table_layers
from nac_openood.network.auto import auto_layers
from nac_openood.network.probe import read

TV, TIMM = torchvision.models.get_model, timm.create_model


def paths(layers):
    return [layer.path for layer in layers]


def chosen(found):
    """`(head input, early stages)` as `path:layout`."""

    def text(layer):
        return f"{layer.path}:{layer.layout}"

    return text(found.head_input), [text(layer) for layer in found.early]


# -- networks of the architecture table ------------------------------------------------------


ONE_OF_EACH = {row: name for name, (_, row, _, _) in reversed(NETWORKS.items())}.values()


#: Networks of the table in which more or other stages are found than their row has.
OTHER_STAGES: set[str] = set()


@pytest.mark.parametrize("name", sorted({*ONE_OF_EACH} - OTHER_STAGES))
def test_auto_agrees_with_the_table(name):
    make, _, side, _ = NETWORKS[name]
    net = make()
    found = auto_layers(net, torch.randn(2, 3, side, side))
    table = table_layers(net)
    if "vit" in name or "deit" in name:  # three blocks: a quarter of them is the first
        assert [layer.alias for layer in found.early] == ["block0", "block1", "block2"]
    else:
        assert [layer.alias for layer in found.early] == ["layer1", "layer2", "layer3"]
    assert found.deepest_first == tuple(layer for layer in table if layer.alias != "layer4")


# -- networks nobody described ---------------------------------------------------------------

ZOO = {
    "squeezenet": (lambda: TV("squeezenet1_1", num_classes=5), 96, "features:maps", "features.{}:maps", (4, 7, 10, 12)),
    "mobilenet_v2": (lambda: TV("mobilenet_v2", num_classes=5), 64, "classifier.0:flat", "features.{}:maps", (1, 3, 6, 10, 13, 16, 17)),
    "efficientnet": (lambda: TV("efficientnet_b0", num_classes=5), 64, "avgpool:flat", "features.{}:maps", (1, 2, 3, 4, 5, 6, 7)),
    "shufflenet": (lambda: TV("shufflenet_v2_x0_5", num_classes=5), 64, "conv5:maps", "stage{}:maps", (2, 3, 4)),
    "timm regnet": (lambda: TIMM("regnety_002", num_classes=5), 64, "head.global_pool:flat", "s{}:maps", (1, 2, 3, 4)),
    "repvgg": (lambda: TIMM("repvgg_a0", num_classes=5), 64, "head.global_pool:flat", "stages.{}:maps", (0, 1, 2, 3)),
    "mobilenetv4": (lambda: TIMM("mobilenetv4_conv_small", num_classes=5), 64, "norm_head:flat", "blocks.{}:maps", (0, 1, 2, 3)),
    "edgenext": (lambda: TIMM("edgenext_xx_small", num_classes=5), 64, "head.global_pool:flat", "stages.{}:maps", (0, 1, 2, 3)),
    "mambaout": (lambda: TIMM("mambaout_femto", num_classes=5), 64, "head.pre_logits:flat", "stages.{}:maps_last", (0, 1, 2, 3)),
    "pvt": (lambda: TIMM("pvt_v2_b0", num_classes=5), 64, "head_drop:flat", "stages.{}:maps", (0, 1, 2, 3)),
    "efficientvit": (lambda: TIMM("efficientvit_m0", num_classes=5), 224, "head.bn:flat", "stages.{}:maps", (0, 1, 2)),
    "levit": (lambda: TIMM("levit_128s", num_classes=5), 224, "stages:tokens", "stages.{}:tokens", (0, 1, 2)),
}  # fmt: skip

#: timm renamed it in 1.0.31.
CONVMIXER_POOL = [name for name, _ in timm.models.ConvMixer(4, 1).named_children()][2]
STACKS = {
    "mixer": (lambda: timm.models.MlpMixer(5, 64, num_blocks=8, embed_dim=24), 64, "head_drop:flat", "blocks.{}:tokens", (1, 3, 5)),
    "cait": (lambda: TIMM("cait_xxs24_224", img_size=64, num_classes=5, depth=8), 64, "norm:class_token", "blocks.{}:tokens", (1, 3, 5)),
    "convmixer": (lambda: timm.models.ConvMixer(24, 8, num_classes=5), 64, f"{CONVMIXER_POOL}:flat", "blocks.{}:maps", (1, 3, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ZOO, *STACKS])
def test_networks_with_stages_and_stacks_of_one_width(name):
    make, side, head_input, pattern, numbers = {**ZOO, **STACKS}[name]
    net, x = make(), torch.randn(2, 3, side, side)
    found = auto_layers(net, x)
    # the last stage of the zoo's networks is not an early one
    early = [pattern.format(n) for n in (numbers[:-1] if name in ZOO else numbers)]
    assert chosen(found) == (head_input, early)
    assert_readable(net, x, found)


def assert_readable(net, x, found):
    """Every layer gives one row a sample; NAC can read it."""
    for parameter in net.parameters():  # some weights start at zero, and so would every gradient
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    probed = read(net, x, {layer.alias: layer for layer in found.deepest_first})
    assert all(reading.activation.shape[0] == len(x) for reading in probed.values())


# -- other kinds of data ---------------------------------------------------------------------


def mlp(*widths):
    pairs = [[nn.Linear(a, b), nn.ReLU()] for a, b in zip(widths, widths[1:])]
    return nn.Sequential(*[layer for pair in pairs for layer in pair][:-1])


def test_tables():
    found = auto_layers(mlp(7, 64, 32, 16, 3), torch.randn(5, 7))
    assert chosen(found) == ("5:flat", ["1:flat", "3:flat"])
    # a stack: hidden layers 2, 4 and 6 of 8; the last of them is what the head is given
    found = auto_layers(mlp(7, *[16] * 8, 3), torch.randn(5, 7))
    assert chosen(found) == ("15:flat", ["3:flat", "7:flat", "11:flat"])
    # one hidden layer: there is nothing before the head's input
    found = auto_layers(mlp(7, 16, 3), torch.randn(5, 7))
    assert found.early == (found.head_input,) == (Layer("1", "1", "flat"),)
    assert found.deepest_first == (found.head_input,)


def test_plain_convolutions_with_a_deep_head():
    widths = [(3, 4), (4, 6), (6, 8), (8, 8)]
    convs = [[nn.Conv2d(a, b, 3, 1, 1), nn.ReLU(True), nn.MaxPool2d(2)] for a, b in widths]
    features = nn.Sequential(*[layer for stage in convs for layer in stage])
    dense = [nn.Linear(32, 20), nn.ReLU(True), nn.Dropout(), nn.Linear(20, 20), nn.ReLU(True)]
    net = nn.Sequential(features, nn.Flatten(), *dense, nn.Linear(20, 5))
    found = auto_layers(net, torch.randn(2, 3, 32, 32))
    assert chosen(found) == ("6:flat", ["0.1:maps", "0.4:maps", "0.7:maps"])


class Functional(nn.Module):
    """Activations and pooling are functions, not modules."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 12, 3, 2)
        self.hidden, self.fc = nn.Linear(12, 10), nn.Linear(10, 4)

    def forward(self, x):
        x = self.two(self.one(x).relu()).relu().mean((2, 3))
        return self.fc(self.hidden(x).relu())


def test_functions_between_modules():
    found = auto_layers(Functional(), torch.randn(2, 3, 32, 32))
    assert chosen(found) == ("hidden:flat", ["one:maps"])


def signal_net(channels):
    stages = [
        nn.Sequential(nn.Conv1d(a, b, 3, stride, 1), nn.BatchNorm1d(b), nn.ReLU())
        for a, b, stride in [(2, channels, 1), (channels, 24, 2), (24, 32, 2)]
    ]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.parametrize("channels", [16, 40])  # as many as time steps, and not
def test_signals_have_their_channels_first(channels):
    found = auto_layers(signal_net(channels), torch.randn(4, 2, 40))
    assert chosen(found) == ("3:flat", ["0.2:maps", "1:maps"])


def test_text():
    ids = torch.randint(1, WORDS, (4, 16))  # as many tokens as neurons
    ids[:, 12:] = 0
    blocks = [f"encoder.layers.{k}:tokens" for k in (1, 3, 5)]
    net = TextNet(depth=8)
    for found in (
        auto_layers(net, {"input_ids": ids, "attention_mask": (ids != 0).long()}),
        auto_layers(net, ids),  # the mask is made inside
    ):
        assert chosen(found) == ("encoder:tokens", blocks)
    assert_readable(net, ids, found)


def test_a_class_token_does_not_make_the_first_block_a_stem():
    ids = torch.randint(1, WORDS, (4, 16))
    found = auto_layers(ClassToken(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert chosen(found) == ("blocks.3:class_token", [f"blocks.{k}:tokens" for k in (0, 1, 2)])


# -- traps -----------------------------------------------------------------------------------


class TupleBlock(nn.Module):
    """A block that returns more than one tensor, as many of Hugging Face's do."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.mix(self.norm(x)), None


class TupleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 12)
        self.blocks = nn.ModuleList(TupleBlock(12) for _ in range(8))
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)[0]
        return self.head(self.norm(x)[:, 0])


def test_a_block_that_returns_a_tuple_is_read_behind_it():
    found = auto_layers(TupleNet(), torch.randn(2, 6, 5))
    norms = [f"blocks.{k}.norm:tokens" for k in (2, 4, 6)]
    assert chosen(found) == ("norm:class_token", norms)


def test_conv_heads():
    body = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3, 2), nn.ReLU(), nn.Dropout()]
    net = nn.Sequential(*body, nn.Conv2d(12, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = auto_layers(net, torch.randn(2, 3, 16, 16))
    assert chosen(found) == ("3:maps", ["1:maps"])  # the last stage is the head's input


# -- wrappers, traces, errors ----------------------------------------------------------------


def small_resnet():
    return torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5)


@pytest.mark.parametrize(
    "wrap, prefix",
    [
        (nn.DataParallel, "module."),
        (lambda net: torch.compile(net, backend="eager"), "_orig_mod."),
        (lambda net: Wrapper("backbone", net), "backbone."),
        (lambda net: Wrapper("trunk", net), "trunk."),
    ],
)
def test_wrapped_networks(wrap, prefix):
    net, x = small_resnet(), torch.randn(2, 3, 32, 32)
    plain, wrapped = auto_layers(net, x), wrap(net)
    found = auto_layers(wrapped, x)
    assert paths(found.deepest_first) == [prefix + path for path in paths(plain.deepest_first)]
    if prefix != "trunk.":  # the table knows the others
        assert [layer.alias for layer in found.early] == ["layer1", "layer2", "layer3"]
    modules = dict(wrapped.named_modules())
    assert all(path in modules for path in paths(found.deepest_first))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_nothing_is_left_on_the_network(mode):
    net = getattr(SmallNet(), mode)()
    net.layer1.eval()
    x = torch.randn(2, 3, 9, 9)
    kept, before = x.clone(), snapshot(net)
    with torch.inference_mode():
        first = auto_layers(net, x)
    assert equal(before, snapshot(net)) and torch.equal(x, kept)
    with pytest.raises(RuntimeError):
        auto_layers(net, torch.ones(2, 5, 9, 9))
    assert equal(before, snapshot(net))
    assert auto_layers(net.train(), x[:1]) == first == auto_layers(net.eval(), x.repeat(9, 1, 1, 1))


def test_errors_say_what_can_be_named():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm = nn.Linear(4, 6), nn.LSTM(6, 8, batch_first=True)
            self.fc = nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(self.lstm(self.embed(x))[0][:, -1])

    with pytest.raises(ProbeError, match="its head is applied to. .* modules: embed, lstm, fc"):
        auto_layers(Recurrent(), torch.randn(2, 5, 4))
    for net in (nn.Sequential(nn.Linear(4, 3)), nn.Softmax(-1)):
        with pytest.raises(ProbeError, match="no module that returns what its head is applied to"):
            auto_layers(net, torch.randn(2, 4))
    with pytest.raises(ProbeError, match="expected logits of shape"):
        auto_layers(nn.Conv2d(3, 4, 1), torch.randn(2, 3, 4, 4))
