"""A network and its readings as one module, which tracers such as `torch.export` can follow."""

from __future__ import annotations

from functools import partial
from typing import Any, Mapping

from torch import Tensor, nn

from nac_openood.core.reading import Probed
from nac_openood.network.architectures import Layer
from nac_openood.network.calling import logits_of
from nac_openood.network.hooks import hooked
from nac_openood.network.taps import Taps


class Tapped(nn.Module):
    """Returns what `nac_openood.network.taps.read` returns without gradients.

    It runs a replica of the network in evaluation mode, which shares the network's weights.

    Args:
        net: any classifier.
        layers: what to read, by name.
        mean: whether to average over positions instead of summing.
    """

    def __init__(self, net: nn.Module, layers: Mapping[str, Layer], *, mean: bool) -> None:
        super().__init__()
        self._layers, self._mean = dict(layers), mean
        observers = [
            (net.get_submodule(layer.path), partial(self._observe, name))
            for name, layer in self._layers.items()
        ]
        self._new_pass()
        self.net = hooked(net, on_output=observers, frozen=True)

    def _new_pass(self) -> None:
        self._taps = Taps(self._layers, (), mean=self._mean)

    def _observe(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        self._taps.observe(name, module, inputs, output)

    def forward(self, x: Tensor) -> Probed:
        """Logits and readings of a batch `[batch, ...]`."""
        self._new_pass()
        logits = logits_of(self.net(x), x)
        self._taps.check_all_ran()
        return Probed(logits, self._taps.readings(x.shape[0]))
