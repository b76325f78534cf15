"""Toy networks with numbers that can be worked out by hand; data that all tests share."""

import gc
import json
import os
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# no deadline: a busy machine is not a failure; derandomize: the same examples every time
settings.register_profile("nac", deadline=None, derandomize=True)
settings.load_profile("nac")
# nor may examples depend on which of our modules were imported before, whose constants it collects
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants

# Python looks for garbage after every 700 new objects, which takes a sixth of the time of tests
# that draw, trace or train; imports leave none
gc.set_threshold(20_000, 20, 50)
gc.disable()


#: Files that take long start first, so that no test process is left with one at the end.
LONG = (
    *("ray_data", "bench", "plugin", "demo", "integral", "export", "launch"),
    *("baselines", "compat", "distributed", "compare", "report", "notebook", "fuzz", "fit_score"),
    *("search_cli", "interrupted_writes", "compare_cli", "pytorch_ood", "threads"),
    *("docs", "report_page"),
)
#: Files that use what others have read, so that no test process waits for it.
LAST = ("plus_bench",)


def pytest_collection_modifyitems(items):
    order = {f"test_{name}.py": place for place, name in enumerate(LONG, -len(LONG))}
    order.update({f"test_{name}.py": place for place, name in enumerate(LAST, 1)})
    items.sort(key=lambda item: order.get(item.path.name, 0))


def pytest_collection_finish():
    """What has been imported stays: later collections of garbage need not look through it."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # or else libraries complain at exit of objects that were not freed


#: One test image of how many of the miniature benchmark: `make test` takes few, CI more of them.
BENCH_EVERY = int(os.environ.get("NAC_BENCH_EVERY", "1"))


def bench_folder():
    beside = Path(__file__).parents[2] / "shared" / "bench"
    folder = Path(os.environ.get("NAC_BENCH") or beside)
    return folder if (folder / "expected.json").is_file() else None


@pytest.fixture(scope="session")
def shared(tmp_path_factory, request):
    """Makes a folder that all processes of this test run share, filled by the first to need it."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base  # of pytest-xdist

    def folder(name, fill):
        path = root / f"shared-{name}"
        with FileLock(f"{path}.lock"):
            if not path.is_dir():
                unfinished = Path(f"{path}.unfinished")
                unfinished.mkdir(exist_ok=True)
                fill(unfinished)
                unfinished.rename(path)
        return path

    return folder


@pytest.fixture(scope="session")
def few_readings(shared, embedded_cache):
    """Readings for analyses: `few_sets` and three layers whose settings are searched."""
    from analysis_data import prepared, small_net

    net = small_net(embedded_cache)
    return prepared(net, shared("few", lambda out: prepared(net, out)))


@pytest.fixture(scope="session")
def even_readings(shared, embedded_cache):
    """Readings for analyses: `even_sets` and four layers with fixed settings."""
    from analysis_data import FOUR_LAYERS, even_sets, prepared, small_net

    net, options = small_net(embedded_cache), {"sets": even_sets(), "config": FOUR_LAYERS}
    return prepared(net, shared("even", lambda out: prepared(net, out, **options)), **options)


@pytest.fixture(scope="session")
def bench(shared):
    """The miniature CIFAR-10 benchmark: (its folder, its unpacked data root)."""
    folder = bench_folder()
    if folder is None:
        pytest.skip("the miniature benchmark is not here: set NAC_BENCH to its folder")

    def unpack(root):
        with tarfile.open(folder / "cifar10-mini.tar") as archive:
            safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(root, **safely)
        for listed in (root / "benchmark_imglist" / "cifar10").glob("test_*.txt"):
            listed.write_text("".join(listed.read_text().splitlines(True)[::BENCH_EVERY]))

    return folder, shared("bench", unpack)


@pytest.fixture(scope="session")
def authors(bench):
    """The authors' results for the test images that the lists have: see `BENCH_EVERY`."""
    expected = json.loads((bench[0] / "expected.json").read_text())
    if BENCH_EVERY > 1:
        del expected["accuracy"], expected["metrics"]  # of all images
        expected["scores"] = {n: s[::BENCH_EVERY] for n, s in expected["scores"].items()}
    return expected


