"""Stand-ins for OOD data."""

import pytest
import torch

from nac_openood import NACError
from nac_openood.search import SURROGATES, SurrogateLoader, surrogate_ood


@pytest.fixture
def pictures():
    return torch.randn(30, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", SURROGATES)
@pytest.mark.parametrize("side", [3, 8, 15, 32])
def test_every_kind_changes_every_image_and_not_the_original(kind, side):
    images = torch.randn(6, 1, side, side, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    spoiled = surrogate_ood(images, kinds=[kind])
    assert torch.equal(images, before)
    assert spoiled.shape == images.shape and spoiled.isfinite().all()
    assert ((spoiled - images).abs().amax(dim=(1, 2, 3)) > 0).all()


def test_same_seed_same_images(pictures):
    state = torch.get_rng_state()
    first, second = (surrogate_ood(pictures, seed=5) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, surrogate_ood(pictures, seed=6))
    assert torch.equal(state, torch.get_rng_state())


def test_kinds_take_turns(pictures):
    kinds = ["inverted", "rotated"]
    one, two = (surrogate_ood(pictures, kinds=kinds, per_image=n) for n in (1, 2))
    assert len(one) == 30 and len(two) == 60
    whole = surrogate_ood(pictures, kinds=["inverted"])
    torch.testing.assert_close(one[::2], whole[::2])
    torch.testing.assert_close(two[31::2], whole[1::2])


def test_what_the_kinds_do(pictures):
    shuffled = surrogate_ood(pictures, kinds=["patch-shuffled"])
    pixels = (each.flatten(2).sort(dim=2).values for each in (shuffled, pictures))
    torch.testing.assert_close(*pixels)
    twice = surrogate_ood(surrogate_ood(pictures, kinds=["inverted"]), kinds=["inverted"])
    torch.testing.assert_close(twice, pictures)
    blurred = surrogate_ood(pictures, kinds=["blurred"])
    assert float(blurred.std()) < 0.5 * float(pictures.std())


def test_mixed_are_of_different_classes():
    label = torch.tensor([0, 0, 0, 1, 0, 0])
    images = label[:, None, None, None].float().expand(6, 1, 4, 4)
    mixed = surrogate_ood(images, label, kinds=["mixed"])
    assert (mixed[label == 0] == 0.5).all() and (mixed[label == 1] == 0.5).all()
    alone = surrogate_ood(images[:1], label[:1], kinds=["mixed"])  # nothing to mix with
    assert torch.equal(alone, images[:1])


def test_loader(pictures):
    labels = torch.arange(30) % 3
    source = [(pictures[:20], labels[:20]), {"data": pictures[20:], "label": labels[20:]}]
    loader = SurrogateLoader(source, seed=1)
    first, second = [list(loader) for _ in range(2)]
    assert len(loader) == 2 and [len(b.data) for b in first] == [20, 10]
    assert all(b.label is None for b in first)
    assert all(torch.equal(a.data, b.data) for a, b in zip(first, second))


def test_bad_input(pictures):
    with pytest.raises(NACError, match=r"unknown surrogate kind \['melted'\]"):
        surrogate_ood(pictures, kinds=["melted"])
    with pytest.raises(NACError, match=r"square images .* got \[30, 3, 16, 8\]"):
        surrogate_ood(pictures[..., :8])
