"""TorchScript as a network whose layers can be read.

TorchScript runs outside of Python, where nothing can look at its layers. PyTorch can turn many
image classifiers of this kind into a graph of operations. Here each operation becomes a module, so
that its output can be read like that of any layer.
"""

from __future__ import annotations

import operator
import warnings
import zipfile
from itertools import product
from typing import Any, Callable, Optional

import torch
from torch import Tensor, fx, nn

from nac_openood.errors import NACError, first_line

#: Sizes of images to try, since a script does not say what it takes.
_SIDES = (224, 32, 64, 28, 128, 256, 299, 384, 96, 512)


class Operation(nn.Module):
    """One operation of a graph."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the operation returns."""
        return self.function(*args, **kwargs)


class OperationNetwork(nn.Module):
    """A graph of operations as a network with a module for each.

    Args:
        traced: the graph with its parameters.
    """

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__()
        self._graph = traced.graph
        self.weights = nn.Module()
        for node in self._graph.nodes:
            if node.op == "get_attr":
                self._keep(node.name, operator.attrgetter(node.target)(traced))
            elif node.op == "call_function":
                self.add_module(node.name, Operation(node.target))

    def _keep(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.weights.register_buffer(name, value)
        else:
            setattr(self.weights, name, value)

    def forward(self, x: Tensor) -> Any:
        """Run the operations in order."""
        values: dict[fx.Node, Any] = {}
        for node in self._graph.nodes:
            args = fx.map_arg(node.args, values.__getitem__)
            if node.op == "placeholder":
                values[node] = x
            elif node.op == "get_attr":
                values[node] = getattr(self.weights, node.name)
            elif node.op == "call_module":  # checks the sizes of the example
                values[node] = None
            elif node.op == "output":
                return args[0][0] if isinstance(args[0], (tuple, list)) else args[0]
            else:
                kwargs = fx.map_arg(node.kwargs, values.__getitem__)
                values[node] = getattr(self, node.name)(*args, **kwargs)
        raise AssertionError("a graph ends with its output")


def is_script(path: str) -> bool:
    """Whether a file is TorchScript, by what is in it."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def network_of_script(path: str, advice: str) -> nn.Module:
    """The script as a network of operations, checked to compute the same.

    Args:
        path: a file written by `torch.jit.save`.
        advice: what to do instead if this fails.

    Raises:
        NACError: the script takes no images, or cannot be turned into such a network.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        script = _loaded(path, advice)
        example = _example(script)
        if example is None:
            raise NACError(
                f"{path} is TorchScript that takes no images of a usual size (3 or 1 channels, "
                f"{min(_SIDES)} to {max(_SIDES)} pixels). {advice}"
            )
        net = _converted(script, example)
    # another number of images, because a conversion may have fixed it
    if net is None or not _same(script, net, torch.randn(3, *example.shape[1:])):
        raise NACError(
            f"{path} is TorchScript, which runs outside of Python, and PyTorch cannot turn it into "
            f"a graph of operations whose outputs can be read. {advice}"
        )
    return net


def _loaded(path: str, advice: str) -> torch.jit.ScriptModule:
    try:
        return torch.jit.load(path, map_location="cpu").eval()
    except (RuntimeError, ValueError) as error:  # its reader is written in C++
        raise NACError(
            f"{path} is damaged or not TorchScript ({first_line(error)}). {advice}"
        ) from error


def _example(script: nn.Module) -> Optional[Tensor]:
    """Images that the script takes."""
    for channels, side in product((3, 1), _SIDES):
        x = torch.zeros(2, channels, side, side)
        try:
            with torch.no_grad():
                script(x)
            return x
        except Exception:  # of another size; TorchScript raises many kinds of errors
            continue
    return None


def _converted(script: torch.jit.ScriptModule, example: Tensor) -> Optional[nn.Module]:
    try:
        from torch._export.converter import TS2EPConverter

        program = TS2EPConverter(script, (example,)).convert()
        return OperationNetwork(program.module()).eval()
    except Exception:  # an operation it does not know, or a PyTorch without it
        return None


def _same(script: nn.Module, net: nn.Module, x: Tensor) -> bool:
    try:
        with torch.no_grad():
            return torch.allclose(script(x), net(x), rtol=1e-4, atol=1e-5)
    except Exception:  # e.g. a fixed number of images
        return False