@pytest.fixture(scope="session")
def bench_readings(bench, shared):
    """The readings of a list of the miniature benchmark, by its name; read once per test run."""
    import minibench

    from nac_openood.detector.readings import Readings

    def readings(name):
        fill = partial(minibench.read_list, *bench, name)
        return Readings.load(shared(f"bench_{name}", fill) / minibench.READINGS)

    return readings


@pytest.fixture(scope="session")
def embedded_cache(shared):
    """A cache with the embedded benchmark's ResNet, trained once per test run."""
    from nac_openood.demo.trained import trained

    def train(cache):
        trained("resnet_embedded", cache=cache)

    return shared("embedded_cache", train)


@pytest.fixture(scope="session")
def own_project(shared):
    """A folder with a network, weights and images of a user; see `own_project.fill`."""
    from own_project import fill

    return shared("own_project", fill)


@pytest.fixture(scope="session")
def judge():
    """A small detector behind the service."""
    from service_toy import toy_judge

    return toy_judge()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium."""
    from pages import chromium

    driver = chromium(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def drawn_once():
    """Figures with the same words and size are drawn once, for many pages that hardly differ."""
    from nac_openood.report import figures

    real, kept = figures._drawn, {}

    def drawn(picture, *look, **more):
        figures.check_matplotlib()
        at = (picture.title, picture.alt, picture.size, look, *more.items())
        if at not in kept:
            kept[at] = real(picture, *look, **more)
        return kept[at]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_drawn", drawn)
        yield


@pytest.fixture
def one_thread():
    """Rounding depends on the number of threads that an operation is spread over."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise(n, seed=0, size=(3, 9, 9), scale=1.0, batch_size=32):
    """A loader of random inputs with the labels 0, 1, 2, 3, 0, ..."""
    x = torch.randn(n, *size, generator=torch.Generator().manual_seed(seed)) * scale
    return DataLoader(TensorDataset(x, torch.arange(n) % 4), batch_size)


def percent(inside, outside):
    """The AUROC in percent, by scikit-learn."""
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    return 100 * roc_auc_score(truth, np.concatenate([inside, outside]))


def same_rule(one, other):
    """Whether two fitted rules have the same numbers, to the bit."""
    first, second = one.tensors(), other.tensors()
    equal = (torch.equal(first[name].cpu(), second[name].cpu()) for name in first)
    return first.keys() == second.keys() and all(equal)


def same_fit(one, other):
    """Whether two detectors have the same rule, of as many samples, and the same threshold."""
    fits = [(each.fit_summary_, each.threshold_) for each in (one, other)]
    return same_rule(one.rule_, other.rule_) and fits[0] == fits[1]


class HandNet(nn.Module):
    """Two inputs, two hidden neurons, two classes; integer weights.

    hidden = [[1, 1], [1, -1]] x, relu (in place), logits = identity of hidden.
    """

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(2, 2, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.hidden.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
            self.head.weight.copy_(torch.eye(2))

    def forward(self, x):
        return self.head(self.relu(self.hidden(x)))


class SmallNet(nn.Module):
    """A convolutional network with BatchNorm, dropout and the ResNet's module names."""

    def __init__(self, n_classes=4):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(True))
        self.layer2 = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(True))
        self.layer3 = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.layer4 = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(8, 10, 3, padding=1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(10, n_classes)

    def forward(self, x):
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.dropout(self.avgpool(x).flatten(1)))


@pytest.fixture
def hand_net():
    return HandNet()


@pytest.fixture
def small_net():
    torch.manual_seed(0)
    net = SmallNet()
    with torch.no_grad():  # statistics that are not the identity
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2.0)
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.2)
    return net.eval()


@pytest.fixture
def images():
    return torch.randn(24, 3, 9, 9, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def labels():
    return torch.arange(24) % 4
