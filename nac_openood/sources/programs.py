"""Networks that were saved as programs, without the code that made them.

Programs of `torch.export` keep which operation came from which submodule, so their layers can be
read. TorchScript runs outside of Python; where PyTorch can convert it to a graph, each operation of
the graph becomes a module whose output can be read.
"""

from __future__ import annotations

import logging
import operator
import os
import pickle
import warnings
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, Callable, Iterator

import torch
from torch import Tensor, fx, nn

from nac_openood.errors import NACError, first_line
from nac_openood.sources.checkpoints import check_archive

#: Parts of a program that run when it is loaded: compiled code, and pickled objects of any kind.
_CODE = ("data/aotinductor/", "data/constants/opaque_obj", "data/constants/custom_obj")
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
#: Sizes of images to try, since TorchScript does not say what it takes.
_SIDES = (224, 32, 64, 28, 128, 256, 299, 384, 96, 512)
_HOW_TO_EXPORT = (
    "Export the network with torch.export, for batches of any size: torch.export.save("
    "torch.export.export(net.eval(), (images,), dynamic_shapes=({0: torch.export.Dim('batch')},)), "
    "'net.pt2')."
)


def load_program(path: str) -> nn.Module:
    """Load a program as a network with submodules; no code in the file is run.

    Args:
        path: a file that `torch.export.save` or `torch.jit.save` wrote.

    Raises:
        NACError: it is missing or damaged, could run code, or takes batches of one size only.
    """
    if not Path(path).is_file():
        raise NACError(f"there is no program {path}.")
    parts = check_archive(path)
    if Path(path).suffix != ".pt2":
        if not any(name.endswith("/constants.pkl") for name in parts):
            raise NACError(f"{path} holds weights, not a network. Pass it as the checkpoint.")
        return _load_torchscript(path)
    code = [name for name in parts if any(part in name for part in _CODE)]
    if code:
        raise NACError(f"{path} is not loaded, because it could run code ('{code[0]}').")
    try:
        with _tensors_only():
            program = torch.export.load(path)
            net: nn.Module = torch.export.unflatten(program)
    except Exception as error:  # a damaged file fails in many ways
        reason = f"is damaged or not a program ({type(error).__name__}: {first_line(error)})"
        if isinstance(error, pickle.UnpicklingError):  # its own message advises to run the code
            reason = "holds more than tensors and is not loaded, because it could run code"
        raise NACError(f"{path} {reason}. {_HOW_TO_EXPORT}") from error
    _check_batch_size(path, program)
    return net


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Make `torch.load` read tensors only: `torch.export.load` tries pickles where that fails."""
    log, before = logging.getLogger("torch.export"), os.environ.get(_FORCE)
    os.environ[_FORCE], log.disabled = "1", True  # it also logs and warns about its own formats
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = False
        del os.environ[_FORCE]
        if before is not None:
            os.environ[_FORCE] = before


def _check_batch_size(path: str, program: torch.export.ExportedProgram) -> None:
    """Check that a program takes batches of any size, as the last batch of most datasets needs."""
    inputs = [n for n in program.graph.nodes if n.name in program.graph_signature.user_inputs]
    shapes: Any = (getattr(node.meta.get("val"), "shape", ()) for node in inputs)
    size = next((shape[0] for shape in shapes if len(shape)), None)
    if isinstance(size, int):
        raise NACError(f"{path} was exported for batches of {size} only. {_HOW_TO_EXPORT}")


class Operation(nn.Module):
    """One operation of a graph."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the operation returns."""
        return self.function(*args, **kwargs)


class OperationNetwork(nn.Module):
    """A network with a module for each operation of a graph.

    Args:
        traced: the graph with its parameters; the graph is changed.
    """

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__()
        self._graph = traced.graph
        self.weights = nn.Module()
        for node in list(self._graph.nodes):
            if node.op == "get_attr":
                value = operator.attrgetter(node.target)(traced)
                is_buffer = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
                setattr(self.weights, node.name, nn.Buffer(value) if is_buffer else value)
                node.target = f"weights.{node.name}"
            elif node.op == "call_module":  # checks the sizes of the example
                self._graph.erase_node(node)
            elif node.op == "call_function":
                self.add_module(node.name, Operation(node.target))
                node.op, node.target = "call_module", node.name

    def forward(self, x: Tensor) -> Any:
        """Run the operations in order."""
        out = fx.Interpreter(self, graph=self._graph).run(x)
        return out[0] if isinstance(out, (tuple, list)) else out


def _load_torchscript(path: str) -> nn.Module:
    """Convert TorchScript to a network of operations, and check that it computes the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        try:
            script = torch.jit.load(path, map_location="cpu").eval()
        except (RuntimeError, ValueError) as error:  # its reader is written in C++
            reason = f"is damaged or not TorchScript ({first_line(error)})"
            raise NACError(f"{path} {reason}. {_HOW_TO_EXPORT}") from error
        for shape in product((3, 1), _SIDES):
            images = torch.randn(3, shape[0], shape[1], shape[1])
            # TorchScript raises many kinds of errors, e.g. for images of another size
            with suppress(Exception), torch.no_grad():
                expected = script(images)
                break
        else:
            raise NACError(f"{path} does not take images of a usual size. {_HOW_TO_EXPORT}")
        with suppress(Exception), torch.no_grad():  # e.g. operations that it cannot convert
            from torch._export.converter import TS2EPConverter

            # two images, because a conversion may fix their number
            program = TS2EPConverter(script, (torch.zeros_like(images[:2]),)).convert()
            net = OperationNetwork(program.module()).eval()
            if torch.allclose(expected, net(images), rtol=1e-4, atol=1e-5):
                return net
    raise NACError(f"PyTorch cannot turn {path} into a graph of operations. {_HOW_TO_EXPORT}")
