"""Domains as image folders, and DomainBed's splits."""

import numpy as np
import pytest
from PIL import Image

from nac_openood.errors import NACError
from nac_openood.sources.readers import (
    domain_classes,
    domain_folders,
    domainbed_transform,
    read_domain,
    split_indices,
    split_seed,
)
from nac_openood.sources.samples import Samples


def write(root, domain, label, count=2, shade=0):
    folder = root / domain / label
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (10, 8), (shade, 0, i)).save(folder / f"{i}.png")


@pytest.fixture
def root(tmp_path):
    for domain in ("sketch", "photo"):
        write(tmp_path, domain, "dog", 2, 50)
        write(tmp_path, domain, "cat", 3, 200)
    return tmp_path


def test_domains_and_classes_are_sorted(root):
    (root / ".cache").mkdir()
    (root / "notes.txt").write_text("x")
    folders = domain_folders(root)
    assert folders == {name: root / name for name in ("photo", "sketch")}
    assert list(folders) == sorted(folders) and domain_classes(folders.values()) == ("cat", "dog")


def test_a_domain_yields_images_and_labels_sorted_by_class(root):
    images = read_domain(root / "photo", transform=domainbed_transform(16))
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 0, 1, 1]
    assert images.names == ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png"]
    image = images[3]["data"]
    assert image.shape == (3, 16, 16) and images[3]["label"] == 1
    # red is 50 of 255, normalized as for ImageNet
    assert image[0].unique().item() == pytest.approx((50 / 255 - 0.485) / 0.229, abs=1e-6)
    assert images.picture(0).getpixel((0, 0)) == (200, 0, 0)
    samples = Samples("photo", images)
    assert samples.labels.tolist() == images.labels.tolist()
    assert samples.identity == images.identity()


def test_a_class_name_that_continues_another_does_not_mix_them(tmp_path):
    for label in ("dog", "dog-house", "dog house"):
        write(tmp_path, "photo", label)
    images = read_domain(tmp_path / "photo")
    assert images.classes == ("dog", "dog house", "dog-house")
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.names[2].startswith("dog house/")


@pytest.mark.parametrize(
    ("domain", "classes", "message"),
    [
        ("loose", None, "are not in class folders"),
        ("single", None, "one class only, dog"),
        ("single", ("cat", "dog"), "no images of class cat, which another has"),
        ("photo", ("cat", "dog", "horse"), "no images of class horse"),
        ("photo", ("dog",), "has samples of class cat, not among the 1 known"),
    ],
)
def test_bad_domains_are_refused(root, domain, classes, message):
    write(root, "single", "dog")
    (root / "loose").mkdir()
    Image.new("RGB", (4, 4)).save(root / "loose" / "1.png")
    with pytest.raises(NACError, match=message):
        read_domain(root / domain, classes)


def test_a_root_without_domains_is_refused(tmp_path):
    with pytest.raises(NACError, match="has no subfolders: expected one per domain"):
        domain_folders(tmp_path)
    with pytest.raises(NACError, match="cannot read the folder .*PACS"):
        domain_folders(tmp_path / "PACS")


def test_splits_are_domainbeds():
    # what DomainBed's split_dataset and seed_hash do, written out
    keys = list(range(11))
    np.random.RandomState(split_seed(0, 1)).shuffle(keys)
    train, held = split_indices(11, split_seed(0, 1))
    assert held.tolist() == keys[:2] and train.tolist() == keys[2:]
    # md5(b"(0, 1)") read as an integer, modulo 2**31
    assert split_seed(0, 1) == split_seed(np.int64(0), np.int64(1)) == 1514274641
    assert len({split_seed(t, d) for t in range(3) for d in range(4)}) == 12
    with pytest.raises(NACError, match="20 % of 4 samples: add some"):
        split_indices(4, 0)
