"""Loaders made from other loaders: held-out and small subsets, and surrogates of OOD data.

Surrogates are for a search without real OOD validation data. They are distorted in-distribution
images, which keep the statistics of the pixels but not the features of a class. Settings that are
chosen with them are tuned to *these* images: docs/search.md shows what that costs.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Subset

from nac_openood.core.layer_config import refuse_unknown
from nac_openood.detector import batches
from nac_openood.detector.batches import Batch
from nac_openood.errors import NACError
from nac_openood.network.inputs import Inputs, mapped, tensors_in

#: Distance of the seeds of two loaders: more than they have batches.
_SEED_STEP = 10**6

#: The note in every report of a search with surrogates.
SURROGATE_LABEL = "searched against surrogate OOD, not real OOD"


def _rotated(images: Tensor, others: Tensor, draw: torch.Generator) -> Tensor:
    turns = torch.randint(1, 4, (len(images),), generator=draw)
    return torch.stack([x.rot90(int(k), (1, 2)) for x, k in zip(images, turns)])


def _shuffled(images: Tensor, others: Tensor, draw: torch.Generator) -> Tensor:
    side = min(images.shape[2:]) // 4
    if not side:
        return images.flip(2, 3)
    out = images.clone()
    for x in out:
        tiles = F.unfold(x[None, :, : 4 * side, : 4 * side], side, stride=side)
        order = torch.randperm(16, generator=draw).to(images.device)
        x[:, : 4 * side, : 4 * side] = F.fold(tiles[..., order], 4 * side, side, stride=side)[0]
    return out


def _noisy(images: Tensor, others: Tensor, draw: torch.Generator) -> Tensor:
    noise = torch.randn(images.shape, generator=draw).to(images)
    return images + noise * images.std(dim=(1, 2, 3), keepdim=True)


def _blurred(images: Tensor, others: Tensor, draw: torch.Generator) -> Tensor:
    small = F.adaptive_avg_pool2d(images, max(2, images.shape[-1] // 8))
    return F.interpolate(small, size=images.shape[2:], mode="bilinear", align_corners=False)


def _noise(images: Tensor, others: Tensor, draw: torch.Generator) -> Tensor:
    center, spread = (f(dim=(0, 2, 3), keepdim=True) for f in (images.mean, images.std))
    return torch.randn(images.shape, generator=draw).to(images) * spread + center


#: The distortions by name, `(images, images of other classes, generator) -> distorted images`, all
#: `[batch, c, h, w]`; an image gets one of them.
SURROGATES: Mapping[str, Callable[..., Tensor]] = {
    "rotated": _rotated,  # by 90, 180 or 270 degrees
    # light and dark exchanged, around the mean of each image
    "inverted": lambda images, *_: 2 * images.mean(dim=(1, 2, 3), keepdim=True) - images,
    # the average with an image of another class, where the batch has one
    "mixed": lambda images, others, _: (images + others) / 2,
    # sixteen patches, shuffled image by image; pixels left over at the edges stay in place
    "patch-shuffled": _shuffled,
    "noisy": _noisy,  # with Gaussian noise of the standard deviation of the image
    "blurred": _blurred,  # averaged over eighths of a side, and smoothly enlarged again
}
#: With those used only where they are named: Gaussian noise with mean and spread of the batch.
_ALL_KINDS = {**SURROGATES, "noise": _noise}


def surrogate_ood(
    images: Tensor,
    label: Optional[Tensor] = None,
    *,
    kinds: Optional[Sequence[str]] = None,
    per_image: int = 1,
    seed: int = 0,
) -> Tensor:
    """Distort in-distribution images `[batch, channels, h, w]` (square, normalized or not).

    Args:
        images: the images; they are not changed.
        label: int64 `[batch]`: `mixed` averages images of different classes where it is known.
        kinds: names in `SURROGATES`, or "noise" (no image at all); None takes all `SURROGATES`.
        per_image: number of surrogates per image, of different kinds. Kinds take turns, so that all
            are equally frequent.
        seed: random seed.

    Returns:
        `[batch * per_image, channels, h, w]`.
    """
    chosen = list(SURROGATES) if kinds is None else list(kinds)
    refuse_unknown(chosen, _ALL_KINDS, "surrogate kind")
    if not can_distort(images):
        raise NACError(
            "surrogates can only be made from square images [batch, channels, side, side], got "
            f"{list(images.shape)}. For other inputs, pass OOD validation data (`ood_val`)."
        )
    draw = torch.Generator().manual_seed(seed)
    others = images[_partners(len(images), label, draw)]
    rows = torch.arange(len(images))
    out = []
    for turn in range(per_image):
        part = torch.empty_like(images)
        for k, kind in enumerate(chosen):
            use = rows[(rows + turn) % len(chosen) == k]
            if len(use):
                part[use] = _ALL_KINDS[kind](images[use], others[use], draw)
        out.append(part)
    return torch.cat(out)


class SurrogateLoader:
    """A loader of surrogates of the batches of another loader, without labels.

    Args:
        loader: batches, as in `NACDetector.fit`, of more than one image: `mixed` needs images
            of different classes.
        seed: random seed.
        **options: other options of `surrogate_ood`.
    """

    def __init__(self, loader: Iterable[Any], *, seed: int = 0, **options: Any) -> None:
        self._loader, self._seed, self._options = loader, seed, options

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(batches.batches(self._loader)):
            seed = self._seed * _SEED_STEP + number  # of every batch and every `seed`
            distort = partial(surrogate_ood, label=batch.label, seed=seed, **self._options)
            yield Batch(mapped(batch.data, distort), None)


def can_distort(samples: Inputs) -> bool:
    """Whether surrogates can be made from a batch: only from square images."""
    tensors = tensors_in(samples)
    square = all(x.ndim == 4 and x.shape[2] == x.shape[3] for x in tensors)
    return square and len(tensors) == 1 and tensors[0].is_floating_point()


def _partners(n: int, label: Optional[Tensor], draw: torch.Generator) -> Tensor:
    """Another row for every row, of another class where there is one."""
    found = torch.arange(n).roll(1)
    labels = torch.zeros(n) if label is None else label.cpu()
    for row in range(n):
        others = torch.nonzero(labels != labels[row])[:, 0]
        if len(others):
            found[row] = others[torch.randint(len(others), (1,), generator=draw)]
    return found


# -- parts of a loader ----------------------------------------------------------------------


def held_out_of(train: Iterable[Any], n_samples: Optional[int], n: int) -> Optional[Iterable[Any]]:
    """A loader of training samples that `fit` and `read_loader` do not use with `n_samples`.

    Args:
        train: batches of training data.
        n_samples: size of the fitting subset.
        n: largest number of other samples, drawn class by class like the fitting subset.

    Returns:
        The loader; None if no samples are left, or if `train` cannot be indexed.
    """
    if n_samples is None or not batches.indexable(train):
        return None
    dataset = train.dataset  # type: ignore[attr-defined]
    labels, size = batches.dataset_labels(dataset), len(dataset)
    rest = np.setdiff1d(np.arange(size), batches.fitting_indices(labels, size, n_samples))
    rows = _drawn(labels, rest, n)
    return batches.loader_like(train, Subset(dataset, rows.tolist())) if len(rows) else None


def few_of(loader: Iterable[Any], n: int) -> Iterable[Any]:
    """A loader of at most `n` samples, which can be read more than once.

    They are drawn class by class where that is possible; of a stream, the first ones are kept in
    memory.
    """
    if batches.indexable(loader):
        dataset = loader.dataset  # type: ignore[attr-defined]
        rows = _drawn(batches.dataset_labels(dataset), np.arange(len(dataset)), n)
        return batches.loader_like(loader, Subset(dataset, rows.tolist()))
    taken: list[Batch] = []
    for batch in batches.batches(loader):
        taken.append(batch.rows(slice(n)))
        n -= taken[-1].size
        if n <= 0:
            break
    return taken


def _drawn(labels: Optional[np.ndarray], rest: np.ndarray, n: int) -> np.ndarray:
    """Draw at most `n` of the rows `rest`, equally many of each class if `n` is large enough."""
    if not n or n >= len(rest):
        return rest[:n]
    if labels is not None:
        labels = labels[rest] if n >= len(np.unique(labels[rest])) else None
    return rest[batches.fitting_indices(labels, len(rest), n)]
