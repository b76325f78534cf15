"""The user's image folders, image sets by role, and how checkpoints are found."""

import numpy as np
import pytest
from openood_tiny import write_benchmark
from PIL import Image

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import Checkpoint, find_checkpoints
from nac_openood.sources.fitted import expand
from nac_openood.sources.readers import unlabelled_samples
from nac_openood.sources.samples import common_files, readable_images
from nac_openood.sources.sets import BENCHMARKS, listed_sets

CIFAR10 = BENCHMARKS["cifar10"]
NAMES = ["a.JPG", "b.png", "deep/c.webp"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_benchmark(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(folder / name, format="PNG")
    (folder / "notes.txt").write_text("no image")
    (folder / "folder.png").mkdir()
    return folder


def read(folder):
    return unlabelled_samples(folder, CIFAR10.transform())


def bad_images(images):
    rest, message = readable_images(images, "x", progress=False)
    return rest.names, message


# ---- folders


def test_a_folder_gives_its_images_in_order_without_labels(photos):
    images = read(photos)
    assert images.names == NAMES and images.labels.tolist() == [-1, -1, -1]
    assert images[0]["data"].shape == (3, 32, 32) and images[0]["label"] == -1
    assert images.picture(1).size == (40, 30) and bad_images(images) == (NAMES, "")


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(NACError, match="there is no folder .*nowhere: expected"):
        read(tmp_path / "nowhere")
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(NACError, match="holds no images: expected files such as .png or .jpg"):
        read(tmp_path)


def test_links_are_followed_but_not_in_circles(photos, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "linked").symlink_to(photos)
    (photos / "back").symlink_to(folder)
    (photos / "deep" / "around").symlink_to(photos)
    (folder / "gone.png").symlink_to("nowhere")
    (folder / "itself.png").symlink_to("itself.png")
    images = read(folder)
    assert images.names == ["gone.png", "itself.png", *(f"linked/{name}" for name in NAMES)]
    rest, message = bad_images(images)
    assert rest == images.names[2:]
    assert "gone.png (No such file or directory)" in message and "symbolic links" in message
    assert common_files(images, read(photos)) == 5
    assert expand([str(folder)], texts=True) == [str(folder / "linked/notes.txt")]


def test_bad_images_are_found_with_a_reason(photos):
    content = (photos / "b.png").read_bytes()
    (photos / "b.png").write_bytes(content[: len(content) // 2])
    images = read(photos)
    (photos / "a.JPG").unlink()
    rest, message = bad_images(images)
    assert rest == NAMES[2:] and "a.JPG (No such file" in message and "b.png (" in message
    assert message.startswith("2 of 3 images are missing or unreadable: ")
    with pytest.raises(NACError, match=r"a.JPG cannot be read \(No such file.*check `data_root`"):
        images[0]
    images.items, images.labels = [f"{i}.png" for i in range(9)], np.zeros(9)
    assert bad_images(images)[1].endswith("and 4 more")


def test_an_absurdly_large_image_is_bad_not_a_crash(photos, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # a bomb is twice that and more
    rest, message = bad_images(read(photos))
    assert rest == [] and "decompression bomb" in message


def test_other_images_have_another_identity(photos):
    before = read(photos).identity()
    assert read(photos).identity() == before
    Image.new("RGB", (41, 30)).save(photos / "b.png")
    assert read(photos).identity() != before


# ---- sets


def test_the_benchmarks_sets(data):
    sets = listed_sets(CIFAR10, data)
    assert list(sets.near) == ["cifar100", "tin"] and sets.shifted == {}
    assert list(sets.far) == ["mnist", "svhn", "texture", "places365"]
    assert len(sets.train) == 100 and len(sets.ood_val) == 10 and sets.std == CIFAR10.settings.std
    full = listed_sets(CIFAR10, data, full_spectrum=True)
    assert full.roles()["cifar10c"] == "csid"
    assert list(full.scored()) == list(full.roles())
    assert list(full.scored())[:2] == ["test", "cifar10c"]


def test_sets_of_the_users_own(data, photos):
    options = {"near": [f"mine={photos}"], "far": ["mnist"], "ood_val": f"other={photos}"}
    sets = listed_sets(CIFAR10, data, **options)
    assert {n: len(v) for n, v in sets.near.items()} == {"mine": 3} and list(sets.far) == ["mnist"]
    assert len(sets.ood_val) == 3
    assert listed_sets(CIFAR10, data, near=[]).near == {}
    assert listed_sets(CIFAR10, data, ood_val="none").ood_val is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"far": [entry]}, "the name of a dataset must be one that a file can have")
          for entry in ("=folder", "a/b=folder", ".hidden=folder", "a\nb=folder")),
        *(({"near": names}, "a different name for each OOD set")
          for names in (["tin", "tin"], ["mnist"])),
        *(({"near": [name]}, "and none of test, train") for name in ("test", "train", "farood")),
        ({"far": ["nothing"]}, "there is no list .*test_nothing.txt"),
        ({"ood_val": "nothing"}, "there is no list .*val_nothing.txt"),
    ],
)  # fmt: skip
def test_sets_that_are_refused(data, options, message):
    with pytest.raises(NACError, match=message):
        listed_sets(CIFAR10, data, **options)


# ---- checkpoints


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_folders_stand_for_their_runs_in_order_and_equal_names_are_numbered(tmp_path):
    for name in ("a/s10", "a/s2", "a/s0", "b/s0"):
        touch(tmp_path / name / "best.ckpt")
    found = find_checkpoints([tmp_path / "a"])
    assert [c.name for c in found] == ["s0", "s2", "s10"]
    assert found[0].path == str(tmp_path / "a" / "s0" / "best.ckpt")
    both = find_checkpoints([tmp_path / "a", tmp_path / "b"])
    assert [c.name for c in both] == ["0-s0", "1-s2", "2-s10", "3-s0"]


def test_files_and_folders_with_names(tmp_path):
    touch(tmp_path / "run" / "best.ckpt")
    one = touch(tmp_path / "my net (1).pth")
    found = find_checkpoints([tmp_path / "run", one, "torchvision:IMAGENET1K_V1"])
    assert [c.name for c in found] == ["run", "my_net__1_", "imagenet1k_v1"]
    assert found[2] == Checkpoint("imagenet1k_v1", "torchvision:IMAGENET1K_V1")
    with pytest.raises(NACError, match="expected each checkpoint once, got .* more than once"):
        find_checkpoints([one, tmp_path / "run" / ".." / one.name])
    hidden = touch(tmp_path / "..ckpt")
    assert find_checkpoints([hidden])[0].name not in ("", ".", "..")


def test_checkpoints_that_are_not_there(tmp_path):
    with pytest.raises(NACError, match="there is no checkpoint .*gone.ckpt"):
        find_checkpoints([tmp_path / "gone.ckpt"])
    touch(tmp_path / "last.ckpt")
    with pytest.raises(NACError, match=r"neither s\*/best.ckpt nor best.ckpt.*files: last.ckpt"):
        find_checkpoints([tmp_path])
