"""NAC entropy: soft bins against the histogram, gradients, and the hook in a training loop of the user's."""

import math

import numpy as np
import pytest
import torch
from test_docs import DOCS
from torch import nn
from torch.nn import functional as F

from nac_openood.errors import NACError
from nac_openood.training import NACEntropy
from nac_openood.training.entropy import ENTROPY_FORMS, entropy, histogram, soft_probability


def hard_probability(z, bins):
    """The probability of the bin of each output `[batch, neurons]`; 1 for a constant neuron."""
    index = torch.searchsorted(bins.edges, z.detach().t().contiguous(), right=True)
    found = bins.probabilities.gather(1, index).t()
    return torch.where(bins.width > 0, found, torch.ones_like(found))


@pytest.fixture
def samples():
    return torch.randn(400, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.hidden, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.head(self.relu(self.hidden(x)))


@pytest.fixture
def net():
    return TwoLayers()


def inputs(n=20, seed=1):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def test_the_histogram_is_numpys(samples):
    bins = histogram(samples, 10)
    for neuron in range(6):
        counts, edges = np.histogram(samples[:, neuron].numpy(), bins=10)
        assert (bins.probabilities[neuron] * 400).tolist() == pytest.approx(counts.tolist())
        assert bins.edges[neuron].tolist() == pytest.approx(edges[1:-1].tolist())


def literal(z, bins, temperature, form):
    """The formulas with loops: weights of all bins, which sum to 1, times their probabilities."""
    total = 0.0
    for row in z.tolist():
        for i, value in enumerate(row):
            scale = temperature * bins.width[i].item()
            steps = [1 / (1 + math.exp(-(value - e) / scale)) for e in bins.edges[i].tolist()]
            edges = [1.0, *steps, 0.0]
            weights = [a - b for a, b in zip(edges, edges[1:])]
            assert sum(weights) == pytest.approx(1)
            p = sum(w * q for w, q in zip(weights, bins.probabilities[i].tolist()))
            total += -p * math.log(p) if form == "paper" else -math.log(p)
    return total / len(z)


@pytest.mark.parametrize("form", ENTROPY_FORMS)
def test_the_entropy_is_the_formula(samples, form):
    bins = histogram(samples, 7)
    found = entropy(samples[:30], bins, 0.4, form).item()
    assert found == pytest.approx(literal(samples[:30], bins, 0.4, form), rel=1e-12)


@pytest.mark.parametrize("form", ENTROPY_FORMS)
def test_the_gradient_is_right(samples, form):
    bins = histogram(samples, 9)
    z = samples[:5].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: entropy(x, bins, 0.5, form), z)


@pytest.mark.parametrize("form", ENTROPY_FORMS)
def test_a_constant_neuron_adds_nothing_and_has_no_gradient(samples, form):
    bins = histogram(samples, 9)
    constant = torch.full((400, 1), 1e-3, dtype=torch.float64)
    more = histogram(torch.cat([samples, constant], 1), 9)
    z = torch.cat([samples, constant], 1).requires_grad_()
    value = entropy(z, more, 0.5, form)
    assert value.item() == pytest.approx(entropy(samples, bins, 0.5, form).item())
    value.backward()
    assert (z.grad[:, -1] == 0).all()
    assert z.grad.isfinite().all()
    assert hard_probability(z, more)[:, -1].tolist() == [1.0] * 400


@pytest.mark.parametrize("far", [1e4, -1e30])
def test_far_outside_the_range_the_entropy_is_finite(samples, far):
    bins = histogram(samples.float(), 9)
    z = torch.full((2, 6), far, requires_grad=True)
    value = entropy(z, bins, 1e-3, "surprisal")
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()


def test_a_loop_of_the_users_own(net):
    x, y = inputs(), torch.arange(20) % 3
    with NACEntropy(net, "hidden", n_bins=8, window=30) as measure:
        net(inputs(20, 2))
        measure()
        loss = F.cross_entropy(net(x), y) - 0.1 * measure()
    loss.backward()
    assert net.hidden.weight.grad.abs().sum() > 0
    # by hand: the outputs of the last 30 samples, before the ReLU that works in place
    with torch.no_grad():
        seen = torch.cat([net.hidden(inputs(20, 2)), net.hidden(x)])[-30:]
        h = entropy(net.hidden(x), histogram(seen, 8), 0.5)
        assert loss.item() == pytest.approx((F.cross_entropy(net(x), y) - 0.1 * h).item())


def test_a_batch_larger_than_the_window_is_counted_whole(net):
    measure = NACEntropy(net, "hidden", n_bins=4, window=2, form="surprisal")
    net(inputs(50))
    assert measure().item() < 5 * math.log(50)  # no output has a probability below 1/50
    assert (measure.histogram().probabilities * 50).sum(1).tolist() == pytest.approx([50] * 5)


def test_passes_without_gradients_are_ignored(net):
    measure = NACEntropy(net, "hidden")
    net(inputs())
    expected = measure().item()
    again = NACEntropy(net, "hidden")
    net(inputs())
    with torch.no_grad():
        net(inputs(7, seed=5))
    assert again().item() == expected


def test_no_hook_is_left_behind(net):
    with pytest.raises(ZeroDivisionError), NACEntropy(net, "hidden"):
        1 / 0  # noqa: B018
    assert not net.hidden._forward_hooks
    with pytest.raises(NACError):
        NACEntropy(net, "hidden", n_bins=1)
    assert not net.hidden._forward_hooks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "layer9"}, "has no layer 'layer9'"),
        ({"n_bins": 1}, "n_bins must be at least 2"),
        ({"window": 0}, "window must be at least 2"),
        ({"temperature": 0}, "temperature must be positive"),
        ({"form": "gibbs"}, "unknown form .*expected one of .*paper"),
    ],
)
def test_bad_settings_are_refused(net, options, message):
    with pytest.raises(NACError, match=message):
        NACEntropy(net, **{"layer": "hidden", **options})


def test_it_is_called_once_per_batch(net):
    measure = NACEntropy(net, "hidden")
    with pytest.raises(NACError, match="no batch has gone through layer 'hidden'"):
        measure()
    net(inputs())
    measure()
    net.requires_grad_(False)(inputs())
    with pytest.raises(NACError, match="parameters before this layer that are trained"):
        measure()


def test_outputs_that_are_not_finite_are_refused(net):
    measure = NACEntropy(net, "hidden")
    x = inputs()
    x[3] = math.nan
    net(x)
    with pytest.raises(NACError, match="outputs that are not finite"):
        measure()
    net(inputs())  # and what was seen before is not spoilt
    assert measure().isfinite()


# -- the page about it: its figures are the real ones; test_docs.py runs its code ---------------

PAGE = (DOCS / "checkpoints.md").read_text(encoding="utf-8")


def bound(z, bins, temperature):
    """What the smoothing changes at most, as the module says."""
    distance = (z[:, :, None] - bins.edges).abs() / (temperature * bins.width[:, None])
    return (torch.sigmoid(-distance) * bins.probabilities.diff(dim=1).abs()).sum(-1)


def test_its_figures_are_measured():
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(1024, 100, generator=draw, dtype=torch.float64)
    bins = histogram(z, 50)
    hard = hard_probability(z, bins)
    assert f"{hard.mean():.4f}" in PAGE
    for t, told in ((1, ""), (0.5, "by {} on average at the default"), (0.1, "by {} at 0.1")):
        apart = (soft_probability(z, bins, t) - hard).abs()
        assert (apart <= bound(z, bins, t) + 1e-12).all()
        assert told.format(f"{apart.mean():.4f}") in PAGE
