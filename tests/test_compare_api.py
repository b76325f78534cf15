"""`nac_openood.compare` from Python: networks and datasets of any kind, results as tables."""

import csv
import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from compare_toy import SETTINGS, Toy, small_net
from conftest import SmallNet
from PIL import Image
from test_probe import equal, snapshot
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import nac_openood
from nac_openood import LayerConfig, NACConfig, NACError, compare
from nac_openood.benchmark.methods import table
from nac_openood.benchmark.methods.table import METHODS, Method
from nac_openood.benchmark.run.compare import TimeLeft
from nac_openood.benchmark.run.results import Results
from nac_openood.report.comparison import write_page, write_tables
from nac_openood.sources.samples import Samples

CLASSES = 10
TABULAR = NACConfig(layers={"2": LayerConfig(), "0": LayerConfig()}, n_samples=None, sweep={})


def images(n, seed, shift=0.0, labels=True):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, 9, 9, generator=draw) + shift
    return TensorDataset(x, torch.arange(n) % CLASSES) if labels else x


@pytest.fixture
def data():
    return {
        "train": images(60, 1),
        "id_val": images(30, 2),
        "test": images(30, 3),
        "near": {"shifted": images(20, 4, 0.5, labels=False)},
        "far": {"far away": images(20, 5, 3.0, labels=False)},
        "ood_val": images(20, 6, 1.0, labels=False),
    }


def run(net, data, methods=("toy", "nac"), **more):
    rows = [TOY if name == "toy" else name for name in methods]
    options = {"nac_config": SETTINGS, "progress": False, **more}
    return compare(net, **data, methods=rows, **options)


TOY = Method("toy", "Toy", scorer=Toy)


def aurocs(results):
    return {(r.run, r.method): [m["AUROC"] for m in r.metrics.values()] for r in results.rows}


class Pictured(TensorDataset):
    """Images with pictures that the dataset keeps."""

    def __init__(self, plain, mode):
        super().__init__(*plain.tensors)
        self.pictures = [Image.new(mode, (200, 150)) for _ in range(len(self))]

    def picture(self, index):
        return self.pictures[index]


@pytest.mark.parametrize("mode", ["RGB", "I;16", "RGBA"])
def test_pictures_of_the_caller_stay_as_they_are(data, mode):
    data["test"] = Pictured(data["test"], mode)
    results = run(small_net(None), data)
    assert {(each.size, each.mode) for each in data["test"].pictures} == {((200, 150), mode)}
    shown = [e.file for e in results.gallery if e.dataset == "test"]
    for file in shown:
        with Image.open(results.folder / file) as image:
            assert (image.size, image.mode) == ((96, 72), "RGB")
    assert len(shown) == 8


def test_a_picture_that_cannot_be_had_costs_no_results(data):
    data["test"] = Pictured(data["test"], "RGB")
    data["test"].pictures = []
    with pytest.warns(UserWarning, match="sample .* of 'test' has no picture: IndexError"):
        results = run(small_net(None), data)
    assert {e.file for e in results.gallery} == {None}
    assert Results.load(results.folder) == results


def test_a_network_and_datasets_make_results_and_tables(data, tmp_path):
    net = small_net(None).train()
    before = snapshot(net)
    results = run(net, data, ["msp", "knn", "nac"], backend="pytorch-ood")
    assert equal(before, snapshot(net))
    status = {r.method: (r.status, r.error) for r in results.rows}
    assert status["msp"] == status["nac"] == ("ok", None)
    assert status["knn"][0] == "ok" and results.arch == "SmallNet"
    assert [s.name for s in results.sets] == ["test", "shifted", "far away"]
    assert results.runs[0].name == "SmallNet" and 0 <= results.runs[0].accuracy <= 100
    assert {e.file for e in results.gallery} == {None} and not results.surrogates
    lowest = results.scores("SmallNet", "nac", "test").score.argmin()
    assert results.gallery[0].name == str(lowest)
    assert Results.load(results.folder) == results

    table = results.table()
    assert len(table) == 3 * 4  # two sets and two means
    assert all(line["ms_per_image"] > 0 and line["setup_seconds"] >= 0 for line in table)
    line = next(t for t in table if t["method"] == "nac" and t["dataset"] == "far away")
    assert line["role"] == "far" and line["status"] == "ok"
    assert line["AUROC"] == results.value("nac", "far away", "AUROC").mean
    assert {"FPR@95", "FPR@95_IN", "disturbed", "implementation"} <= set(line)
    json.dumps(table)
    written = write_tables(results)
    with written[0].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(table)


