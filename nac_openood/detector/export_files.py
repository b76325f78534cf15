"""Traced programs as files: `.pt2` for PyTorch, `.onnx` for ONNX Runtime.

Each writer returns how to run what it has written.
"""

from __future__ import annotations

import importlib
import io
import json
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Mapping

import torch
from torch import Tensor, nn

from nac_openood.detector.program import OUTPUTS
from nac_openood.errors import NACError

#: The name of the input, and of the JSON value about the detector, in both kinds of files.
INPUT, ABOUT = "image", "nac_openood"
#: The most that protobuf, in which ONNX files are written, can hold.
_LARGEST_ONNX = 2**31 - 1

#: Runs a file on a batch; returns the `OUTPUTS` by name.
Run = Callable[[Tensor], Mapping[str, Tensor]]


def write_pt2(
    traced: torch.export.ExportedProgram, x: Tensor, path: Path, about: Mapping[str, Any]
) -> Run:
    """Write what `torch.export.load` reads, with `about` among its extra files.

    Args:
        traced: the program.
        x: a batch for it.
        path: where to write.
        about: JSON values.
    """
    written = io.BytesIO()  # with a file on a full disk, torch would end the process
    torch.export.save(traced, written, extra_files={ABOUT: json.dumps(about)})
    path.write_bytes(written.getbuffer())
    with path.open("rb") as file:
        run: Run = torch.export.load(file).module()
    return run


def write_onnx(
    traced: torch.export.ExportedProgram, x: Tensor, path: Path, about: Mapping[str, Any]
) -> Run:
    """Write one ONNX file, weights included, with `about` in its metadata.

    The arguments are those of `write_pt2`.
    """
    runtime = _onnxruntime()
    program: Any = torch.onnx.export(
        traced,
        (x,),
        dynamo=True,
        input_names=[INPUT],
        output_names=list(OUTPUTS),
        dynamic_shapes=({0: "batch"},),
        verbose=False,
    )
    program.model.metadata_props[ABOUT] = json.dumps(about)
    program.save(path, external_data=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(batch: Tensor) -> Mapping[str, Tensor]:
        found = session.run(list(OUTPUTS), {INPUT: batch.cpu().numpy()})
        return {name: torch.from_numpy(array) for name, array in zip(OUTPUTS, found)}

    return run


def check_onnx(net: nn.Module, x: Tensor) -> None:
    """Refuse what cannot become an ONNX file, before the work is done."""
    _onnxruntime()
    if x.dtype == torch.bfloat16:
        raise NACError(
            "ONNX Runtime takes no bfloat16 arrays: export a float32 network (net.float()), or "
            "to a .pt2 file."
        )
    size = sum(t.numel() * t.element_size() for t in chain(net.parameters(), net.buffers()))
    if size > _LARGEST_ONNX:
        raise NACError(
            f"the weights have {size / 2**30:.1f} GiB, and one ONNX file holds at most "
            f"{_LARGEST_ONNX / 2**30:.1f} GiB. Export to a .pt2 file."
        )


def _onnxruntime() -> Any:
    """The module, if all that writing ONNX files takes is installed."""
    try:
        for name in ("onnx", "onnxscript"):
            importlib.import_module(name)
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise NACError(
            f"exporting to ONNX needs {error.name}, which is not installed: "
            "pip install 'nac-openood[export]'. A .pt2 file needs nothing else."
        ) from None
