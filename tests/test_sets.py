"""Image folders of one's own, image sets by role, and which checkpoints are meant."""

import os

import pytest
from openood_tiny import write_benchmark
from PIL import Image

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import Checkpoint, find_checkpoints
from nac_openood.sources.image_paths import expand
from nac_openood.sources.imglist import BENCHMARKS, listed_sets
from nac_openood.sources.readers import unlabelled_samples
from nac_openood.sources.samples import bad_images, bad_images_text, common_files

CIFAR10 = BENCHMARKS["cifar10"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_benchmark(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(("b.png", "a.JPG", "deep/c.webp")):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(folder / name, format="PNG")
    (folder / "notes.txt").write_text("no image")
    (folder / "folder.png").mkdir()
    return folder


# ---- folders


def test_a_folder_gives_its_images_in_order_without_labels(photos):
    images = unlabelled_samples(photos, CIFAR10.transform())
    assert images.names == ["a.JPG", "b.png", "deep/c.webp"]
    assert images.labels.tolist() == [-1, -1, -1]
    assert images[0]["data"].shape == (3, 32, 32) and images[0]["label"] == -1
    assert images.picture(1).size == (40, 30)
    assert bad_images(images, progress=False) == {}


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(NACError, match="there is no folder .*nowhere: expected a folder of images"):
        unlabelled_samples(tmp_path / "nowhere", CIFAR10.transform())
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(NACError, match="holds no images: expected files such as .png or .jpg"):
        unlabelled_samples(tmp_path, CIFAR10.transform())


def test_links_are_followed_but_not_in_circles(photos, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "linked").symlink_to(photos)
    (photos / "back").symlink_to(tmp_path / "set")
    (photos / "deep" / "around").symlink_to(photos)
    (tmp_path / "set" / "gone.png").symlink_to("nowhere")
    (tmp_path / "set" / "itself.png").symlink_to("itself.png")
    os.mkfifo(tmp_path / "set" / "pipe.png")
    images = unlabelled_samples(tmp_path / "set", CIFAR10.transform())
    inside = [f"linked/{name}" for name in ("a.JPG", "b.png", "deep/c.webp")]
    assert images.names == ["gone.png", "itself.png", *inside]
    found = bad_images(images, progress=False)
    assert found[0] == "missing" and "symbolic links" in found[1] and len(found) == 2
    assert common_files(images, unlabelled_samples(photos, CIFAR10.transform())) == 5
    with pytest.raises(NACError, match=r"gone.png cannot be read \(missing\)"):
        images.picture(0)
    assert expand([str(tmp_path / "set")], texts=True) == [str(tmp_path / "set/linked/notes.txt")]


def test_bad_images_are_found_with_a_reason(photos):
    content = (photos / "b.png").read_bytes()
    (photos / "b.png").write_bytes(content[: len(content) // 2])
    images = unlabelled_samples(photos, CIFAR10.transform())
    (photos / "a.JPG").unlink()
    found = bad_images(images, progress=False)
    assert found[0] == "missing" and list(found) == [0, 1] and found[1]
    assert "2 of 3 images are missing or unreadable" in bad_images_text(images, found)
    assert "b.png" in bad_images_text(images, found)
    rest = images.without(list(found))
    assert rest.names == ["deep/c.webp"] and bad_images(rest, progress=False) == {}
    with pytest.raises(NACError, match=r"a.JPG cannot be read \(missing\).*check `data_root`"):
        images[0]
    with pytest.raises(NACError, match="b.png cannot be read"):
        images[1]


def test_many_bad_images_are_counted_not_listed(photos):
    images = unlabelled_samples(photos, CIFAR10.transform())
    bad = dict.fromkeys(range(3), "missing")
    assert "more" not in bad_images_text(images, bad)
    images.names = [f"{i}.png" for i in range(9)]
    assert bad_images_text(images, dict.fromkeys(range(9), "missing")).endswith("and 4 more")


def test_an_absurdly_large_image_is_bad_not_a_crash(photos, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # a bomb is twice that and more
    found = bad_images(unlabelled_samples(photos, CIFAR10.transform()), progress=False)
    assert len(found) == 3 and "decompression bomb" in found[0]


def test_other_images_have_another_identity(photos):
    before = unlabelled_samples(photos, CIFAR10.transform()).identity()
    assert unlabelled_samples(photos, CIFAR10.transform()).identity() == before
    Image.new("RGB", (41, 30)).save(photos / "b.png")
    assert unlabelled_samples(photos, CIFAR10.transform()).identity() != before


# ---- sets


def test_the_benchmarks_sets(data):
    sets = listed_sets(CIFAR10, data)
    assert list(sets.near) == ["cifar100", "tin"] and sets.shifted == {}
    assert list(sets.far) == ["mnist", "svhn", "texture", "places365"]
    assert len(sets.train) == 100 and len(sets.ood_val) == 10 and sets.std == CIFAR10.std
    full = listed_sets(CIFAR10, data, full_spectrum=True)
    assert full.roles()["cifar10c"] == "csid"
    assert list(full.scored()) == list(full.roles())
    assert list(full.scored())[:2] == ["test", "cifar10c"]


def test_sets_of_ones_own(data, photos):
    sets = listed_sets(
        CIFAR10, data, near=[f"mine={photos}"], far=["mnist"], ood_val=f"other={photos}"
    )
    assert {n: len(v) for n, v in sets.near.items()} == {"mine": 3} and list(sets.far) == ["mnist"]
    assert len(sets.ood_val) == 3
    assert listed_sets(CIFAR10, data, near=[]).near == {}
    assert listed_sets(CIFAR10, data, ood_val="none").ood_val is None


@pytest.mark.parametrize("entry", ["=folder", "name=", "a/b=folder", ".hidden=folder", ""])
def test_entries_that_are_no_names(data, entry):
    with pytest.raises(NACError, match="expected NAME or NAME=FOLDER for an OOD set"):
        listed_sets(CIFAR10, data, far=[entry])


@pytest.mark.parametrize("near", [["tin", "tin"], ["mnist"], ["test"], ["train"], ["farood"]])
def test_each_set_has_a_name_of_its_own(data, near):
    with pytest.raises(NACError, match="a different name for each OOD set|names are reserved"):
        listed_sets(CIFAR10, data, near=near)


def test_lists_that_are_not_there(data):
    with pytest.raises(NACError, match="there is no list .*test_nothing.txt"):
        listed_sets(CIFAR10, data, far=["nothing"])
    with pytest.raises(NACError, match="there is no list .*val_nothing.txt"):
        listed_sets(CIFAR10, data, ood_val="nothing")


# ---- checkpoints


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_folder_stands_for_its_runs_in_order(tmp_path):
    for name in ("s10", "s2", "s0"):
        touch(tmp_path / name / "best.ckpt")
    found = find_checkpoints([tmp_path])
    assert [c.name for c in found] == ["s0", "s2", "s10"]
    assert found[0].path == str(tmp_path / "s0" / "best.ckpt")


def test_files_and_folders_with_names(tmp_path):
    touch(tmp_path / "run" / "best.ckpt")
    one = touch(tmp_path / "my net (1).pth")
    found = find_checkpoints([tmp_path / "run", one, "torchvision:IMAGENET1K_V1"])
    assert [c.name for c in found] == ["run", "my_net__1_", "imagenet1k_v1"]
    assert found[2] == Checkpoint("imagenet1k_v1", "torchvision:IMAGENET1K_V1")
    hidden = touch(tmp_path / "..ckpt")
    assert find_checkpoints([hidden])[0].name not in ("", ".", "..")


def test_equal_names_are_told_apart(tmp_path):
    for folder in ("a", "b"):
        touch(tmp_path / folder / "s0" / "best.ckpt")
    assert [c.name for c in find_checkpoints([tmp_path / "a", tmp_path / "b"])] == ["0-s0", "1-s0"]


def test_checkpoints_that_are_not_there(tmp_path):
    with pytest.raises(NACError, match="there is no checkpoint .*gone.ckpt"):
        find_checkpoints([tmp_path / "gone.ckpt"])
    with pytest.raises(NACError, match=r"holds neither s\*/best.ckpt nor best.ckpt"):
        find_checkpoints([tmp_path])
    touch(tmp_path / "last.ckpt")
    with pytest.raises(NACError, match="Name one of its files: last.ckpt"):
        find_checkpoints([tmp_path])
    with pytest.raises(NACError, match="expected at least one checkpoint, got none"):
        find_checkpoints([])