class Dicts(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        item = self.data[index]
        x, y = item if isinstance(item, tuple) else (item, -1)
        return {"data": x, "label": int(y), "name": f"sample {index}"}


def shuffled(data):
    return DataLoader(data, batch_size=7, shuffle=True, drop_last=True)


def chosen(data):
    both = torch.utils.data.ConcatDataset([data, data])
    return DataLoader(both, batch_size=7, sampler=SubsetRandomSampler(range(len(data))))


def each(kind, data):
    return {
        name: {n: kind(d) for n, d in value.items()} if isinstance(value, dict) else kind(value)
        for name, value in data.items()
    }


@pytest.mark.parametrize("kind", [list, Dicts, shuffled, chosen])
def test_any_dataset_gives_the_same(data, kind):
    net = small_net(None)
    expected = run(net, data, batch_size=7)
    found = run(net, each(kind, data), batch_size=7)
    assert aurocs(found) == aurocs(expected)
    assert [s.images for s in found.sets] == [30, 20, 20]
    score = [r.scores("SmallNet", "nac", "far away").score for r in (found, expected)]
    np.testing.assert_array_equal(*score)


@pytest.mark.filterwarnings("ignore:the fitting set is uneven")
def test_inputs_by_name_score_as_tensors_do(data):
    def by_name(data):
        return [{"features": s["data"], "labels": s["label"], "name": "row"} for s in Dicts(data)]

    expected, found = (
        run(small_net(None), each_data, ["msp", "knn", "nac"], backend="pytorch-ood")
        for each_data in (data, each(by_name, data))
    )
    assert [(row.status, row.error) for row in found.rows] == [("ok", None)] * 3
    assert aurocs(found) == aurocs(expected)


@pytest.mark.filterwarnings("ignore:the outputs all lie between")
def test_tables_and_signals_have_no_pictures():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))

    def rows(n, seed, shift=0.0):
        draw = torch.Generator().manual_seed(seed)
        return TensorDataset(torch.randn(n, 5, generator=draw) + shift, torch.arange(n) % 3)

    data = {"train": rows(60, 1), "id_val": rows(30, 2), "test": rows(30, 3)}
    data["far"] = {"shifted": rows(30, 4, 4.0)}
    with pytest.raises(NACError, match="only be made from square images.*OOD validation data"):
        run(net, data, ["nac"], nac_config=TABULAR)
    results = run(net, data, ["msp", "knn", "nac"], nac_config=TABULAR, search=False,
                  backend="pytorch-ood")  # fmt: skip
    assert [(r.status, r.error) for r in results.rows] == [("ok", None)] * 3
    assert {e.file for e in results.gallery} == {None} and results.arch == "Sequential"
    assert write_page(results).stat().st_size > 1000


def test_several_networks(data):
    torch.manual_seed(1)
    nets = {"first": small_net(None), "second": SmallNet(CLASSES).eval()}
    results = run(nets, data)
    assert [r.name for r in results.runs] == ["first", "second"]
    each = [r.metrics["far away"]["AUROC"] for r in results.methods()["nac"]]
    assert each[0] != each[1]
    assert results.value("nac", "far away", "AUROC") == (np.mean(each), np.std(each, ddof=1))
    listed = run(list(nets.values()), data)
    assert [r.name for r in listed.runs] == ["SmallNet-0", "SmallNet-1"]
    assert list(aurocs(listed).values()) == list(aurocs(results).values())


class Board:
    """What a `SummaryWriter` and a run of wandb have in common with us."""

    def __init__(self):
        self.scalars, self.logged = {}, []

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def log(self, values):
        self.logged.append(values)


def test_loggers_get_each_result_as_soon_as_it_is_there(data, tmp_path):
    nets, board, said = {"a": small_net(None), "b": small_net(None)}, Board(), []
    write = nac_openood.log_to_tensorboard(board)

    def both(row):
        said.append((row.run, row.method))
        write(row)
        nac_openood.log_to_wandb(board)(row)

    results = run(nets, data, on_result=both, out=tmp_path, say=said.append)
    (nac,) = [n for n, each in enumerate(said) if str(each).startswith("[2/2")][:1]
    assert said.index(("a", "toy")) < nac < said.index(("a", "nac"))
    rows = [each for each in said if isinstance(each, tuple)]
    assert rows == [("a", "toy"), ("a", "nac"), ("b", "toy"), ("b", "nac")]
    for row in results.rows:
        step = ["a", "b"].index(row.run)
        auroc = row.metrics["far away"]["AUROC"]
        assert board.scalars[f"{row.method}/far away/AUROC", step] == auroc
        assert board.scalars[f"{row.method}/ms_per_image", step] == row.ms_per_image
        assert {f"{row.run}/{row.method}/far away/AUROC": auroc}.items() <= {
            at: value for each in board.logged for at, value in each.items()
        }.items()

    def broken(row):
        raise ConnectionError("no server")

    with pytest.warns(UserWarning, match="`on_result` failed for .*: ConnectionError: no server"):
        again = run(nets, data, on_result=broken, out=tmp_path)
    assert aurocs(again) == aurocs(results)


