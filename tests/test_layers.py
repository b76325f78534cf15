"""Every row of the table against the real networks it speaks of."""

import pytest
import timm
import torch
import torchvision
from torch import nn

from nac_openood import LayerConfig, NACDetector, NACError, ProbeError
from nac_openood.core.reading import LAYOUTS, pooling_for
from nac_openood.network.architectures import ARCHITECTURES, find_layer, recognize, table_layers
from nac_openood.network.probe import read

VIT = ["ln", "block2", "block1", "block0"]
TV, TIMM = torchvision.models, timm.create_model
SMALL_VIT = dict(depth=3, embed_dim=24, num_heads=2, num_classes=5)


def tv_vit():
    return TV.VisionTransformer(64, 16, 3, 2, 24, 48, num_classes=5)


# name -> (network, family and deepest layer of its row, input side, layer widths deepest first)
NETWORKS = {
    "resnet18": (lambda: TV.resnet18(), ("resnet", "avgpool"), 64, [512, 512, 256, 128, 64]),
    "vit": (tv_vit, ("vit", "encoder.ln"), 64, [24, 24, 24, 24]),
    "swin_t": (lambda: TV.swin_t(), ("swin", "avgpool"), 64, [768, 768, 384, 192, 96]),
    "regnet_y_400mf": (lambda: TV.regnet_y_400mf(), ("regnet", "avgpool"), 64, [440, 440, 208, 104, 48]),
    "convnext_tiny": (lambda: TV.convnext_tiny(), ("convnext", "avgpool"), 64, [768, 768, 384, 192, 96]),
    "densenet121": (lambda: TV.densenet121(), ("densenet", "features.norm5"), 64, [1024, 1024, 1024, 512, 256]),
    "timm_resnet18": (lambda: TIMM("resnet18"), ("resnet", "global_pool"), 64, [512, 512, 256, 128, 64]),
    "timm_vit": (lambda: TIMM("vit_tiny_patch16_224", img_size=64, **SMALL_VIT), ("vit", "fc_norm"), 64, [24] * 4),
    "timm_vit_avg": (lambda: TIMM("vit_tiny_patch16_224", img_size=64, global_pool="avg", **SMALL_VIT), ("vit", "fc_norm"), 64, [24] * 4),
    "timm_deit_dist": (lambda: TIMM("deit_tiny_distilled_patch16_224", img_size=64, **SMALL_VIT), ("vit", "norm"), 64, [24] * 4),
    "timm_swin": (lambda: TIMM("swin_tiny_patch4_window7_224"), ("swin", "head.global_pool"), 224, [768, 768, 384, 192, 96]),
    "timm_convnext": (lambda: TIMM("convnext_atto"), ("convnext", "head.global_pool"), 64, [320, 320, 160, 80, 40]),
}  # fmt: skip


def test_every_row_of_the_table_has_a_network_here():
    rows = {(row.family, row.layers[0].path) for row in ARCHITECTURES}
    assert {row for _, row, _, _ in NETWORKS.values()} == rows and len(rows) == len(ARCHITECTURES)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_reads_real_networks(name):
    make, row, side, widths = NETWORKS[name]
    torch.manual_seed(0)
    net = make().eval()
    for parameter in net.parameters():  # some heads start at zero, and so would every gradient
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    found = recognize(net)[0]
    assert (found.family, found.layers[0].path) == row
    layers = {layer.alias: layer for layer in table_layers(net)}
    probed = read(net, torch.randn(2, 3, side, side), layers)
    assert [r.activation.shape[1] for r in probed.values()] == widths
    for alias, reading in probed.items():
        assert reading.gradient.shape == reading.activation.shape, alias
        assert reading.gradient.abs().sum() > 0, alias


@pytest.mark.parametrize("name", ["alexnet", "vgg11_bn", "mobilenet_v3_small"])
def test_networks_that_are_named_alike_are_not_taken_for_a_convnext(name):
    with torch.device("meta"):
        net = TV.get_model(name)
    assert recognize(net) is None


def test_vit_reads_the_class_token_before_the_head_and_all_tokens_elsewhere():
    net = tv_vit().eval()
    assert find_layer(net, "ln").layout == "class_token"
    assert find_layer(net, "block1").layout == "tokens"
    assert find_layer(net, "layer_norm") == find_layer(net, "ln")
    assert find_layer(net, "layer_2").path == "encoder.layers.encoder_layer_2.ln_2"


class Wrapper(nn.Module):
    def __init__(self, name, net):
        super().__init__()
        setattr(self, name, net)
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(x)


@pytest.mark.parametrize("chain", [["backbone"], ["module"], ["module", "backbone"], ["_orig_mod"]])
def test_wrappers_are_seen_through_and_keep_the_pooling_rule(chain):
    net = tv_vit().eval()
    nn.init.normal_(net.heads.head.weight)
    wrapped = net
    for name in reversed(chain):
        wrapped = Wrapper(name, wrapped)
    x = torch.randn(2, 3, 64, 64)
    plain = read(net, x, {n: find_layer(net, n) for n in VIT})
    for names in (VIT, ["encoder.ln"]):
        seen = {n: find_layer(wrapped, n) for n in names}
        assert all(layer.path.startswith(chain[0]) for layer in seen.values())
    through = read(wrapped, x, {n: find_layer(wrapped, n) for n in VIT})
    for name in VIT:
        assert torch.equal(plain[name].gradient, through[name].gradient)


def test_choices_that_cannot_be_read_are_explained(small_net):
    net = Wrapper("trunk", nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    wrapped = Wrapper("module", small_net)
    for chosen, layers, message in (
        (net, "cifar10", r"not in the architecture table.*Its modules: trunk, trunk.0"),
        (net, ["trunk.2"], r"no layer 'trunk.2'. Did you mean 'trunk.1'.*LayerConfig"),
        (TV.resnet18(), ["layer5"], r"no layer 'layer5'. Did you mean 'layer4'.*known layers are"),
        (small_net, [], "no layers given"),
        (small_net, {"avgpool": 50}, "expected a LayerConfig, got 50"),
        (wrapped, ["avgpool", "module.avgpool"], "'avgpool' and '.*' are the same module"),
    ):
        with pytest.raises(NACError, match=message):
            NACDetector(chosen, layers, rule="nac")


def test_layouts():
    for layout, shape, message in (
        (None, [3], r"layer 'x' outputs a tensor of shape \[3\]"),
        ("tokens", [1, 2, 3, 4], "does not fit layout='tokens'"),
    ):
        with pytest.raises(ProbeError, match=message):
            pooling_for(layout, torch.Size(shape), "x")
    maps = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert LAYOUTS["maps"](maps).tolist() == [[66.0, 210.0]]
    assert LAYOUTS["maps_last"](maps.permute(0, 2, 3, 1)).tolist() == [[66.0, 210.0]]
    assert LAYOUTS["tokens"](torch.ones(2, 5, 3)).tolist() == [[5.0] * 3] * 2
    assert LAYOUTS["class_token"](maps[0]).tolist() == [[0.0, 1, 2, 3], [12.0, 13, 14, 15]]
    assert LAYOUTS["flat"](torch.ones(2, 3, 1, 1)).shape == (2, 3)
    assert LAYOUTS["maps"](torch.full((1, 1, 64, 64), 20.0).half()).item() == 81920.0


def test_a_layout_can_be_named(small_net, images):
    detector = NACDetector(small_net, {"layer3": LayerConfig(layout="maps_last")})
    detector.fit([images])
    assert detector.rule_.histograms["layer3"].neurons == 4  # the width, taken for channels
