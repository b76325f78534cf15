"""Tables: an MLP on scikit-learn's digits, read as 64 columns of numbers."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nac_openood
from nac_openood import LayerConfig, NACDetector
from nac_openood.core.metrics import auroc
from nac_openood.detector.config import NACConfig

CLASSES = 7
#: NAC's settings were chosen by looking at these sets, so its numbers here say what it can do, not
#: how well it does. Its default steepness, 100, saturates: new digits then score as old ones do.
SETTINGS = {name: LayerConfig(n_bins=50, full_count=5, steepness=1.0) for name in ("act1", "act2")}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act1 = nn.Linear(64, 64), nn.ReLU()
        self.second, self.act2 = nn.Linear(64, 32), nn.ReLU()
        self.head = nn.Linear(32, CLASSES)

    def forward(self, features):
        return self.head(self.act2(self.second(self.act1(self.first(features)))))


@pytest.fixture(scope="module")
def tables():
    """Training, validation and test rows of the digits 0 to 6; new digits; shifted rows."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    inside = torch.from_numpy(np.random.RandomState(0).permutation(int((y < CLASSES).sum())))
    x_in, y_in = x[y < CLASSES][inside], y[y < CLASSES][inside]
    parts = {"train": slice(0, 700), "val": slice(700, 950), "test": slice(950, None)}
    found = {name: TensorDataset(x_in[rows], y_in[rows]) for name, rows in parts.items()}
    noise = torch.randn(x_in[950:].shape, generator=torch.Generator().manual_seed(0))
    for name, rows in {"new": x[y >= CLASSES], "shifted": x_in[950:] + 0.4 * noise}.items():
        found[name] = TensorDataset(rows, torch.full((len(rows),), -1))
    return found


@pytest.fixture(scope="module")
def net(tables):
    torch.manual_seed(0)
    net = Mlp()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(25):
        for x, y in DataLoader(tables["train"], batch_size=64, shuffle=True):
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


@pytest.mark.parametrize(
    ("rule", "layers", "least"),
    [
        ("nac", SETTINGS, {"new": 0.85, "shifted": 0.75}),
        ("nac", "auto", {"new": 0.0, "shifted": 0.6}),
        ("nac_plus", "auto", {"new": 0.9, "shifted": 0.95}),
    ],
)
def test_other_rows_score_lower(net, tables, rule, layers, least):
    loaders = {name: DataLoader(table, batch_size=100) for name, table in tables.items()}
    detector = NACDetector(net, layers, rule=rule).fit(loaders["train"])
    detector.calibrate(loaders["val"])
    scores = {name: detector.score_loader(loaders[name]) for name in ("test", "new", "shifted")}
    assert (scores["test"].prediction == scores["test"].label).mean() > 0.95
    for name, limit in least.items():
        assert float(auroc(scores["test"].score, scores[name].score)) > limit, name


@pytest.mark.filterwarnings("ignore:the fitting set is uneven")
@pytest.mark.parametrize("columns", ["features", "columns"])
def test_a_comparison_of_dict_inputs_equals_that_of_tensors(net, tables, tmp_path, columns):
    def compared(wrap, folder):
        sets = {name: wrap(table) for name, table in tables.items()}
        results = nac_openood.compare(
            net, train=sets["train"], id_val=sets["val"], test=sets["test"],
            far={"shifted": sets["shifted"]}, near={"new": sets["new"]},
            methods=["msp", "ebo", "knn", "nac", "nac_plus"], search=False, backend="pytorch-ood",
            nac_config=NACConfig(SETTINGS, n_samples=None), out=tmp_path / folder, progress=False,
        )  # fmt: skip
        assert [(row.status, row.error) for row in results.rows] == [("ok", None)] * 5
        return {(r.method, n): m["AUROC"] for r in results.rows for n, m in r.metrics.items()}

    def by_name(table):
        return [{columns: x, "labels": int(y), "name": "a row"} for x, y in table]

    plain = compared(lambda table: table, "plain")
    named = compared(by_name, "named")
    assert named == pytest.approx(plain)
    assert min(plain[method, "shifted"] for method in ("nac", "nac_plus")) > 70
