"""Methods that are not in the paper's tables: by hand, and against OpenOOD's own."""

from __future__ import annotations

import minibench
import numpy as np
import pytest
import torch
from openood_tiny import need_openood
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

from nac_openood.benchmark.methods import OPENOOD, OWN, PYTORCH_OOD
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.openood import OpenOODBatches
from nac_openood.benchmark.methods.scorer import MethodInputs
from nac_openood.benchmark.methods.table import LATER_METHODS, METHODS, chosen_methods
from nac_openood.benchmark.run.network import FeatureBatches, Features
from nac_openood.core.metrics import auroc
from nac_openood.errors import NACError
from nac_openood.network.head import Head
from nac_openood.plugin.source import openood_ready
from nac_openood.sources.checkpoints import Checkpoint


def loader(feature, label, batch_size=100):
    kept = Features(feature, label, label)
    return FeatureBatches(lambda: kept, len(feature), batch_size)


def scored(method, head, sets, *, backend=OWN, search=True, batch_size=100):
    """Hyperparameters, and scores by name of all sets; sets are (features, labels)."""
    row = {**METHODS, **LATER_METHODS}[method] if isinstance(method, str) else method
    row = row._replace(backends=(backend,))
    scorer = scorers([row], backend if backend != OWN else PYTORCH_OOD)(row, Checkpoint("a", "b"))
    loaders = [loader(*sets[name]) for name in ("train", "id_val", "ood_val")]
    inputs = MethodInputs(
        Head(head), "cifar10", head.out_features, *loaders[:2], loaders[2] if search else None,
        progress=False,
    )  # fmt: skip
    found = scorer.setup(inputs)
    scores = {name: scorer.score(loader(*each, batch_size)).score for name, each in sets.items()}
    return dict(found.hyperparameters), scores


@pytest.fixture(scope="module")
def toy():
    """A head, and features around a center for each class; OOD features have none."""
    torch.manual_seed(0)
    centers = 3 * torch.rand(5, 24)
    head = nn.Linear(24, 5)
    head.weight.data, head.bias.data = centers - centers.mean(dim=0), torch.zeros(5)

    def draw(n, shift=0.0):
        label = torch.arange(n) % 5
        return centers[label] * (1 - shift) + torch.rand(n, 24) * (1 + 3 * shift), label

    sets = {name: draw(n) for name, n in (("train", 400), ("id_val", 100), ("test", 150))}
    return head, {**sets, "ood_val": draw(100, 0.6), "ood": draw(150, 0.8)}


ON_FEATURES = [name for name, row in LATER_METHODS.items() if row.needs == "features"]


@pytest.mark.parametrize("method", ON_FEATURES)
def test_every_method_tells_ood_data_whatever_the_batches(toy, method):
    head, sets = toy
    point, scores = scored(method, head, sets)
    row = LATER_METHODS[method]
    assert set(point) == set(row.sweep or row.defaults)
    # histograms of 24 features tell little
    assert auroc(scores["test"], scores["ood"]) > (0.6 if method == "weiper" else 0.8)
    other = scored(method, head, sets, batch_size=7)[1]
    np.testing.assert_allclose(other["test"], scores["test"], rtol=1e-4, atol=1e-5)


def test_formulas_by_hand(toy):
    head, sets = toy
    (train, label), (x, _) = ([each.double() for each in sets[name]] for name in ("train", "test"))
    weight, mean = head.weight.detach().double(), train.mean(dim=0)
    logits = head(sets["test"][0]).detach().double()
    best = logits.argmax(dim=1)
    scores = {m: scored(m, head, sets, search=False)[1]["test"] for m in ("fdbd", "nci", "mds_pp")}
    for i in range(len(x)):
        others = [c for c in range(5) if c != best[i]]
        gap, apart = logits[i, best[i]] - logits[i], (weight[best[i]] - weight).norm(dim=1)
        distances = [gap[c] / apart[c] for c in others]
        expected = float(sum(distances) / (x[i] - mean).norm())
        assert scores["fdbd"][i] == pytest.approx(expected, rel=1e-4)
        projected = float(weight[best[i]] @ (x[i] - mean) / (x[i] - mean).norm())
        expected = projected + 1e-4 * float(x[i].sum())
        assert scores["nci"][i] == pytest.approx(expected, rel=1e-4)
    unit, query = F.normalize(train, dim=1).numpy(), F.normalize(x, dim=1).numpy()
    rows = [unit[label == c] for c in range(5)]
    spread = np.cov(np.concatenate([r - r.mean(axis=0) for r in rows]).T, bias=True)
    gaps = [query - r.mean(axis=0) for r in rows]
    squared = [np.einsum("id,de,ie->i", gap, np.linalg.inv(spread), gap) for gap in gaps]
    np.testing.assert_allclose(scores["mds_pp"], -np.min(squared, axis=0), rtol=1e-3)


