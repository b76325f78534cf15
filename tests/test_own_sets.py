"""The user's data: folders of classes, CSV lists, datasets from code."""

import csv

import pytest
import torch
from own_project import COLORS, SIZES
from torchvision.transforms import ToTensor

from nac_openood.errors import NACError
from nac_openood.sources.readers import labelled_samples
from nac_openood.sources.sets import classes_of, needs_transform, own_sets

CLASSES = tuple(COLORS)
TRANSFORM = ToTensor()


@pytest.fixture
def birds(own_project):
    return own_project / "birds"


def write_list(path, rows, header=("path", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_folders(birds):
    sets = own_sets(
        birds / "train", val=birds / "val", test=birds / "test", transform=TRANSFORM,
        near=[f"odd={birds / 'val'}"], far=[f"stripes={birds.parent / 'stripes'}"],
    )  # fmt: skip
    assert (sets.id_name, sets.n_classes, classes_of(sets.train)) == ("birds", 4, CLASSES)
    sizes = [len(s) for s in (sets.train, sets.id_val, sets.test, sets.near["odd"])]
    assert sizes == [4 * SIZES[part] for part in ("train", "val", "test", "val")]
    assert sets.ood_val is None and set(sets.near["odd"].labels) == {-1}
    assert sets.train.labels.tolist() == sorted(sets.train.labels.tolist())
    alone = own_sets(birds / "train", transform=TRANSFORM, needs_test=False)
    assert alone.test is None and len(alone.train) + len(alone.id_val) == len(sets.train)
    split = own_sets(birds / "train", transform=TRANSFORM, ood_val=f"o={birds / 'val'}")
    names = [set(part.names) for part in (split.train, split.id_val, split.test)]
    assert [len(part) for part in names] == [154, 48, 38] and len(set.union(*names)) == 240
    assert len(split.ood_val) == 120


def test_a_network_that_knows_its_classes_decides_their_order(birds):
    known = ("wren", *reversed(CLASSES))
    sets = own_sets(birds / "train", transform=TRANSFORM, classes=known)
    assert sets.n_classes == 5 and classes_of(sets.train) == known
    image = sets.train.names.index("parrot/0.png")
    assert known[sets.train.labels[image]] == "parrot"
    others = own_sets(birds / "train", transform=TRANSFORM, classes=("tench", "goldfish"))
    assert classes_of(others.train) == CLASSES


def test_lists_of_names_and_of_numbers(birds, tmp_path):
    (tmp_path / "images").symlink_to(birds / "train")
    entries = [(f"images/{c}/{n}.png", c) for n in range(5) for c in reversed(CLASSES)]
    named = labelled_samples(write_list(tmp_path / "a.csv", entries), TRANSFORM)
    assert named.classes == CLASSES and named[0]["label"] == 3
    assert named[0]["data"].shape == (3, 36, 36)
    numbers = [(str(birds / "train" / c / "0.png"), n) for n, c in enumerate(CLASSES)]
    numbered = labelled_samples(write_list(tmp_path / "b.csv", numbers), TRANSFORM, CLASSES)
    assert numbered.classes == CLASSES and numbered.labels.tolist() == [0, 1, 2, 3]
    sets = own_sets(
        tmp_path / "a.csv", val=tmp_path / "b.csv", test=birds / "test", transform=TRANSFORM,
        far=[f"b={tmp_path / 'b.csv'}"],
    )  # fmt: skip
    assert sets.id_name == "a" and len(sets.id_val) == 4 and set(sets.far["b"].labels) == {-1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a.png", "wren")], "has samples of class wren, not among the 4 known"),
        ([("a.png", "7")], "has samples of class 7, not among the 4 known"),
        ([("a.png", "-1")], "class -1, not among the 4 known classes: .*, numbered 0 to 3"),
        ([("a.png", "0"), ("b.png", "")], "line 3: path or label is empty"),
        ([("a.png", "0", "1")], "line 2: expected 2 entries"),
        ([], "is empty"),
    ],
)
def test_wrong_lists(tmp_path, rows, message):
    with pytest.raises(NACError, match=message):
        labelled_samples(write_list(tmp_path / "a.csv", rows), TRANSFORM, CLASSES)


def test_wrong_sets(birds, tmp_path):
    one = write_list(tmp_path / "one.csv", [("a.png", "wren"), ("b.png", "wren")])
    two = write_list(tmp_path / "two.csv", [("a.png", "wren"), ("b.png", "owl")])
    (tmp_path / "empty.csv").write_text("")
    other = write_list(tmp_path / "other.csv", [("a.png", "0")], ("file", "label"))
    twice = write_list(tmp_path / "twice.csv", [("a.png", "b.png", "0")], ("path", "path", "label"))
    for train, options, message in (
        ("nowhere.csv", {}, "nowhere.csv cannot be read: No such file"),
        (other, {}, "a first line with path and label, got file, label"),
        (twice, {}, "a first line with path and label, got path, path, label"),
        (tmp_path / "empty.csv", {}, "a first line with path and label, got nothing"),
        (one, {}, "has one class only, wren: expected"),
        (two, {"val": birds / "val"}, "has samples of class bluejay, cardinal, goldfinch, parrot"),
        (birds / "train", {"near": [f"a={birds}"], "far": [f"a={birds}"]}, "a different name for"),
    ):
        with pytest.raises(NACError, match=message):
            own_sets(train, transform=TRANSFORM, **options)


CODE = """
import torch
from torch.utils.data import TensorDataset

def table():
    return TensorDataset(torch.randn(50, 3), torch.arange(50) % 5)

def everything():
    return {"train": table(), "val": table(), "test": table(), "far": {"noise": table()}}

def unknown():
    return {"train": table(), "tests": table()}

def pictures(transform):
    return [(transform(None), 0), (transform(None), 1)]

def halves(samples):
    return torch.stack([x for x, _ in samples]) / 2, torch.tensor([y for _, y in samples])

def loaded():
    return torch.utils.data.DataLoader(table(), 7, shuffle=True, collate_fn=halves)

def unlabelled():
    return [torch.randn(3) for _ in range(20)]
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "data.py").write_text(CODE)
    return f"{tmp_path / 'data.py'}:"


def test_datasets_from_user_code(code):
    sets = own_sets(f"{code}everything", transform=None)
    found = sets.id_name, sets.n_classes, len(sets.test), list(sets.far)
    assert found == ("everything", 5, 50, ["noise"])
    split = own_sets(f"{code}table", far=[f"t={code}table"], transform=None)
    assert [len(s) for s in (split.train, split.id_val, split.test)] == [32, 10, 8]
    assert not needs_transform(f"{code}table", [f"t={code}table"], "none", None)
    assert needs_transform(f"{code}table", ["t=folder"])
    both = f"{code}pictures"
    both_sets = own_sets(both, val=both, transform=lambda image: torch.ones(2), needs_test=False)
    assert both_sets.n_classes == 2


def test_a_loader_from_user_code_is_split_and_keeps_its_collate_fn(code):
    sets = own_sets(f"{code}loaded", transform=None)
    assert [len(s.dataset) for s in (sets.train, sets.id_val, sets.test)] == [32, 10, 8]
    x, _ = next(iter(sets.id_val))
    assert torch.equal(x, torch.stack([sets.id_val.dataset[i][0] for i in range(7)]) / 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown", r"unknown set of images \['tests'\]; expected one of \['far', 'near'"),
        ("pictures", r"must take nothing, but its parameters are \(transform\)"),
        ("unlabelled", "the training data has no labels"),
        ("nothing", "has no 'nothing'. It has TensorDataset, table"),
    ],
)
def test_wrong_code(code, name, message):
    with pytest.raises(NACError, match=message):
        own_sets(f"{code}{name}", transform=None)