def test_the_time_left_is_that_of_earlier_networks(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    left = TimeLeft(["msp", "nac"] * 3)
    seen = []
    for seconds in (10, 3600, 0.01):
        now[0] += seconds
        left.finished()
        seen.append(str(left))
    # msp takes 10 s, and nac at first as long as msp
    assert seen == [", about 00:50 left", ", about 2:00:20 left", ", about 2:00:10 left"]
    assert str(TimeLeft(["msp"])) == ""


def test_the_scores_of_all_methods_in_one_file(data, tmp_path):
    results = run(small_net(None), data, out=tmp_path)
    write_tables(results)
    with np.load(tmp_path / "scores.npz") as stored:
        assert len(stored) == 3 * (2 + 2)  # sets, methods, prediction and label
        for name in ("test", "shifted", "far away"):
            for method in ("toy", "nac"):
                expected = results.scores("SmallNet", method, name)
                np.testing.assert_array_equal(stored[f"SmallNet/{method}/{name}"], expected.score)
            np.testing.assert_array_equal(stored[f"SmallNet/label/{name}"], expected.label)


def test_checkpoints_are_loaded_one_after_the_other(data, tmp_path):
    for name in ("s0", "s1"):
        (tmp_path / name).mkdir()
        torch.save(small_net(None).state_dict(), tmp_path / name / "best.ckpt")
    loaded = []

    def load(path):
        loaded.append(path)
        net = SmallNet(CLASSES)
        net.load_state_dict(torch.load(path, weights_only=True))
        return net.eval()

    results = run(tmp_path, data, load=load, n_classes=CLASSES)
    assert [r.name for r in results.runs] == ["s0", "s1"]
    assert loaded == [str(tmp_path / name / "best.ckpt") for name in ("s0", "s1")]
    assert results.runs[0].checkpoint == loaded[0]
    with pytest.raises(NACError, match="pass `load`"):
        run(str(tmp_path), data)


def test_methods_by_name_from_outside_the_package(data, monkeypatch):
    monkeypatch.setattr(table, "METHODS", dict(METHODS))
    nac_openood.register_method("mine", Toy, title="Mine")
    offered = {
        "theirs": SimpleNamespace(load=lambda: Toy),
        "bad": SimpleNamespace(load=lambda: 1 / 0),
    }
    monkeypatch.setattr(
        "nac_openood.core.rule.entry_points",
        lambda group: offered if group == "nac_openood.methods" else {},
    )
    results = run(small_net(None), data, ["mine", "theirs"])
    assert [(r.title, r.status) for r in results.rows] == [("Mine", "ok"), ("theirs", "ok")]
    for call, message in (
        (lambda: run(small_net(None), data, ["bad"]), "method 'bad' cannot be loaded"),
        (lambda: run(small_net(None), data, ["x"]), "nac_plus, mine"),
        (lambda: nac_openood.register_method("knn", Toy), "there is a method 'knn' already"),
        (lambda: nac_openood.register_method("A b", Toy), "`name` must be a lowercase identifier"),
    ):
        with pytest.raises(NACError, match=message):
            call()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["mps"]}, "unknown method"),
        ({"near": images(5, 1)}, "`near` must map names to datasets"),
        ({"near": {}, "far": {}}, "pass `near`, `far` or both"),
        ({"near": {"a\udcff": images(5, 1)}}, "name of a dataset must be one that a file can have"),
        ({"near": {"a/b": images(5, 1)}}, "name of a dataset must be one that a file can have"),
        ({"near": {"test": images(5, 1)}}, "and none of test, train.*got test"),
        ({"test": []}, "test: the dataset is empty"),
        ({"test": iter([])}, "test: expected a map-style dataset"),
        (
            {"test": DataLoader(images(4, 1), batch_sampler=[[0], [1]])},
            "a batch_sampler cannot be read in order",
        ),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"workers": -1}, "`workers` must be at least 0"),
        ({"against": "paper"}, "the paper has no results for in-distribution data"),
        ({"against": "leaderboard"}, "the leaderboard has no results for in-distribution data"),
        ({"against": "board"}, "`against` must be 'paper', 'leaderboard' or None"),
        ({"backend": "mine", "methods": ["msp"]}, "`backend` must be one of auto, openood"),
        ({"networks": []}, "at least one network"),
        ({"networks": {"a/b": SmallNet()}}, "name of a network must be one that a file can have"),
        ({"train": images(60, 1, labels=False)}, "train has no labels"),
    ],
)
def test_wrong_arguments_are_explained(data, change, message):
    options = {"networks": small_net(None), **data, "methods": [TOY], "progress": False, **change}
    net = options.pop("networks")
    with pytest.raises(NACError, match=message):
        compare(net, **options)