def test_grood_by_autograd(toy):
    head, sets = toy
    scores = scored("grood", head, sets)[1]["ood"]
    train, label = sets["train"]
    means = torch.stack([train[label == c].mean(dim=0) for c in range(5)])
    prototype = sets["ood_val"][0].mean(dim=0).requires_grad_()

    def gradient(x):
        distances = (torch.cat([means, prototype[None]]) - x).norm(dim=1)
        loss = F.cross_entropy(-distances, head(x).argmax())
        return torch.autograd.grad(loss, prototype)[0]

    bank = torch.stack([gradient(x) for x, y in zip(train, label) if head(x).argmax() == y])
    for x, score in list(zip(sets["ood"][0], scores))[:20]:
        nearest = (bank - gradient(x)).norm(dim=1).min()
        assert score == pytest.approx(-nearest.item(), rel=1e-3, abs=1e-5)
    alone = scored("grood", head, sets, search=False)[1]
    assert auroc(alone["test"], alone["ood"]) > 0.8


def test_weiper_by_hand(toy):
    head, sets = toy
    fixed = {"n_repeats": 3, "n_bins": 12, "smoothing": (3, 4)}
    row = LATER_METHODS["weiper"]
    row = row._replace(defaults={**row.defaults, **fixed})
    scores = scored(row, head, sets, search=False)[1]["test"]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = F.normalize(torch.randn(3, 5, 24), dim=2)
    size = 1.8 * head.weight.norm(dim=1, keepdim=True)
    heads = [head.weight + size * each for each in noise]

    def histogram(values, low, high, width=None):
        inside = values[(values >= low) & (values < high)]
        found = np.histogram(inside, 12, (low, high))[0] / len(values)
        if width is None:
            return found
        before = (width - 1) // 2
        found = np.pad(found, (before, width - 1 - before), mode="edge")
        return np.convolve(found, np.ones(width) / width, mode="valid")

    def spaces(x):
        logits = torch.stack([weight @ x for weight in heads])
        return (x.numpy(), logits.detach().numpy().ravel()), logits.softmax(dim=1).amax(dim=1)

    train = [[part[i] for part, _ in map(spaces, sets["train"][0])] for i in (0, 1)]
    for x, score in zip(sets["test"][0][:20], scores):
        (parts, sure), total = spaces(x), []
        for values, known, width, eps in zip(parts, train, (3, 4), (0.01, 0.025)):
            ends = np.min(known), np.max(known)
            p = np.mean([histogram(each, *ends) for each in known], axis=0) + eps
            q = histogram(values, *ends, width) + eps
            p, q = p / p.sum(), q / q.sum()
            total.append(np.sum(p * np.log(p / q) + q * np.log(q / p)))
        expected = 0.1 * sure.mean().item() - total[0] - 2.5 * total[1]
        assert score == pytest.approx(expected, rel=1e-2)


