"""Texts as a dataset, for networks that take what a tokenizer makes of them."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Subset, default_collate

from nac_openood.errors import NACError

_SHOWN = 60
_MASK = "attention_mask"
#: Batches have a multiple of this many tokens: some networks take no shorter texts.
_MULTIPLE = 8


class LabelledTexts(Dataset[dict[str, Any]]):
    """Texts as dicts of a network's inputs, with `label`.

    Args:
        texts: the texts.
        labels: a label per text, -1 if it has none.
        transform: makes tensors of a text; see `takes_text`.
        origin: where the texts come from, for errors.
        classes: names of the classes in the order of their labels, where they are known.

    Raises:
        NACError: the transform is one of images.
    """

    def __init__(
        self,
        texts: Sequence[str],
        labels: Union[Sequence[int], np.ndarray],
        transform: Any,
        origin: str,
        classes: Sequence[str] = (),
    ) -> None:
        if not takes_text(transform):
            raise NACError(
                f"{origin} holds texts, but the network takes images. Expected a column 'path' "
                "with paths of images, or a network of texts such as hf:NAME-OR-FOLDER."
            )
        self.texts, self.transform, self.origin = list(texts), transform, origin
        self.labels, self.classes = np.asarray(labels, dtype=np.int64), tuple(classes)
        self.names = [text[:_SHOWN] for text in self.texts]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.transform(self.texts[index]), "label": int(self.labels[index])}

    def identity(self) -> str:
        """A hash of the texts, labels and the transform."""
        digest = hashlib.sha256(repr(self.transform).encode())
        for text, label in zip(self.texts, self.labels):
            digest.update(f"{label}\0{len(text)}\0{text}".encode())
        return digest.hexdigest()[:16]


def takes_text(transform: Any) -> bool:
    """Whether a transform is one of texts; such a transform has a true `takes_text`."""
    return bool(getattr(transform, "takes_text", False))


def collate_for(data: Any) -> Optional[Callable[[list[Any]], Any]]:
    """The `collate_fn` that suits a dataset: `collate_texts` for texts, else None."""
    while isinstance(data, Subset):
        data = data.dataset
    return collate_texts if isinstance(data, LabelledTexts) else None


def collate_texts(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Texts as a batch that is as long as the longest of them; see `without_padding`."""
    return without_padding(default_collate(list(samples)))


def without_padding(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch without the tokens at its end that are padding in every text.

    A batch without an `attention_mask` stays as it is, and so does padding in front of a text,
    which moves the positions of its tokens.

    Args:
        batch: `[texts, tokens]` by name; whatever has another length stays as it is.
    """
    mask = batch.get(_MASK)
    if mask is None:
        return dict(batch)
    n_tokens = mask.shape[1]
    used = mask.any(dim=0).nonzero()
    longest = int(used[-1]) + 1 if len(used) else 1
    kept = min(n_tokens, -(-longest // _MULTIPLE) * _MULTIPLE)
    return {
        name: part[:, :kept] if part.ndim > 1 and part.shape[1] == n_tokens else part
        for name, part in batch.items()
    }
