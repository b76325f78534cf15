"""Loads a fitted detector together with its network and transform.

The detector's file records which network, classes and transform it was fitted with, so that it is
not used with others by mistake. Code that the file names is run only if the user names it as well.
"""

from __future__ import annotations

import re
from typing import Callable, NamedTuple, Optional, Sequence

from torch import nn

from nac_openood.detector.detector import NACDetector
from nac_openood.detector.store import notes_of
from nac_openood.errors import NACError
from nac_openood.files import PathLike
from nac_openood.sources.images import Transform
from nac_openood.sources.networks import kind_of, network_of
from nac_openood.sources.transforms import Preprocessing, chosen_transform, restored_transform


class Deployed(NamedTuple):
    """A detector that is ready to score images.

    Args:
        detector: with its network.
        transform: turns an RGB image into the network's input.
    """

    detector: NACDetector
    transform: Transform

    def class_name(self, number: int) -> str:
        """The name of a class, or its number where it has none."""
        names = self.detector.classes_
        return names[number] if number < len(names) else str(number)


def note_origin(
    detector: NACDetector,
    *,
    arch: str,
    n_classes: int,
    classes: Sequence[str],
    transform: Optional[Preprocessing],
) -> None:
    """Record in a detector the network, classes and transform, for `load_fitted`.

    Args:
        detector: about to be saved.
        arch: its network, as in `networks.kind_of`.
        n_classes: the number of classes that the network was made with.
        classes: their names, in the order of the logits; may be empty.
        transform: how images become the network's input, if it takes images.
    """
    detector.classes_ = tuple(classes)
    detector.notes_.update(arch=arch, n_classes=str(n_classes))
    if transform is not None:
        detector.notes_.update(transform=transform.text, transform_identity=transform.identity)


def load_fitted(
    path: PathLike,
    *,
    arch: Optional[str] = None,
    weights: Optional[str] = None,
    transform: Optional[str] = None,
    prepare: Callable[[nn.Module], nn.Module] = lambda net: net,
) -> Deployed:
    """Load a detector with its network and transform.

    Args:
        path: a file that `NACDetector.save` wrote.
        arch: the network, as in `networks.kind_of`; None takes the name in the file, unless that
            is code or a file of the user's.
        weights: a checkpoint file or `torchvision:NAME`; None for networks that come with weights.
        transform: as in `transforms.chosen_transform`; None takes the one in the file.
        prepare: what to do with the network before it is used, e.g. move it to a device.

    Raises:
        NACError: the network or the transform is not the one that the detector was fitted with, or
            the file does not say which it was.
    """
    notes = notes_of(path)
    if arch is None:
        arch = notes.get("arch")
        if arch is None:
            raise NACError(f"{path} does not say which network it belongs to: pass `arch`.")
        if not kind_of(arch).by_name:
            raise NACError(
                f"{path} belongs to the network {arch}, and code or files that a file names are "
                f"never loaded by themselves. Pass it yourself: `arch={arch}`."
            )
    if transform is not None:
        chosen = chosen_transform(transform, arch, weights)
    elif "transform" in notes:
        chosen = restored_transform(notes["transform"], arch, weights)
    else:
        raise NACError(f"{path} does not say how images become tensors: pass `transform`.")
    if notes.get("transform_identity", chosen.identity) != chosen.identity:
        raise NACError(
            f"{path} was fitted with another transform than this one ({chosen}), and its scores "
            f"would be wrong. It was: {notes.get('transform', '')!r}. Leave out `transform`, or "
            "fit again."
        )
    n_classes = notes.get("n_classes", "0")
    if re.fullmatch("[0-9]{1,9}", n_classes) is None:
        raise NACError(f"{path} is damaged: it notes {n_classes!r} classes. Fit again.")
    net = prepare(network_of(arch, int(n_classes), weights))
    return Deployed(NACDetector.load(path, net), chosen.transform)
