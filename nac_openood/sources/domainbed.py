"""Checkpoints of DomainBed, without DomainBed: a featurizer and a classifier become one network."""

from __future__ import annotations

import pathlib
from typing import Collection, Mapping, Optional

import numpy as np
import torch
from torch import Tensor

from nac_openood.core.restoring import below
from nac_openood.errors import NACError

#: Where algorithms keep the parts they predict with; a moving average comes before its source.
_PARTS = (
    ("network_sma.0.", "network_sma.1."),
    ("featurizer.", "classifier."),
    ("network.0.", "network.1."),
)
_INNER = "network."


def plain_state(state: Mapping[str, Tensor], wanted: Collection[str]) -> Mapping[str, Tensor]:
    """The weights of a plain classifier out of those of a DomainBed algorithm.

    Args:
        state: `model_dict` of a checkpoint; anything else is returned as it is.
        wanted: the names of the plain network's weights. Its head is what they have beyond the
            featurizer: `fc` in a ResNet, `head` in a ViT.
    """
    parts = _featurizer_and_classifier(state)
    if parts is None or set(state) == set(wanted):
        return state
    features, classifier = parts
    if set(classifier) != {"weight", "bias"}:
        raise NACError(
            f"this DomainBed checkpoint has a nonlinear classifier ({', '.join(classifier)}), "
            "expected a linear one. Build the network yourself and pass it instead."
        )
    heads = {key.rpartition(".")[0] for key in wanted if key not in features}
    head = heads.pop() if len(heads) == 1 else "classifier"
    return {**features, **{f"{head}.{key}": value for key, value in classifier.items()}}


def _featurizer_and_classifier(
    state: Mapping[str, Tensor],
) -> Optional[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    for featurizer, classifier in _PARTS:
        features, linear = below(featurizer, state), below(classifier, state)
        if features and linear:
            inner = below(_INNER, features)
            return (inner if len(inner) == len(features) else features), linear
    return None


def allowed_content() -> torch.serialization.safe_globals:
    """A context in which `torch.load(weights_only=True)` takes what DomainBed notes in `args`.

    These are paths, and numpy's numbers and arrays; making them runs no code of the file.
    """
    numpy_core = (getattr(np, "_core", None) or np.core).multiarray  # numpy 2 has moved it
    makers = [numpy_core.scalar, numpy_core._reconstruct]
    # as older numpy wrote them
    before = [(maker, f"numpy.core.multiarray.{maker.__name__}") for maker in makers]
    kinds = [type(np.dtype(name)) for name in ("float64", "float32", "int64", "bool")]
    paths = [pathlib.PosixPath, pathlib.PurePosixPath]
    return torch.serialization.safe_globals(
        [*paths, *makers, *before, np.ndarray, np.dtype, *kinds]
    )