# ---- labels


@pytest.mark.parametrize("label", [-1, CLASSES])
@pytest.mark.parametrize("role", ["train", "id_val", "test"])
def test_labels_are_checked_before_anything_runs(data, role, label, tmp_path):
    data[role].tensors[1][5] = label
    # the second does not tell its labels without being read
    for broken in (data, {**data, role: Dicts(data[role])}):
        with pytest.raises(NACError, match=rf"^{role}: labels must be in 0..9.*found {label}"):
            run(small_net(None), broken, ["toy"], out=tmp_path)
    assert not (tmp_path / "runs").exists()


class Moved(Dicts):
    """Tells labels that it does not yield, as torchvision's datasets with a target transform."""

    def __init__(self, data):
        super().__init__(data)
        self.targets = [100 + int(y) for _, y in data]


def test_the_labels_are_those_that_samples_have(data):
    samples = Samples("train", Moved(data["train"]), progress=False)
    assert samples.labels.tolist() == data["train"].tensors[1].tolist()
    assert Samples("ood", data["ood_val"], progress=False).labels is None


# ---- results of an earlier call


class Counting(nn.Module):
    """A network that counts what it sees."""

    def __init__(self):
        super().__init__()
        self.net = small_net(None)
        self.tally = SimpleNamespace(seen=0)  # shared by the replicas that passes run on

    def forward(self, x):
        self.tally.seen += len(x)
        return self.net(x)


NESTED = dataclasses.replace(
    SETTINGS, layers={f"net.{n}": c for n, c in SETTINGS.layers.items()}, sweep={}
)


def again(data, out, **more):
    net = more.pop("net", None) or Counting()
    results = run({"s0": net}, data, out=out, nac_config=NESTED, n_classes=CLASSES, **more)
    assert [r.status for r in results.rows] == ["ok", "ok"], [r.error for r in results.rows]
    return results, net.tally.seen


def test_equal_data_and_network_are_not_run_again(data, tmp_path):
    first, seen = again(data, tmp_path)
    assert seen > 100
    second, seen = again(data, tmp_path)
    assert seen == 0 and second == first
    copies = {**data, "train": Dicts(data["train"])}
    assert again(copies, tmp_path)[1] > 0  # dicts have more in them than tuples


@pytest.mark.parametrize("role", ["train", "id_val", "test", "ood_val", "near"])
def test_other_samples_are_run_again(data, tmp_path, role):
    again(data, tmp_path)
    changed = data["near"]["shifted"] if role == "near" else data[role]
    x = changed.tensors[0] if isinstance(changed, TensorDataset) else changed
    x[3, 1, 4, 4] += 0.25  # one pixel of one sample
    found, seen = again(data, tmp_path)
    assert seen > 0 and aurocs(found) == aurocs(again(data, tmp_path / "fresh")[0])


def test_a_forward_that_changed_is_run_again(data, tmp_path):
    """Equal weights are not enough: the code decides, too."""
    before, _ = again(data, tmp_path)

    class Louder(Counting):
        def forward(self, x):
            return super().forward(2 * x)

    Louder.__name__ = Louder.__qualname__ = Counting.__qualname__  # as after an edit
    after, seen = again(data, tmp_path, net=Louder())
    assert seen > 0 and aurocs(after) != aurocs(before)


class Noisy(Dataset):
    """Yields something else every time."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.from_numpy(np.random.default_rng().normal(size=(3, 9, 9))).float()


def test_what_cannot_be_compared_is_never_reused(data, tmp_path):
    for _ in range(2):
        assert again({**data, "far": {"far away": Noisy()}}, tmp_path)[1] > 0


class Identified(Dicts):
    reads = 0

    def __init__(self, data, name):
        super().__init__(data)
        self.name, self.labels = name, data.tensors[1].numpy()

    def identity(self):
        return self.name

    def __getitem__(self, index):
        Identified.reads += 1
        return super().__getitem__(index)


def test_a_dataset_may_tell_its_identity(data, tmp_path):
    again({**data, "train": Identified(data["train"], "mine")}, tmp_path)
    Identified.reads = 0
    assert again({**data, "train": Identified(data["train"], "mine")}, tmp_path)[1] == 0
    assert Identified.reads == 2  # the first and the last, whose labels are checked
    assert again({**data, "train": Identified(data["train"], "other")}, tmp_path)[1] > 0


def test_without_a_folder_nothing_is_hashed(data, monkeypatch):
    monkeypatch.setattr("nac_openood.sources.samples._hash", lambda *_: pytest.fail("hashed"))
    results = run(small_net(None), data, ["toy"])
    assert results.rows[0].status == "ok" and results.folder.is_dir()