def test_selections():
    names = {word: [row.name for row in chosen_methods([word])] for word in ("paper", "fast")}
    assert len(names["paper"]) == 22 and "nac" in names["paper"] and "fdbd" not in names["paper"]
    assert {"fdbd", "msp", "nac_plus"} <= set(names["fast"])
    assert not {"odin", "iodin", "adascale_a"} & set(names["fast"])
    assert chosen_methods(["all"]) == [*METHODS.values(), *LATER_METHODS.values()]
    assert [row.name for row in chosen_methods(["fdbd", "paper"])] == ["fdbd", *names["paper"]]
    assert chosen_methods("msp,fdbd") == chosen_methods(["MSP", "fdbd", "msp"])
    with pytest.raises(NACError, match="at least one method"):
        chosen_methods([])


# ---- against OpenOOD, on a real network's features


@pytest.fixture(scope="module")
def real(bench):
    """The trained network's head, and features of 1,000 training and about 200 other images."""
    need_openood()
    folder, root = bench
    net = minibench.trained(folder)
    head, net.fc = net.fc, nn.Identity()
    lists = {"train": minibench.FITTING, "id_val": "val_cifar10", "ood_val": "val_tin"}
    lists |= {name: f"test_{name}" for name in ("cifar10", "cifar100", "texture", "mnist")}
    sets = {}
    for name, listed in lists.items():
        found = minibench.images(root, listed)
        some = range(0, len(found), 1 if name == "train" else max(1, len(found) // 200))
        batches = DataLoader(Subset(found, some), batch_size=100)
        with torch.no_grad():
            read = [(net(batch["data"]), batch["label"]) for batch in batches]
        sets[name] = tuple(map(torch.cat, zip(*read)))
    return head, sets


def unit(sets):
    return {name: (F.normalize(feature, dim=1), label) for name, (feature, label) in sets.items()}


def same_aurocs(ours, theirs):
    for name in ("cifar100", "texture", "mnist"):
        pairs = ((each["cifar10"], each[name]) for each in (ours, theirs))
        first, second = (100 * float(auroc(*pair)) for pair in pairs)
        assert first == pytest.approx(second, abs=0.01), name


@pytest.mark.openood
@pytest.mark.bench
@pytest.mark.filterwarnings("ignore")  # OpenOOD's own
@pytest.mark.parametrize(
    ("method", "reference"),
    [
        *((name, name) for name in ON_FEATURES if OPENOOD in LATER_METHODS[name].backends),
        ("mds_pp", "mds"),  # of features of unit length
        ("rmds_pp", "rmds"),
    ],
)
def test_openoods_numbers(real, method, reference):
    head, sets = real
    mine, ours = scored(method, head, sets)
    expected = scored(reference, head, unit(sets) if reference != method else sets, backend=OPENOOD)
    if expected[0]:
        assert list(mine.values()) == list(expected[0].values())
    same_aurocs(ours, expected[1])


@pytest.mark.openood
@pytest.mark.bench
@pytest.mark.filterwarnings("ignore")  # OpenOOD's own
@pytest.mark.parametrize(
    ("method", "args"), [("nnguide", {"K": 50, "alpha": 1}), ("residual", {"dim": 256})]
)
def test_openoods_numbers_with_other_data(real, method, args):
    """OpenOOD's, with a bank of all training data, and fitted on training data."""
    head, sets = real
    row = LATER_METHODS[method]
    row = row._replace(defaults=args, sweep={n: [args[n]] for n in row.sweep})
    ours = scored(row, head, sets)[1]
    with openood_ready(on_cpu=True):
        from openood import postprocessors
        from openood.utils import Config

        kinds = {"nnguide": "NNGuidePostprocessor", "residual": "ResidualPostprocessor"}
        config = {"name": method, "postprocessor_args": args, "postprocessor_sweep": {}}
        theirs = getattr(postprocessors, kinds[method])(Config(postprocessor=config))
        found = {name: OpenOODBatches(loader(*each)) for name, each in sets.items()}
        train = found["train"]
        train.batch_size, train.dataset = 100, range(len(sets["train"][0]))
        net = Head(head)
        theirs.setup(net, {"train": train, "val": train, "test": found["id_val"]}, None)
        expected = {
            name: torch.cat([theirs.postprocess(net, x)[1] for x in feature.split(100)]).numpy()
            for name, (feature, _) in sets.items()
        }
    same_aurocs(ours, expected)
