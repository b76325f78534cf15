"""Feature maps: stages of a network, and inputs and outputs of modules in a pass."""

from __future__ import annotations

from typing import Any, Sequence

from torch import Tensor, nn

from nac_openood.benchmark.methods.table import Absent
from nac_openood.network.architectures import known_layers, recognize
from nac_openood.network.inputs import logits_of
from nac_openood.network.replica import EndOfPass, run


def stages(method: str, net: nn.Module, *names: str) -> list[nn.Module]:
    """Stages of a network by their names in the architecture table.

    Raises:
        Absent: where the network has none that output maps `[batch, channels, height, width]`.
    """
    found = {layer.alias: layer for layer in known_layers(net)}
    if all(name in found and found[name].layout == "maps" for name in names):
        modules = dict(net.named_modules())
        return [modules[found[name].path] for name in names]
    row = recognize(net)
    what = "is not in the architecture table" if row is None else f"is a {row[0].name}"
    raise Absent(
        f"{method} needs feature maps [batch, channels, height, width] of {' and '.join(names)}, "
        f"as a ResNet has them, but {type(net).__name__} {what} without such maps. Leave {method} "
        "out for this network."
    )


def outputs(
    net: nn.Module, modules: Sequence[nn.Module], x: Tensor, *, copies: bool
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the outputs of `modules`, a tensor per call in the order of the calls.

    Args:
        net: the network.
        modules: of it.
        x: a batch.
        copies: whether to copy; otherwise an operation in place can rewrite an output.
    """
    found: list[Tensor] = []

    def observe(module: nn.Module, inputs: Any, output: Tensor) -> None:
        found.append(output.clone() if copies else output)

    return logits_of(run(net, x, on_output=[(module, observe) for module in modules]), x), found


def input_of(net: nn.Module, module: nn.Module, x: Tensor) -> Tensor:
    """The input of `module` in a pass, which ends there."""
    found: list[Tensor] = []

    def observe(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0].clone())
        raise EndOfPass

    run(net, x, on_input=[(module, observe)])
    return found[0]
