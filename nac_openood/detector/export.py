"""A calibrated detector and its network in one file that runs without this package.

`.pt2` is for `torch.export.load`, `.onnx` for ONNX Runtime.
"""

from __future__ import annotations

import importlib
import io
import json
import math
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.detector.outcomes import checked_alpha
from nac_openood.errors import NACError, NotFittedError, first_line
from nac_openood.network.inputs import prepare
from nac_openood.network.probe import ReadNetwork
from nac_openood.network.replica import kept_random_state, unwrap

if TYPE_CHECKING:
    from nac_openood.detector.detector import NACDetector

#: The names of the input, of the outputs, and of the JSON value about the detector.
INPUT, OUTPUTS, ABOUT = "image", ("logits", "score", "p_value", "decision"), "nac_openood"
#: Larger differences mean that a program is wrong. Another runtime rounds differently, which can
#: move a sample from one step of the p-values to the next.
_TOLERANCE = 1e-3

#: Runs a file on a batch; returns the `OUTPUTS` by name.
Run = Callable[[Tensor], Mapping[str, Tensor]]


def export(detector: NACDetector, path: files.PathLike, example: Any, *, alpha: float) -> None:
    """Write a detector and its network as one program; see `NACDetector.export`."""
    suffix, alpha = files.as_path(path).suffix.lower(), checked_alpha(alpha)
    if suffix not in (".onnx", ".pt2"):
        raise NACError(
            f"cannot export to {path}: expected a name that ends in .onnx (for ONNX Runtime) or "
            ".pt2 (for torch.export.load)."
        )
    if not isinstance(example, Tensor):
        raise NACError(
            "expected `example` to be a batch [batch, ...] of the kind that the program will "
            f"get, as one tensor; got {type(example).__name__}."
        )
    if detector.autocast is not None:
        raise NACError(
            f"this detector was fitted under autocast to {detector.autocast}, and an exported "
            "program runs in the network's own precision. Fit one without `autocast`."
        )
    x: Tensor = prepare(unwrap(detector.net), example)
    # from a single sample, a tracer would conclude that every batch has one
    x = torch.cat([x, x]) if x.shape[0] == 1 else x
    summary = detector.fit_summary_
    write = _write_onnx if suffix == ".onnx" else _write_pt2
    about = {
        "version": __version__,
        "rule": detector.rule,
        "layers": list(detector.layers),
        "alpha": alpha,
        "classes": list(detector.classes_),
        # the shape and the distribution of the inputs of the fit
        "inputs": None if summary is None or not summary.inputs else asdict(summary.inputs),
    }
    with kept_random_state(), torch.no_grad(), files.replacing(path) as temporary:
        detector.prepare(x)  # finds the layouts of layers
        program = DetectorProgram(detector, alpha=alpha, portable=suffix == ".onnx")
        detector._p_values().warn_if_never(alpha)
        p_value = detector.judge(x).p_value
        logits = program(x)["logits"]  # fills the rule's caches outside of the trace
        shapes = ({0: torch.export.Dim("batch")},)
        try:
            traced = torch.export.export(program, (x,), dynamic_shapes=shapes, strict=False)
            found = write(traced, x, temporary, json.dumps(about))(x)
        except (NACError, OSError):  # `replacing` explains a full disk
            raise
        except Exception as error:  # tracers and runtimes may raise anything
            raise NACError(
                f"PyTorch cannot export {type(detector.net).__name__} ({type(error).__name__}: "
                f"{first_line(error)}). Its forward must do the same for every batch. ONNX Runtime "
                "has few operations in float64: try net.float() or a .pt2 file."
            ) from error
        _check_equal(found, logits.cpu().double(), p_value)


def _check_equal(found: Mapping[str, Tensor], logits: Tensor, p_value: Tensor) -> None:
    by_logits = (found["logits"].cpu().double() - logits).abs().max() / logits.abs().amax().clamp(1)
    by_p_value = (found["p_value"].cpu() - p_value).abs().nanmedian()
    if by_logits > _TOLERANCE or by_p_value > _TOLERANCE:
        raise NACError(
            "the exported program does not compute what the detector computes: logits differ by "
            f"{by_logits:.2g}, p-values by {by_p_value:.2g}. Nothing was written. Export to the "
            "other kind of file (.onnx or .pt2), or report this with the network's class."
        )


