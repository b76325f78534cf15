"""Read one layer of a network: which one, and batch by batch."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional

from torch import Tensor, nn

from nac_openood.core.coverage import Coverage
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.reading import Probed
from nac_openood.detector.batches import batches, check_labels
from nac_openood.detector.config import AUTO
from nac_openood.detector.reader import Reader
from nac_openood.errors import NACError
from nac_openood.network.architectures import Layer, find_layer, known_layers, recognize
from nac_openood.network.auto import auto_layers
from nac_openood.network.random_state import kept_random_state
from nac_openood.progress import bar


def deepest_layer(net: nn.Module, x: Any, name: str = AUTO) -> Layer:
    """The layer that NAC-ME is computed at.

    Args:
        net: the network.
        x: a batch, by which the layer of an unknown architecture is found.
        name: an alias of the architecture table, a module path, or "auto" for the paper's choice:
            in ViTs, the norm behind the attention of the last block (`norm2` of block 11); in
            ResNets and all other networks, what the head is given (`avgpool`, which the paper
            calls layer4).
    """
    if name != AUTO:
        return find_layer(net, name)
    found = recognize(net)
    if found is None:
        return auto_layers(net, x).head_input
    layers = known_layers(net)
    if found[0].family == "vit":
        layers = [layer for layer in layers if layer.layout == "tokens"]
    return layers[0]


def layer_reader(net: nn.Module, name: str = AUTO, layout: Optional[str] = None) -> Reader:
    """Reads one layer of a network, with gradients; the network is never changed.

    Args:
        net: a network that returns logits `[batch, classes]`.
        name: as in `deepest_layer`.
        layout: how the layer's output is laid out; None goes by the architecture table or by its
            dimensions.
    """
    if name != AUTO:
        find_layer(net, name)  # a wrong name is refused at once

    def find(x: Any) -> dict[str, LayerConfig]:
        found = deepest_layer(net, x, name)
        return {found.path: LayerConfig(layout=layout or found.layout)}

    return Reader(net, Coverage, {}, find)


def labeled_passes(
    reader: Reader, loader: Iterable[Any], title: str, progress: Optional[bool] = None
) -> Iterator[tuple[str, Probed, Tensor]]:
    """Read labeled batches: the name of the layer, what was read, and labels int64 `[batch]`.

    Args:
        reader: from `layer_reader`.
        loader: batches as `(x, y)` tuples or dicts `{'data', 'label'}`.
        title: title of the progress bar.
        progress: whether to show one; None shows it on a terminal.

    Raises:
        NACError: the loader yields no batch, no labels, or labels that are not classes of the
            network.
    """
    empty = True
    with kept_random_state():
        for batch in batches(bar(loader, title, progress)):
            if batch.label is None:
                raise NACError(
                    f"{title}: expected labels, because only correctly classified samples "
                    "count, but this loader yields none. Let it yield (x, y)."
                )
            read = reader.read(batch.data)
            check_labels(batch.label, read.logits.shape[1])
            empty = False
            yield next(iter(reader.layers)), read, batch.label
    if empty:
        raise NACError(f"{title}: the loader yielded no batch, so there is nothing to read.")
