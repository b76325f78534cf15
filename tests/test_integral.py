"""NAC-ME of a network: the counts, the number, the layer."""

import json

import minibench
import numpy as np
import oracle
import pytest
import timm
import torch
import torchvision
from conftest import BENCH_EVERY
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import IntegralConfig, NACError, NotFittedError, Reading, coverage_integral
from nac_openood.core.histogram import CoverageIntegral, LinearHistogram, linear_edges
from nac_openood.core.reading import BatchReadings
from nac_openood.evaluation.integral import count_coverage, deepest_layer
from nac_openood.network.architectures import find_layer
from nac_openood.network.probe import read


def passed(n, neurons=4, seed=0):
    """Readings of `n` samples, their labels, and which are classified correctly."""
    generator = torch.Generator().manual_seed(seed)
    z, g = (torch.randn(n, neurons, generator=generator) for _ in range(2))
    z[:, 0] = 0  # a dead neuron
    logits = torch.randn(n, 3, generator=generator)
    label = torch.randint(0, 3, (n,), generator=generator)
    return BatchReadings(logits, {"deep": Reading(z, g)}), label, logits.argmax(1) == label


def counted(probed, label, config):
    rule = CoverageIntegral({"deep": config})
    rule.update(probed, label)
    return rule


@given(
    st.integers(2, 60), st.integers(1, 6), st.sampled_from([0.1, 1.0, 7.0]), st.integers(0, 9999)
)
def test_it_is_the_formula(m, full_count, alpha, seed):
    probed, label, right = passed(25, seed=seed)
    rule = counted(probed, label, IntegralConfig(m, full_count, alpha))
    z, g = probed["deep"]
    states = torch.sigmoid(alpha * (z * g))[right].numpy()
    expected = oracle.coverage_integral(states, m, full_count)
    assert rule.integral() == pytest.approx(expected, abs=1e-12)
    assert (rule.n_samples, rule.histogram.n_samples) == (25, int(right.sum()))


@pytest.mark.parametrize("m", [2, 3, 50, 51, 1000])
def test_edges_are_closed_on_the_left(m):
    edges = linear_edges(m)
    assert edges[0] == 0 and edges[-1] == 1 and len(edges) == m
    below = torch.nextafter(edges, torch.tensor(-1.0))[1:]
    assert LinearHistogram.bins(edges[:, None], m)[:, 0].tolist() == list(range(m))
    assert LinearHistogram.bins(below[:, None], m)[:, 0].tolist() == list(range(m - 1))
    widened = LinearHistogram.bins(edges.double()[:, None], m)[:, 0]
    assert widened.tolist() == list(range(m))


def test_a_state_of_exactly_one_is_in_no_bin_and_a_full_histogram_is_less_than_one():
    histogram = LinearHistogram.empty(1, 5, torch.device("cpu"))
    histogram.update(torch.tensor([[1.0], [1.0], [0.0]]))
    assert histogram.counts.tolist() == [[1, 0, 0, 0, 2]]
    assert histogram.integral(1) == 1 / 5
    histogram = LinearHistogram.empty(2, 5, torch.device("cpu"))
    histogram.update(torch.tensor([[0.1], [0.3], [0.6], [0.9]]).expand(4, 2))
    assert histogram.integral(1) == 4 / 5
    assert histogram.integral(2) == 2 / 5


# HandNet: hidden = (a + b, a - b), logits = relu(hidden). With logits (u, v) the gradient of the
# loss is (p - 1/2, 1/2 - p) where p = 1 / (1 + exp(v - u)). At "hidden", a negative output has a
# gradient of 0. M = 5 edges: 0, 1/4, 1/2, 3/4, 1.
#
# x = (2, 1): z = (3, 1), p = 0.8808, z * g = (1.1424, -0.3808), states 0.758, 0.406: bins 3, 1
# x = (1, 2): z = (3, -1), logits (3, 0), p = 0.9526, z * g = (1.3577, 0), 0.795, 0.5: bins 3, 2
# x = (0, 0): z = (0, 0), z * g = (0, 0), states 0.5, 0.5: bins 2, 2 (tied: class 0 is predicted)
# x = (1, -1): z = (0, 2), p = 0.1192, z * g = (0, 0.7616), states 0.5, 0.682: bins 2, 2
HAND = torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 0.0], [1.0, -1.0]])


@pytest.mark.parametrize(
    ("labels", "full_count", "filled"),
    [
        # all right: neuron 1 has counts 0 0 2 2, neuron 2 has 0 1 3 0
        ([0, 0, 0, 1], 1, 4),
        ([0, 0, 0, 1], 2, 2 + 0.5 + 1),
        ([0, 0, 0, 1], 4, 0.5 + 0.5 + 0.25 + 0.75),
        # the last one is wrong: neuron 1 has 0 0 1 2, neuron 2 has 0 1 2 0
        ([0, 0, 0, 0], 2, 0.5 + 1 + 0.5 + 1),
        ([1, 1, 1, 0], 1, 0),
    ],
)
def test_worked_out_by_hand(hand_net, labels, full_count, filled):
    g = coverage_integral(
        hand_net, [(HAND, torch.tensor(labels))], "hidden", IntegralConfig(5, full_count, 1.0)
    )
    assert isinstance(g, float)
    assert g == pytest.approx(filled / 5 / 2, abs=1e-7)


def test_defaults_are_the_authors():
    assert IntegralConfig() == IntegralConfig(n_bins=50, full_count=500, steepness=0.1)
    assert IntegralConfig.from_dict({"M": 51, "O": 5, "sig_alpha": 3}) == IntegralConfig(51, 5, 3.0)
    assert IntegralConfig.from_dict(IntegralConfig(51).to_dict()) == IntegralConfig(51)


