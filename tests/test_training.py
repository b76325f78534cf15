"""Training on several source domains: the loop, ERM, CORAL, SelfReg, with and without entropy."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from nac_openood.errors import NACError
from nac_openood.training import (
    CORAL,
    ERM,
    NACEntropy,
    Outputs,
    SaveCheckpoints,
    SelfReg,
    moment_distance,
    train,
    within_classes,
)

ALGORITHMS = {"erm": ERM, "coral": CORAL, "selfreg": SelfReg}


def domain(shift, n=60, classes=3):
    """Three clusters of points in four dimensions, moved by `shift`."""
    draw = torch.Generator().manual_seed(n + int(10 * shift))
    y = torch.arange(n) % classes
    x = torch.randn(n, 4, generator=draw) * 0.5 + 3 * F.one_hot(y, 4) + shift
    return TensorDataset(x, y)


def loaders():
    return [
        DataLoader(
            domain(shift), 16, True, drop_last=True, generator=torch.Generator().manual_seed(0)
        )
        for shift in (0.0, 0.5)
    ]


def small_net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(True), nn.Linear(8, 3))


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def accuracy(net, data):
    x, y = data.tensors
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("lam", "maximize"), [(None, True), (0.01, True), (0.01, False)])
def test_networks_learn(name, lam, maximize):
    net = small_net()
    entropy = None if lam is None else NACEntropy(net, "0", n_bins=10, window=64)
    log = train(
        net, loaders(), algorithm=ALGORITHMS[name](), entropy=entropy, lam=lam or 0,
        maximize=maximize, steps=80, every=40, rate=0.02, progress=False,
    )  # fmt: skip
    assert [row.step for row in log] == [40, 80]
    assert log[1].loss < log[0].loss
    assert all((row.entropy is None) == (lam is None) for row in log)
    assert accuracy(net, domain(0.25)) > 0.9  # a domain between the two


def test_erm_is_the_plain_loop():
    net, other = small_net(), small_net()
    train(net, loaders(), steps=9, rate=0.02, weight_decay=0.1, every=5, seed=3, progress=False)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.02, weight_decay=0.1)
    first, second = ([batch for _ in range(3) for batch in one] for one in loaders())
    for (x1, y1), (x2, y2) in zip(first, second):
        optimizer.zero_grad()
        F.cross_entropy(other(torch.cat([x1, x2])), torch.cat([y1, y2])).backward()
        optimizer.step()
    assert len(first) == 9
    assert torch.equal(weights(net), weights(other))


def test_entropy_is_subtracted_or_added():
    found = {}
    for maximize in (True, False):
        net = small_net()
        entropy = NACEntropy(net, "0", n_bins=10, window=64, form="surprisal")
        options = {"entropy": entropy, "maximize": maximize, "lam": 0.3}
        log = train(net, loaders(), steps=60, every=20, rate=0.02, progress=False, **options)
        found[maximize] = log[-1].entropy
    assert found[True] > found[False] + 1
    # and with weight 0 it changes nothing
    net, other = small_net(), small_net()
    options = {"steps": 5, "progress": False}
    train(net, loaders(), entropy=NACEntropy(net, "0"), lam=0, **options)
    train(other, loaders(), **options)
    assert torch.equal(weights(net), weights(other))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equal_seeds_give_equal_weights_and_the_random_state_is_kept(name):
    before = torch.get_rng_state()
    found = []
    for seed in (1, 1, 2):
        net = small_net()
        data = [DataLoader(domain(s), 16, shuffle=True) for s in (0.0, 0.5)]
        options = {"steps": 6, "rate": 0.01, "seed": seed, "progress": False}
        train(net, data, algorithm=ALGORITHMS[name](), **options)
        found.append(weights(net))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(before, torch.get_rng_state())


def test_checkpoints_are_saved_and_load_again(tmp_path):
    from nac_openood.sources.checkpoints import load_checkpoint

    net, save, modes = small_net(), SaveCheckpoints(tmp_path / "run"), []

    def keep(step, trained):
        modes.append(trained.training)
        save(step, trained)

    wrapped = nn.DataParallel(net)
    train(wrapped, loaders(), steps=7, every=3, rate=0.01, on_checkpoint=keep, progress=False)
    assert modes == [False] * 3
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["step_00003.pt", "step_00006.pt", "step_00007.pt"]
    assert list(save.paths) == [3, 6, 7] and not net.training
    last = load_checkpoint(small_net(), save.paths[7])
    assert torch.equal(weights(last), weights(net))
    assert not torch.equal(weights(load_checkpoint(small_net(), save.paths[3])), weights(net))


class Enough:
    """Has seen enough after four steps, as a `CoverageMonitor` may."""

    should_stop = False

    def __call__(self, step, net):
        self.should_stop = step >= 4


def test_training_stops_early():
    log = train(small_net(), loaders(), steps=400, every=2, on_checkpoint=Enough(), progress=False)
    assert [row.step for row in log] == [2, 4]


def test_no_hook_is_left_behind():
    net = small_net()
    options = {"algorithm": CORAL(), "steps": 2, "every": 1, "progress": False}
    train(net, loaders(), **options)

    def crash(step, net):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(net, loaders(), on_checkpoint=crash, **options)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_algorithms_are_given_the_input_of_the_head():
    net, seen = small_net(), []

    class Spy(CORAL):
        def forward(self, outputs):
            seen.append(outputs)
            return super().forward(outputs)

    train(net, loaders(), algorithm=Spy(), steps=1, rate=0.0, progress=False)
    with torch.no_grad():
        assert torch.allclose(net[3](seen[0].features), seen[0].logits)
    assert seen[0].domains.tolist() == [0] * 16 + [1] * 16


def test_coral_compares_means_and_covariances():
    draw = np.random.RandomState(0)
    first, second = draw.randn(20, 3), draw.randn(30, 3) * 2 + 1
    expected = np.square(first.mean(0) - second.mean(0)).mean()
    expected += np.square(np.cov(first.T) - np.cov(second.T)).mean()
    found = moment_distance(torch.from_numpy(first), torch.from_numpy(second))
    assert found.item() == pytest.approx(expected)
    features = torch.from_numpy(np.concatenate([first, second, first]))
    domains = torch.tensor([0] * 20 + [1] * 30 + [2] * 20)
    outputs = Outputs(torch.zeros(70, 2), torch.arange(70) % 2, domains, features)
    # three pairs of domains, of which one is equal; zeros as logits cost log 2
    assert CORAL(weight=3)(outputs).item() == pytest.approx(math.log(2) + 3 * expected * 2 / 3)
    alone = Outputs(torch.zeros(20, 2), torch.arange(20) % 2, domains[:20], features[:20])
    assert CORAL()(alone).item() == pytest.approx(math.log(2))


def test_samples_are_exchanged_within_their_class():
    labels = torch.tensor([0, 2, 2, 0, 0, 1, 2])
    torch.manual_seed(0)
    rows = within_classes(labels)
    assert sorted(rows.tolist()) == list(range(7))
    assert torch.equal(labels[rows], labels)
    assert len({tuple(within_classes(labels).tolist()) for _ in range(50)}) > 10


def test_selfreg_is_domainbeds_loss():
    """Both losses from the same random numbers."""
    torch.manual_seed(0)
    features, logits = torch.randn(12, 5), torch.randn(12, 3)
    labels = torch.arange(12) % 3
    algorithm = SelfReg()
    algorithm.start(5)
    torch.manual_seed(7)
    found = algorithm(Outputs(logits, labels, torch.zeros(12), features))
    torch.manual_seed(7)
    mix = float(torch.distributions.Beta(0.5, 0.5).sample())
    other, another = within_classes(labels), within_classes(labels)
    projected = algorithm.project(features)

    def distance(values, others):
        return (values - others).pow(2).mean().item()

    def mixed(values):
        return mix * values[other] + (1 - mix) * values[another]

    loss = F.cross_entropy(logits, labels).item()
    same = distance(logits, logits[other]) + 0.3 * distance(features, projected[other])
    both = distance(logits, mixed(logits)) + 0.3 * distance(features, mixed(projected))
    assert loss > 1  # so the regularization is scaled by 1
    assert found.item() == pytest.approx(loss + mix * same + (1 - mix) * both, rel=1e-5)


def nan_loaders():
    data = domain(0.0)
    data.tensors[0][:] = math.nan
    return [DataLoader(data, 16)]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "expected a loader for each source domain"),
        ([[]], {}, "the loader of domain 0 yields no batches"),
        ([[torch.zeros(5, 4)]], {}, "of domain 0, got samples alone"),
        ([[(torch.zeros(2, 4), torch.tensor([0, 3]))]], {}, r"labels must be in 0\.\.2"),
        (nan_loaders(), {}, "the loss is nan at step 1"),
        (loaders(), {"lam": -1}, "lam must be finite and not negative"),
        (loaders(), {"steps": 0}, "steps must be at least 1"),
        (loaders(), {"entropy": NACEntropy(small_net(), "0")}, "no batch has gone through layer"),
    ],
)
def test_bad_input_is_refused(data, options, message):
    with pytest.raises(NACError, match=message):
        train(small_net(), data, progress=False, **{"steps": 3, **options})


def test_the_projection_of_selfreg_is_trained():
    found = []
    for steps, rate in ((1, 0.0), (5, 0.1)):
        algorithm = SelfReg()
        train(small_net(), loaders(), algorithm=algorithm, steps=steps, rate=rate, progress=False)
        found.append(torch.cat([p.detach().flatten() for p in algorithm.parameters()]))
    assert len(found[0]) and not torch.equal(*found)
