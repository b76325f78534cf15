"""Exported programs: a network and its weights in one file, without the code that made them.

`torch.export` keeps which operation came from which submodule, so its programs have layers that
can be read. TorchScript becomes a network of operations where PyTorch can take it apart
(`torchscript.py`).
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Optional

import torch
from torch import nn

from nac_openood.errors import NACError, first_line
from nac_openood.paths import is_file
from nac_openood.sources.archives import check_archive, no_code_run, refuse_code
from nac_openood.sources.network_kind import NetworkKind
from nac_openood.sources.torchscript import is_script, network_of_script

_EXPORTED = ".pt2"
#: What people call TorchScript files.
_SCRIPTS = (".pt", ".pth", ".ts", ".torchscript", ".jit")
_HOW_TO_EXPORT = (
    "Export the network with torch.export, for batches of any size: torch.export.save("
    "torch.export.export(net.eval(), (images,), dynamic_shapes=({0: torch.export.Dim('batch')},)), "
    "'net.pt2')."
)


class ExportedPrograms(NetworkKind):
    """Programs of torch.export, and TorchScript."""

    form = "a program FILE.pt2 of torch.export, or FILE.pt of TorchScript"

    def is_mine(self, arch: str) -> bool:
        """Whether `arch` is the path of a program rather than a name."""
        return Path(arch).suffix == _EXPORTED or (Path(arch).suffix in _SCRIPTS and is_file(arch))

    def build(self, arch: str, n_classes: int) -> nn.Module:
        """Refused: weights are part of a program."""
        raise NACError(f"the program {arch} has its weights in it: leave out the checkpoint.")

    def with_weights(self, arch: str, n_classes: int, weights: Optional[str]) -> nn.Module:
        """The program as a network with submodules."""
        if weights is not None:
            return self.build(arch, n_classes)
        if not is_file(arch):
            raise NACError(f"there is no program {arch}.")
        check_archive(arch)
        if Path(arch).suffix != _EXPORTED:
            if is_script(arch):
                return network_of_script(arch, _HOW_TO_EXPORT)
            raise NACError(
                f"{arch} holds weights, not a network. Pass it as the checkpoint, and say with "
                "`arch` which network it belongs to."
            )
        try:
            refuse_code(arch)
            with no_code_run():
                program = torch.export.load(arch)
                net: nn.Module = torch.export.unflatten(program)
        except NACError:
            raise
        except pickle.UnpicklingError as error:  # whose own message advises to run the code
            raise NACError(
                f"{arch} holds more than tensors and is not loaded, because it could run code. "
                f"{_HOW_TO_EXPORT}"
            ) from error
        except Exception as error:  # a damaged file fails in many ways
            raise NACError(
                f"{arch} is damaged or not a program ({type(error).__name__}: "
                f"{first_line(error)}). {_HOW_TO_EXPORT}"
            ) from error
        _refuse_fixed_batch(arch, program)
        return net


def _refuse_fixed_batch(arch: str, program: torch.export.ExportedProgram) -> None:
    """A program for batches of one size would fail on the last batch of most datasets."""
    given = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        shape: Any = getattr(node.meta.get("val"), "shape", ())
        if node.op == "placeholder" and node.name in given and len(shape):
            if isinstance(shape[0], int):
                raise NACError(
                    f"{arch} was exported for batches of {shape[0]} only. {_HOW_TO_EXPORT}"
                )
            return
