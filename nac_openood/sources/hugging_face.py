"""Hugging Face's classifiers of images and texts: `hf:NAME-OR-FOLDER`, with their preprocessing."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Optional

from PIL import Image
from torch import Tensor, nn

from nac_openood.errors import NACError
from nac_openood.sources.images import Transform
from nac_openood.sources.network_kind import NetworkKind

_PREFIX = "hf:"
_LONGEST = 512


class HuggingFace(NetworkKind):
    """A classifier of images or texts in a folder or on the Hugging Face Hub."""

    form = "hf:NAME-OR-FOLDER of a Hugging Face classifier"

    def is_mine(self, arch: str) -> bool:
        """Whether `arch` is written as `hf:NAME-OR-FOLDER`."""
        return arch.startswith(_PREFIX)

    def build(self, arch: str, n_classes: int) -> nn.Module:
        """The network as its configuration describes it, for weights to be loaded into."""
        task = "SequenceClassification" if _is_of_texts(arch) else "ImageClassification"
        net: nn.Module = _load(arch, f"AutoModelFor{task}")
        return net.eval()

    def transform(self, arch: str, weights: Optional[str]) -> Optional[Transform]:
        """The image processor or the tokenizer beside the network."""
        if _is_of_texts(arch):
            return Tokenizer(_load(arch, "AutoTokenizer"), _load(arch, "AutoConfig"))
        return Processor(_load(arch, "AutoImageProcessor"))

    def transforms(self, benchmark: str) -> bool:
        """All of them."""
        return True

    def classes(self, arch: str, weights: Optional[str]) -> tuple[str, ...]:
        """The names in the network's configuration, unless they are mere numbers."""
        names = _load(arch, "AutoConfig").id2label
        found = tuple(str(names[number]) for number in sorted(names))
        return () if found == tuple(f"LABEL_{n}" for n in range(len(found))) else found


class Processor:
    """A Hugging Face image processor as a transform of one image."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Image.Image) -> Tensor:
        """The `pixel_values` of an image, `[channels, height, width]`."""
        values: Tensor = self.processor(image, return_tensors="pt")["pixel_values"]
        return values[0]

    def __repr__(self) -> str:
        settings = json.loads(self.processor.to_json_string())
        return f"{type(self.processor).__name__}({json.dumps(settings, sort_keys=True)})"


class Tokenizer:
    """A Hugging Face tokenizer as a transform of one text.

    All texts are padded to one length, and cut there: the longest that the network takes, at most
    512 tokens. Batches are cut again, to the longest of their texts (`texts.without_padding`).
    """

    takes_text = True

    def __init__(self, tokenizer: Any, config: Any) -> None:
        limits = (tokenizer.model_max_length, getattr(config, "max_position_embeddings", _LONGEST))
        self.tokenizer, self.length = tokenizer, min(_LONGEST, *limits)

    def __call__(self, text: Any) -> Any:
        """The network's inputs by name, `[length]` each."""
        made = self.tokenizer(
            text, padding="max_length", truncation=True, max_length=self.length, return_tensors="pt"
        )
        return {name: tensor[0] for name, tensor in made.items()}

    def __repr__(self) -> str:
        words = json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        digest = hashlib.sha256(words.encode()).hexdigest()[:16]
        return f"{type(self.tokenizer).__name__}(length={self.length}, vocabulary={digest})"


def _is_of_texts(arch: str) -> bool:
    """Whether the network classifies texts: its configuration names its class, or its kind does."""
    config = _load(arch, "AutoConfig")
    if config.architectures:
        return any(name.endswith("ForSequenceClassification") for name in config.architectures)
    import transformers

    return type(config) in transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING


def _load(arch: str, kind: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise NACError(
            f"'{arch}' needs transformers, which is not installed: pip install 'nac-openood[hf]'."
        ) from None
    name = arch[len(_PREFIX) :]
    try:
        return getattr(transformers, kind).from_pretrained(name)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise NACError(
            f"{kind}.from_pretrained('{name}') of transformers failed: {reason[:400]} Expected a "
            "folder written by save_pretrained (of the network, and of its image processor or "
            "tokenizer), or a name on the Hugging Face Hub, which needs internet access."
        ) from error