def test_batches_and_shards_make_no_difference(hand_net):
    x = torch.randint(-4, 5, (60, 2), generator=torch.Generator().manual_seed(3)).float()
    y = torch.arange(60) % 2
    config = IntegralConfig(51, 3, 0.7)
    whole = count_coverage(hand_net, [(x, y)], "hidden", config)
    for size in (1, 7, 32):
        loader = DataLoader(TensorDataset(x, y), batch_size=size)
        assert coverage_integral(hand_net, loader, "hidden", config) == whole.integral()
    first = count_coverage(hand_net, [(x[:13], y[:13])], "hidden", config)
    first.merge(count_coverage(hand_net, [(x[13:], y[13:])], "hidden", config))
    assert torch.equal(first.histogram.counts, whole.histogram.counts)
    assert first.integral() == whole.integral() and first.n_samples == 60


def test_merging_takes_empty_counts_and_refuses_other_settings():
    probed, label, _ = passed(9)
    rule = counted(probed, label, IntegralConfig())
    empty = CoverageIntegral({"deep": IntegralConfig()})
    empty.merge(rule)
    assert empty.integral() == rule.integral()
    with pytest.raises(NACError, match="cannot merge rules with different layers or settings"):
        rule.merge(counted(probed, label, IntegralConfig(51)))


def test_what_cannot_be_counted_is_reported(small_net, images, labels):
    data = [(images, labels)]
    for message, *arguments in (
        ("expected labels, because only correctly classified", [images]),
        ("yielded no batch", []),
        ("labels must be in 0..3", [(images, labels + 1)]),
        ("has no layer 'layer9'", data, "layer9"),
    ):
        with pytest.raises(NACError, match=message):
            coverage_integral(small_net, *arguments)
    probed, label, right = passed(12)
    probed["deep"].activation[int(np.flatnonzero(right)[0]), 1] = float("nan")
    with pytest.raises(NACError, match=r"layer 'deep': 1 of 12 fitting samples have NaN or Inf"):
        counted(probed, label, IntegralConfig()).integral()
    with pytest.raises(NotFittedError, match="nothing was counted"):
        CoverageIntegral({"a": IntegralConfig()}).integral()
    for wrong in ({"n_bins": 1}, {"full_count": 0}, {"steepness": 0}, {"n_bins": 2.5}):
        with pytest.raises(NACError, match=next(iter(wrong))):
            IntegralConfig(**wrong)


@pytest.mark.parametrize(
    ("make", "size", "expected"),
    [
        (lambda: torchvision.models.resnet18(num_classes=3), 32, "avgpool"),
        (lambda: timm.create_model("resnet10t", num_classes=3), 32, "global_pool"),
        (lambda: timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=32), 32,
         "blocks.11.norm2"),
        (lambda: torchvision.models.VisionTransformer(32, 16, 2, 2, 8, 16, num_classes=3), 32,
         "encoder.layers.encoder_layer_1.ln_2"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 3)), 4, "2"),
    ],
)  # fmt: skip
def test_the_automatic_layer_is_the_papers(make, size, expected):
    torch.manual_seed(0)
    net, x = make().eval(), torch.randn(4, 3, size, size)
    assert deepest_layer(net, x).path == expected
    y = net(x).argmax(1)
    g = coverage_integral(net, [(x, y)], config=IntegralConfig(full_count=1))
    assert g == coverage_integral(net, [(x, y)], expected, IntegralConfig(full_count=1)) > 0


#: Training images at which a ReLU after layer3 has an input of zero up to the rounding of float32:
#: whether its gradient passes depends on the CPU's convolution, and with O* = 1 a bin or two on it.
AT_ZERO = (359, 399, 779, 1183, 2636, 3014, 3517, 4446, 4537, 4772, 4980)


def rounded_once(net, x, layers):
    """Readings of a pass in double precision, rounded to float32 at the end."""
    wide = read(net.double(), x.double(), layers)
    net.float()
    by_layer = {name: Reading(*(t.float() for t in pair)) for name, pair in wide.items()}
    return BatchReadings(wide.logits.float(), by_layer)


@pytest.mark.bench
@pytest.mark.skipif(BENCH_EVERY > 8, reason="takes all training images: in CI and by make test-all")
def test_the_authors_figures(bench, bench_readings):
    """15 settings, three layers, in one pass over all training images."""
    folder, root = bench
    expected = json.loads((folder / "expected_nacme.json").read_text())
    net = minibench.trained(folder)
    layers = {name: find_layer(net, name) for name in ("avgpool", "layer4", "layer3")}
    rules = [CoverageIntegral({e["layer"]: settings(e)}) for e in expected["G"]]
    training = minibench.images(root, "train_cifar10")
    passes = []
    for name, rows in minibench.training_rows(training).items():
        others = bench_readings(name).rows(np.isin(rows, AT_ZERO, invert=True))
        passes += [(part, part.label) for part in others.batches()]
    at_zero = [training[i] for i in AT_ZERO]
    x = torch.stack([image["data"] for image in at_zero])
    passes.append((rounded_once(net, x, layers), torch.tensor([i["label"] for i in at_zero])))
    for probed, label in passes:
        for rule in rules:
            rule.update(probed, label)
    assert {rule.n_samples for rule in rules} == {5000}
    assert {rule.histogram.n_samples for rule in rules} == {expected["correct"]}
    assert len(rules) == 15
    for rule, each in zip(rules, expected["G"]):
        assert rule.integral() == pytest.approx(each["G"], abs=1e-4), each


def settings(entry):
    return IntegralConfig(**{name: entry[name] for name in ("n_bins", "full_count", "steepness")})
