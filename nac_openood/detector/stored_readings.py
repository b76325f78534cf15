"""What a file of readings must hold, checked before anything is made of it."""

from __future__ import annotations

from typing import Mapping, Sequence

import torch
from torch import Tensor

from nac_openood.core.restoring import refuse_other_tensors, stored_tensor
from nac_openood.errors import NACError

_ANSWERS = ("prediction", "label")


def check_stored(tensors: Mapping[str, Tensor], layers: Sequence[str]) -> None:
    """Refuse tensors that are no readings of these layers.

    Args:
        tensors: `prediction` and `label` int64 `[samples]`, `logits` `[samples, classes]` where
            there are any, `activation/LAYER` and `gradient/LAYER` `[samples, neurons]`.
        layers: names of the layers.

    Raises:
        NACError: what is missing, unknown, or of the wrong type or shape.
    """
    if not layers or len(set(layers)) < len(layers):
        raise NACError(f"'layers' must name each layer once, got {list(layers)}.")
    activations = [f"activation/{name}" for name in layers]
    gradients = [f"gradient/{name}" for name in layers]
    refuse_other_tensors(tensors, {*_ANSWERS, "logits", *activations, *gradients})
    answers = [stored_tensor(tensors, name, torch.int64, 1) for name in _ANSWERS]
    n = len(answers[0])
    wide = [*activations, *(g for g in gradients if g in tensors)]
    for name in [*wide, *(["logits"] if "logits" in tensors else [])]:
        found = tensors.get(name)
        if found is None or not found.is_floating_point() or found.ndim != 2 or not found.shape[1]:
            raise NACError(f"the tensor '{name}' must be floating-point [samples, neurons].")
        answers.append(found)
    if any(len(each) != n for each in answers):
        raise NACError("its tensors are not of the same number of samples.")
    for activation, gradient in zip(activations, gradients):
        if gradient in tensors and tensors[gradient].shape != tensors[activation].shape:
            raise NACError(f"'{gradient}' has another shape than '{activation}'.")
    if n:
        _check_answers(tensors)


def _check_answers(tensors: Mapping[str, Tensor]) -> None:
    """Predictions and labels are classes, or -1 where they are unknown."""
    prediction, label = (tensors[name] for name in _ANSWERS)
    most = tensors["logits"].shape[1] if "logits" in tensors else int(prediction.max()) + 1
    if int(prediction.min()) < -1 or int(prediction.max()) >= most or int(label.min()) < -1:
        raise NACError("its predictions or labels are no classes.")
