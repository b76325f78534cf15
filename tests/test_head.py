"""The head of a classifier, found by running it."""

import pytest
import torch
import torchvision
from test_probe import equal, snapshot
from torch import nn
from torchvision.models import VisionTransformer

from nac_openood.errors import NACError
from nac_openood.network.head import Head, head_of, with_features
from nac_openood.sources.networks import CifarResNet18


def tiny_vit():
    return VisionTransformer(32, 16, 2, 2, 12, 24, num_classes=5)


def torchvision_net(name):
    return torchvision.models.get_model(name, weights=None, num_classes=5)


def timm_net(name, **more):
    timm = pytest.importorskip("timm")
    return timm.create_model(name, pretrained=False, num_classes=5, **more)


class Nested(nn.Module):
    """A net inside a wrapper, an auxiliary head beside it, and dropout before the head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7), nn.ReLU(True))
        self.backbone.exit = nn.ModuleList([nn.Sequential(nn.Dropout(0.5), nn.Linear(7, 5))])
        self.aux = nn.Linear(7, 5)

    def forward(self, x):
        hidden = self.backbone.body(x)
        logits = self.backbone.exit[0](hidden)
        return logits, self.aux(hidden)


NETS = {
    "resnet18": (lambda: torchvision_net("resnet18"), 32, "fc"),
    "cifar": (lambda: CifarResNet18(5), 32, "fc"),
    "vit": (tiny_vit, 32, "heads.head"),
    "timm vit": (lambda: timm_net("vit_tiny_patch16_224", img_size=32, depth=2), 32, "head"),
    "timm convnext": (lambda: timm_net("convnext_atto"), 32, "head.fc"),
    "nested": (Nested, 32, "backbone.exit.0.1"),
    "parallel": (lambda: nn.DataParallel(CifarResNet18(5)), 32, "fc"),
}


@pytest.mark.parametrize("name", NETS)
def test_the_head_is_found_and_repeats_the_logits_to_the_bit(name):
    make, size, path = NETS[name]
    torch.manual_seed(0)
    net = make()
    x = torch.randn(3, 3, size, size)
    before = snapshot(net)
    found, layer = head_of(net, x[:1])
    logits, features = with_features(net, x, layer)[:2]
    assert equal(before, snapshot(net))
    assert found == path
    assert features.shape == (3, layer.in_features)
    with torch.no_grad():
        plain = net.eval()(x)
    plain = plain[0] if isinstance(plain, tuple) else plain
    assert torch.equal(logits, plain)
    assert torch.equal(Head(layer)(features), logits)
    again = with_features(net, x)
    assert torch.equal(again.features, features)
    assert not features.requires_grad


def test_two_heads_averaged_are_no_head():
    net = timm_net("deit_tiny_distilled_patch16_224", img_size=32, depth=1)
    with pytest.raises(NACError, match="of that shape: head, head_dist."):
        head_of(net, torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("after", [nn.ReLU(), nn.ReLU(inplace=True), nn.LogSoftmax(dim=1)])
def test_a_net_that_does_not_end_in_a_linear_layer(after):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), after)
    before = snapshot(net)
    with pytest.raises(NACError, match=r"Linear layers with outputs of that shape: 1"):
        with_features(net, torch.ones(4, 3, 2, 2))
    assert equal(before, snapshot(net))


def test_the_head_speaks_as_openoods_networks(small_net, images):
    logits, features = with_features(small_net, images)[:2]
    head = Head(head_of(small_net, images)[1])
    kept = features.clone()
    head(features, return_feature=True)[1].zero_()
    head(features, return_feature_list=True)[1][0].zero_()
    assert torch.equal(features, kept)
    assert torch.equal(head(features, return_feature=True)[0], logits)
    clipped = head.forward_threshold(features, 0.1)
    assert torch.equal(clipped, small_net.fc(features.clamp(max=0.1)))
    weight, bias = head.get_fc()
    assert torch.equal(torch.from_numpy(weight), small_net.fc.weight)
    assert torch.equal(torch.from_numpy(bias), small_net.fc.bias)
    assert head.get_fc_layer() is head.fc
    assert not Head(nn.Linear(3, 2, bias=False)).get_fc()[1].any()
    assert not head.fc.weight.requires_grad and small_net.fc.weight.requires_grad
    with torch.no_grad():
        head.fc.weight.zero_()
    assert small_net.fc.weight.abs().sum() > 0
