"""The power of a fitted detector: the share of synthetic OOD images that it finds."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any, Iterable, Mapping, NamedTuple, Optional

import torch

from nac_openood.detector.batches import batches
from nac_openood.detector.detector import NACDetector
from nac_openood.network.replica import kept_random_state
from nac_openood.search.advise import SURROGATE, Advice, read_and_advise
from nac_openood.search.loaders import SurrogateLoader, can_distort, few_of

#: Names of the synthetic images, and the surrogates that they are.
_KINDS = {"noise": "noise", "scrambled": "patch-shuffled", "mixed": "mixed"}
#: Validation images, and training images for the methods that are compared.
_IMAGES, _TRAIN = 64, 256
#: Below this share of synthetic images found, a detector has little power.
_LITTLE = 0.5


class Power(NamedTuple):
    """The share of synthetic OOD images that a detector finds; real ones are harder to find.

    Args:
        alpha: images with p-values of at most this count as found.
        n: number of images of each kind.
        found: the share that is found, by kind of image.
        advice: how the detector and simpler methods separate them from ID images.
    """

    alpha: float
    n: int
    found: Mapping[str, float]
    advice: Advice

    @property
    def mean(self) -> float:
        """The share of all synthetic images that is found."""
        return sum(self.found.values()) / len(self.found)

    def __str__(self) -> str:
        found = ", ".join(f"{share:.0%} of {kind}" for kind, share in self.found.items())
        return f"finds {found} images at p <= {self.alpha:g} ({self.n} of each, made from val)"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong, and what to do about it, a sentence or two each."""
        messages = [f"{text}." for text in self.advice.warnings]
        if self.mean < _LITTLE:
            messages.append(
                f"the detector has little power: it finds {self.mean:.0%} of synthetic OOD images "
                "(noise, scrambled and mixed validation images), and real ones are usually harder "
                "to find. Measure it on OOD images of your own, next to other methods, with "
                "`compare`; train the network longer or on more data; calibrate on more images."
            )
        return tuple(messages)


def measure_power(
    detector: NACDetector,
    val: Iterable[Any],
    train: Optional[Iterable[Any]] = None,
    *,
    alpha: float = 0.05,
    seed: int = 0,
) -> Optional[Power]:
    """Score noise, scrambled and mixed images made from 64 validation images.

    Synthetic images show that a detector is weak, but not that it is strong: real OOD images are
    usually harder to find.

    Args:
        detector: fitted and calibrated.
        val: batches of ID validation data.
        train: batches of training data, of which 256 samples are read for the comparison.
        alpha: the false-alarm rate.
        seed: random seed of the images.

    Returns:
        The power; None for samples that are not square images.
    """
    kept = list(batches(few_of(val, _IMAGES)))  # images are opened once
    n = sum(batch.size for batch in kept)
    if n < 2 or not can_distort(kept[0].data):
        return None
    made = [SurrogateLoader(kept, seed=seed, kinds=[kind]) for kind in _KINDS.values()]
    outside = list(chain.from_iterable(made))
    with kept_random_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that inputs are unusual: they are
        advice, ood = read_and_advise(
            detector, kept, outside, train, against=SURROGATE, n_train=_TRAIN, progress=False
        )
    p_values = detector._p_values()(detector._fitted().score(ood), torch.as_tensor(ood.prediction))
    # a sample with NaN or Inf has no p-value, and counts as out-of-distribution
    shares = (~(p_values > alpha)).reshape(len(_KINDS), n).double().mean(dim=1)
    return Power(alpha, n, dict(zip(_KINDS, shares.tolist())), advice)
