"""`nac_openood.coverage_integral`: NAC-ME of a network, a single number."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from torch import nn

from nac_openood.core.histogram import CoverageIntegral
from nac_openood.core.layer_config import IntegralConfig
from nac_openood.detector.config import AUTO
from nac_openood.errors import NACError
from nac_openood.evaluation.passes import labeled_passes, layer_reader


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
            path, or "auto": `avgpool` in ResNets, `norm2` of the last block in ViTs, and what the
            head is given elsewhere.
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
    """The counts behind `coverage_integral`, to merge with those of other shards.

    Counts of shards add up exactly: `a.merge(b)` is what one pass over both would have counted.
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
