"""Classifiers with one logit and a sigmoid count as two classes."""

import numpy as np
import pytest
import torch
from torch import nn

from nac_openood import LayerConfig, NACDetector
from nac_openood.core.posthoc import energy, msp
from nac_openood.network.architectures import find_layer
from nac_openood.network.head import Head, head_of, with_features
from nac_openood.network.probe import PassPlan, classify, read


class OneLogit(nn.Module):
    """Returns `[batch, 1]`, or `[batch]` if it squeezes."""

    def __init__(self, squeeze):
        super().__init__()
        self.hidden, self.act = nn.Linear(4, 8), nn.ReLU()
        self.head, self.squeeze = nn.Linear(8, 1), squeeze

    def forward(self, x):
        z = self.head(self.act(self.hidden(x)))
        return z.squeeze(-1) if self.squeeze else z


def table(n, seed, shift=0.0):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x + shift, (x[:, 0] + x[:, 1] > 0).float()


@pytest.fixture(scope="module", params=[False, True], ids=["[batch, 1]", "[batch]"])
def net(request):
    torch.manual_seed(0)
    net = OneLogit(request.param)
    x, y = table(400, 0)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(80):
        loss = nn.functional.binary_cross_entropy_with_logits(net(x).reshape(-1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def test_softmax_of_the_two_logits_is_the_sigmoid(net):
    x, _ = table(20, 1)
    with torch.no_grad():
        z = net(x).reshape(-1)
    logits = classify(net, x)
    assert logits.shape == (20, 2)
    assert torch.equal(logits[:, 0], torch.zeros(20)) and torch.equal(logits[:, 1], z)
    assert torch.allclose(logits.softmax(1)[:, 1], z.sigmoid())
    assert torch.allclose(energy(logits), nn.functional.softplus(z).to(energy(logits)))
    assert torch.allclose(msp(logits), torch.maximum(z.sigmoid(), (-z).sigmoid()).to(msp(logits)))


@pytest.mark.parametrize("planned", [False, True])
def test_the_gradient_is_that_of_the_formula(net, planned):
    x, _ = table(20, 1)
    found = {"act": find_layer(net, "act")}
    probed = read(net, x, found, PassPlan(net, x) if planned else None)
    with torch.no_grad():
        z = net(x).reshape(-1, 1)
    # KL(uniform || softmax([0, z])) has the derivative sigmoid(z) - 1/2
    expected = (z.sigmoid() - 0.5) * net.head.weight.detach()
    assert torch.allclose(probed["act"].gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("rule", "layers", "least"),
    # not more of NAC: a confident sigmoid saturates its states, also far from the data
    [("nac", {"act": LayerConfig(steepness=1.0, full_count=20)}, 0.6), ("nac_plus", "auto", 0.8)],
)
def test_fit_score_and_predictions(net, rule, layers, least):
    detector = NACDetector(net, layers, rule=rule).fit([table(400, 0)]).calibrate([table(200, 1)])
    assert set(detector.fit_summary_.class_counts) == {0, 1}
    x, y = table(200, 2)
    inside = detector.score_loader([(x, y)])
    assert np.array_equal(inside.label, y.numpy().astype(int))
    with torch.no_grad():
        assert np.array_equal(inside.prediction, (net(x).reshape(-1) > 0).long().numpy())
    assert (inside.prediction == inside.label).mean() > 0.9
    outside = detector.score(table(200, 3, shift=6.0)[0]).numpy()
    assert (inside.score[:, None] > outside).mean() > least


def test_its_head_has_two_classes(net):
    x, _ = table(20, 1)
    path, layer = head_of(net, x)
    assert path == "head" and layer is net.head
    found = with_features(net, x, layer)
    assert torch.allclose(Head(layer)(found.features), found.logits)
    weight, bias = Head(layer).get_fc()
    assert weight.shape == (2, 8) and bias.shape == (2,) and not weight[0].any() and not bias[0]