class DetectorProgram(nn.Module):
    """What `NACDetector` computes for a batch, as a module that can be traced.

    Args:
        detector: calibrated, with a rule that needs no gradients. The network's weights are
            shared, not copied.
        alpha: a sample is called out-of-distribution if its p-value is at most this.
        portable: whether to use only operations that other runtimes have, too. The results are
            the same.
    """

    def __init__(self, detector: NACDetector, *, alpha: float, portable: bool) -> None:
        super().__init__()
        rule, pvalues = detector._fitted(), detector.pvalues_
        if rule.needs.gradients:
            raise NACError(
                f"rule '{rule.name}' cannot be exported: it needs gradients of the layers "
                f"{sorted(rule.needs.gradients)}, and an exported program has no backward pass. "
                "Use rule='nac_plus', which needs none."
            )
        if pvalues is None:
            raise NotFittedError(
                "an exported detector returns p-values, which this one does not have yet: call "
                "calibrate(loader) with held-out in-distribution samples."
            )
        self.network = ReadNetwork(detector.net, detector.locations, mean=rule.needs.mean)
        # a copy: tracing must not change the rule of the detector
        self._rule = type(rule).restore(rule.settings(), rule.tensors())
        self._pvalues, self._alpha, self._portable = pvalues, alpha, portable

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The `OUTPUTS` for a batch `[batch, ...]` by name.

        `logits` are `[batch, classes]`; `score` and `p_value` are float64 `[batch]`; `decision`
        is bool `[batch]`, True where a sample is called out-of-distribution, as it is where its
        readings are NaN or Inf.
        """
        readings = self.network(x)
        with Portable() if self._portable else nullcontext():
            score = self._rule.score(readings)
            p_value = self._pvalues(score, readings.logits.argmax(dim=1))
            decision = ~(p_value > self._alpha)
        return dict(zip(OUTPUTS, (readings.logits, score, p_value, decision)))


# -- files: each writer returns a function that runs the file -------------------------------


def _write_pt2(traced: torch.export.ExportedProgram, x: Tensor, path: Path, about: str) -> Run:
    content = io.BytesIO()  # with a file on a full disk, torch would end the process
    torch.export.save(traced, content, extra_files={ABOUT: about})
    path.write_bytes(content.getbuffer())
    with path.open("rb") as file:
        run: Run = torch.export.load(file).module()
    return run


def _write_onnx(traced: torch.export.ExportedProgram, x: Tensor, path: Path, about: str) -> Run:
    """One file, weights included, with `about` in its metadata."""
    try:
        runtime, *_ = map(importlib.import_module, ("onnxruntime", "onnx", "onnxscript"))
    except ImportError as error:
        raise NACError(
            f"exporting to ONNX needs {error.name}, which is not installed: "
            "pip install 'nac-openood[export]'. A .pt2 file needs nothing else."
        ) from None
    program: Any = torch.onnx.export(
        traced, (x,), dynamo=True, input_names=[INPUT], output_names=list(OUTPUTS),
        dynamic_shapes=({0: "batch"},), verbose=False,
    )  # fmt: skip
    program.model.metadata_props[ABOUT] = about
    program.save(path, external_data=False)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(batch: Tensor) -> Mapping[str, Tensor]:
        found = session.run(list(OUTPUTS), {INPUT: batch.cpu().numpy()})
        return {name: torch.from_numpy(array) for name, array in zip(OUTPUTS, found)}

    return run


# -- programs for other runtimes ------------------------------------------------------------

#: Operations, by the names that PyTorch gives them, whose Python numbers may be tensors as well.
_ARITHMETIC = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "lt", "le", "gt", "ge", "clamp")
    for prefix, suffix in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
)


class Portable(TorchFunctionMode):
    """A context in which results stay the same and can be traced for other runtimes, e.g. ONNX.

    ONNX has no `torch.searchsorted`, so it is replaced by simpler operations. Its exporter rounds
    Python numbers to float32, so they become float64 tensors, which it leaves as they are.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by PyTorch in place of its functions."""
        kwargs = kwargs or {}
        if func is torch.searchsorted:
            return searchsorted(*args, **kwargs)
        if func is torch.bucketize:
            return searchsorted(args[1], args[0], **kwargs)
        if getattr(func, "__name__", "") in _ARITHMETIC:
            # with integer tensors, a float64 tensor would change the type of the result
            values = (*args, *kwargs.values())
            floats = any(isinstance(v, Tensor) and v.is_floating_point() for v in values)
            dtype = torch.float64 if floats else torch.get_default_dtype()
            args, kwargs = tree_map_only(
                float, lambda number: torch.tensor(number, dtype=dtype), (args, kwargs)
            )
        return func(*args, **kwargs)


def searchsorted(ordered: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """How many of `ordered` are smaller than each value, or with `right` not larger.

    The same as `torch.searchsorted`, except that NaN has none below it. A value is compared with
    the first number of every block, then with all of one block, which takes memory for `sqrt(n)`
    numbers per value.

    Args:
        ordered: in increasing order, `[n]`.
        values: any shape.
        right: whether to count equal ones, too.

    Returns:
        int64 in the shape of `values`.
    """
    n = ordered.shape[0]
    size = math.isqrt(max(0, n - 1)) + 1
    padding = ordered.new_full((size * size - n,), float("inf"))
    blocks = torch.cat([ordered, padding]).reshape(size, size)
    x = values.reshape(-1, 1)

    def count(numbers: Tensor) -> Tensor:
        return (numbers <= x if right else numbers < x).sum(dim=1)

    block = (count(blocks[:, 0]) - 1).clamp(min=0)
    found = block * size + count(blocks.index_select(0, block))
    return found.clamp(max=n).reshape(values.shape)
