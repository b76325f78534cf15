"""Any network with the methods that OpenOOD's postprocessors call.

OpenOOD's own networks have them built in; those of torchvision, timm and users do not.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Mapping, Optional, Union

import numpy as np
from torch import Tensor, nn

from nac_openood.benchmark.methods.table import Absent
from nac_openood.network.architectures import known_layers
from nac_openood.network.head import Head, head_of
from nac_openood.network.inputs import logits_of
from nac_openood.network.replica import run

#: What OpenOOD's ResNets return as `feature_list`: what enters the first stage, and these.
_LISTED = ("layer1", "layer2", "layer3", "avgpool")


class NetworkView(nn.Module):
    """`net` with the interface of OpenOOD's networks; `net` itself is never changed.

    Args:
        net: the network.
        x: a batch to find its head with.
    """

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.net = net
        self.fc = head_of(net, x)[1]
        modules = dict(net.named_modules())
        # OpenOOD takes the output of a stage for maps [batch, channels, height, width]
        self._stages = {
            layer.alias: modules[layer.path]
            for layer in known_layers(net)
            if layer.layout == "maps" or layer.alias == "avgpool"
        }

    def __getattr__(self, name: str) -> Any:
        stages = self.__dict__.get("_stages", {})
        return stages[name] if name in stages else super().__getattr__(name)

    def forward(
        self, x: Tensor, return_feature: bool = False, return_feature_list: bool = False
    ) -> Union[Tensor, tuple[Tensor, Any]]:
        """Logits; with the head's input, or with a list of the stages' outputs."""
        if return_feature:
            logits, seen = self._run(x, entering={"feature": self.fc})
            return logits, seen["feature"]
        if return_feature_list:
            stages = {name: self._stage(name) for name in _LISTED}
            logits, seen = self._run(x, entering={"stem": stages["layer1"]}, leaving=stages)
            return logits, [seen[name] for name in ("stem", *_LISTED)]
        return logits_of(self.net(x), x)

    def intermediate_forward(self, x: Tensor, layer_index: int) -> Tensor:
        """The output of a stage, 1 to 4."""
        name = f"layer{layer_index}"
        return self._run(x, leaving={name: self._stage(name)})[1][name]

    def forward_threshold(self, x: Tensor, threshold: float) -> Tensor:
        """Logits of features that are clipped at `threshold`."""
        feature = self._run(x, entering={"feature": self.fc})[1]["feature"]
        return logits_of(self.fc(feature.clip(max=threshold)), feature)

    def get_fc(self) -> tuple[np.ndarray, np.ndarray]:
        """Weight and bias of the head."""
        return Head(self.fc).get_fc()

    def get_fc_layer(self) -> nn.Linear:
        """The head."""
        return self.fc

    def _run(
        self,
        x: Tensor,
        *,
        entering: Mapping[str, nn.Module] = {},
        leaving: Mapping[str, nn.Module] = {},
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, and what enters or leaves the given modules."""
        seen: dict[str, Tensor] = {}

        def keep(
            name: str, module: nn.Module, inputs: Any, output: Optional[Tensor] = None
        ) -> None:
            # a copy, for an operation in place further on would rewrite it
            seen[name] = (inputs[0] if output is None else output).clone()

        def kept(modules: Mapping[str, nn.Module]) -> list[tuple[nn.Module, Any]]:
            return [(module, partial(keep, name)) for name, module in modules.items()]

        output = run(self.net, x, on_input=kept(entering), on_output=kept(leaving))
        return logits_of(output, x), seen

    def _stage(self, name: str) -> nn.Module:
        if name not in self._stages:
            raise Absent(
                f"this method reads feature maps of '{name}' as a ResNet has them, and "
                f"{type(self.net).__name__} has no such stage. Leave it out of `methods`."
            )
        return self._stages[name]
