"""Data of one's own: folders of classes, CSV lists, datasets of one's own code."""

from __future__ import annotations

import csv
import os

import pytest
import torch
from own_place import COLORS, SIZES
from torchvision.transforms import ToTensor

from nac_openood.errors import NACError
from nac_openood.sources.readers import labelled_samples
from nac_openood.sources.sets import classes_of, needs_transform, own_sets

CLASSES = tuple(COLORS)


@pytest.fixture
def birds(own_place):
    return own_place / "birds"


def write_list(path, rows, header=("path", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_folders(birds):
    sets = own_sets(
        birds / "train", val=birds / "val", test=birds / "test", transform=ToTensor(),
        near=[f"odd={birds / 'val'}"], far=[f"stripes={birds.parent / 'stripes'}"],
    )  # fmt: skip
    assert (sets.id_name, sets.n_classes, classes_of(sets.train)) == ("birds", 4, CLASSES)
    sizes = [len(s) for s in (sets.train, sets.id_val, sets.test, sets.near["odd"])]
    assert sizes == [4 * SIZES[part] for part in ("train", "val", "test", "val")]
    assert sets.ood_val is None and set(sets.near["odd"].labels) == {-1}
    assert sets.train.labels.tolist() == sorted(sets.train.labels.tolist())


def test_a_network_that_knows_its_classes_decides_their_order(birds):
    known = ("wren", *reversed(CLASSES))
    sets = own_sets(birds / "train", transform=ToTensor(), classes=known)
    assert sets.n_classes == 5 and classes_of(sets.train) == known
    image = sets.train.names.index("parrot/0.png")
    assert known[sets.train.labels[image]] == "parrot"
    others = own_sets(birds / "train", transform=ToTensor(), classes=("tench", "goldfish"))
    assert classes_of(others.train) == CLASSES


def test_without_test_data(birds):
    sets = own_sets(birds / "train", transform=ToTensor(), needs_test=False)
    assert sets.test is None and len(sets.train) + len(sets.id_val) == 240


def test_lists_of_names_and_of_numbers(birds, tmp_path):
    entries = [
        (os.path.relpath(birds / "train" / name / f"{n}.png", tmp_path), name)
        for n in range(5)
        for name in reversed(CLASSES)
    ]
    named = labelled_samples(write_list(tmp_path / "a.csv", entries), ToTensor())
    assert named.classes == CLASSES and named[0]["label"] == 3
    assert named[0]["data"].shape == (3, 36, 36)
    numbers = [(str(birds / "train" / name / "0.png"), CLASSES.index(name)) for name in CLASSES]
    numbered = labelled_samples(write_list(tmp_path / "b.csv", numbers), ToTensor(), CLASSES)
    assert numbered.classes == CLASSES and numbered.labels.tolist() == [0, 1, 2, 3]
    sets = own_sets(
        tmp_path / "a.csv", val=tmp_path / "b.csv", test=birds / "test", transform=ToTensor(),
        far=[f"b={tmp_path / 'b.csv'}"],
    )  # fmt: skip
    assert sets.id_name == "a" and len(sets.id_val) == 4 and set(sets.far["b"].labels) == {-1}


@pytest.mark.parametrize(
    ("rows", "header", "told"),
    [
        (
            [("a.png", "wren")],
            ("path", "label"),
            "has samples of class wren, which is none of the 4",
        ),
        ([("a.png", "7")], ("path", "label"), "label 7 is no class; there are 4 classes"),
        ([("a.png", "-1")], ("path", "label"), "label -1 is no class"),
        ([("a.png", "0")], ("file", "label"), "a first line with path and label, got file, label"),
        ([("a.png", "0"), ("b.png", "")], ("path", "label"), "line 3: path or label is empty"),
        ([], ("path", "label"), "is empty"),
    ],
)
def test_wrong_lists(tmp_path, rows, header, told):
    path = write_list(tmp_path / "a.csv", rows, header)
    with pytest.raises(NACError, match=told):
        labelled_samples(path, ToTensor(), CLASSES)


def test_wrong_folders(birds, tmp_path):
    with pytest.raises(NACError, match=r"there is no list nowhere.csv"):
        own_sets("nowhere.csv", transform=ToTensor())
    one = write_list(tmp_path / "one.csv", [("a.png", "wren"), ("b.png", "wren")])
    with pytest.raises(NACError, match="has one class only: expected at least two"):
        own_sets(one, transform=ToTensor())
    two = write_list(tmp_path / "two.csv", [("a.png", "wren"), ("b.png", "owl")])
    with pytest.raises(NACError, match="has samples of class bluejay, cardinal, goldfinch, parrot"):
        own_sets(two, val=birds / "val", transform=ToTensor())
    with pytest.raises(NACError, match="expected a different name for each OOD set"):
        own_sets(birds / "train", near=[f"a={birds}"], far=[f"a={birds}"], transform=ToTensor())


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


def test_datasets_of_ones_own_code(tmp_path):
    (tmp_path / "data.py").write_text(CODE)
    code = f"{tmp_path / 'data.py'}:"
    sets = own_sets(f"{code}everything", transform=None)
    assert (sets.id_name, sets.n_classes, len(sets.test), list(sets.far)) == (
        "everything", 5, 50, ["noise"],
    )  # fmt: skip
    split = own_sets(f"{code}table", far=[f"t={code}table"], transform=None)
    assert [len(s) for s in (split.train, split.id_val, split.test)] == [32, 10, 8]
    assert not needs_transform(f"{code}table", far=[f"t={code}table"], ood_val="none", near=None)
    assert needs_transform(f"{code}table", far=["t=folder"])
    given = own_sets(
        f"{code}pictures", val=f"{code}pictures", transform=lambda image: torch.ones(2),
        needs_test=False,
    )  # fmt: skip
    assert given.n_classes == 2


def test_a_loader_of_ones_own_code_is_split_and_keeps_its_collate_fn(tmp_path):
    (tmp_path / "data.py").write_text(CODE)
    sets = own_sets(f"{tmp_path / 'data.py'}:loaded", transform=None)
    assert (sets.n_classes, [len(s.dataset) for s in (sets.train, sets.id_val, sets.test)]) == (
        5, [32, 10, 8],
    )  # fmt: skip
    x, _ = next(iter(sets.id_val))
    assert torch.equal(x, torch.stack([sets.id_val.dataset[i][0] for i in range(7)]) / 2)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("unknown", r"unknown set of images \['tests'\]; expected one of \['far', 'near'"),
        ("pictures", r"must take nothing, but its parameters are \(transform\)"),
        ("unlabelled", "the training data has no labels"),
        ("nothing", "has no 'nothing'. It has TensorDataset, table"),
    ],
)
def test_wrong_code(tmp_path, name, told):
    (tmp_path / "data.py").write_text(CODE)
    with pytest.raises(NACError, match=told):
        own_sets(f"{tmp_path / 'data.py'}:{name}", transform=None)
