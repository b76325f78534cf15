"""`nac_openood.coverage_integral`: NAC-ME of a network, a single number."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional

from torch import Tensor, nn

from nac_openood.core.coverage import Coverage
from nac_openood.core.histogram import CoverageIntegral
from nac_openood.core.layer_config import IntegralConfig, LayerConfig
from nac_openood.core.reading import Probed
from nac_openood.detector.batches import bar, batches, check_labels
from nac_openood.detector.config import AUTO
from nac_openood.detector.readings import Reader
from nac_openood.errors import NACError
from nac_openood.network.architectures import Layer, find_layer, recognize, table_layers
from nac_openood.network.auto import auto_layers
from nac_openood.network.replica import kept_random_state


def coverage_integral(
    net: nn.Module,
    loader: Iterable[Any],
    layer: str = AUTO,
    config: Optional[IntegralConfig] = None,
    *,
    progress: Optional[bool] = None,
) -> float:
    """How much of their range the neurons of a network cover: G(X, theta) of the paper.

    In the paper, larger coverage on training data goes with better accuracy on unseen domains, so
    it ranks checkpoints of a network without any out-of-distribution data; see
    `nac_openood.rank_checkpoints`. Values of different layers, settings or training sets are not
    comparable.

    Examples:
        >>> nac_openood.coverage_integral(net, train_loader)
        0.0208
        >>> nac_openood.coverage_integral(
        ...     net, train_loader, layer="layer3", config=IntegralConfig(n_bins=1000, steepness=1)
        ... )

    Args:
        net: a network that returns logits `[batch, classes]`. It is never changed.
        loader: labeled batches of training data without augmentation, `(x, y)` or dicts
            `{'data', 'label'}`; of several source domains, all together.
        layer: an alias of a known architecture (`avgpool`, `layer4`, `block11`), any dotted module
            path, or "auto": `avgpool` in ResNets, `norm2` of the last block in ViTs, and the input
            of the head in other networks.
        config: the settings; None is M = 50, O* = 500, alpha = 0.1.
        progress: whether to show a progress bar; None shows one on a terminal.

    Returns:
        G, from 0 to (M - 1) / M; 0 where no sample is classified correctly.
    """
    return count_coverage(net, loader, layer, config, progress=progress).integral()


def count_coverage(
    net: nn.Module,
    loader: Iterable[Any],
    layer: str = AUTO,
    config: Optional[IntegralConfig] = None,
    *,
    progress: Optional[bool] = None,
) -> CoverageIntegral:
    """The counts behind `coverage_integral`, which can be merged with those of other shards.

    Counts add up exactly: `a.merge(b)` equals the counts of one pass over both shards.
    """
    if config is not None and not isinstance(config, IntegralConfig):
        raise NACError(f"`config` must be an IntegralConfig or None, got {config!r}.")
    config = config or IntegralConfig()
    reader = layer_reader(net, layer, config.layout)
    counted: Optional[CoverageIntegral] = None
    for name, read, label in labeled_passes(reader, loader, "NAC-ME", progress):
        counted = counted or CoverageIntegral(name, config)
        counted.update(read, label)
    assert counted is not None  # a loader without batches raises
    counted.check()
    return counted


def deepest_layer(net: nn.Module, x: Any, name: str = AUTO) -> Layer:
    """The layer that NAC-ME is computed at.

    Args:
        net: the network.
        x: a batch, to find the layer of an unknown architecture.
        name: an alias of the architecture table, a module path, or "auto" for the paper's choice:
            in ViTs, the norm after the attention of the last block (`norm2` of block 11); in
            ResNets and all other networks, the input of the head (`avgpool`, which the paper calls
            layer4).
    """
    if name != AUTO:
        return find_layer(net, name)
    found = recognize(net)
    if found is None:
        return auto_layers(net, x).head_input
    layers = table_layers(net)
    if found[0].family == "vit":
        layers = [layer for layer in layers if layer.layout == "tokens"]
    return layers[0]


def layer_reader(net: nn.Module, name: str = AUTO, layout: Optional[str] = None) -> Reader:
    """A reader of one layer of a network, with gradients; the network is never changed.

    Args:
        net: a network that returns logits `[batch, classes]`.
        name: as in `deepest_layer`.
        layout: how the layer's output is laid out; None goes by the architecture table or by its
            dimensions.
    """
    if name != AUTO:
        find_layer(net, name)  # raises early if there is no such layer

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
