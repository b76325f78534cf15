"""A calibrated detector and its network in one file that runs without this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

import torch
from torch import Tensor, nn

from nac_openood import files
from nac_openood.__about__ import __version__
from nac_openood.core.pvalues import MIN_SAMPLES, PValues
from nac_openood.core.rule import Rule
from nac_openood.detector.export_files import check_onnx, write_onnx, write_pt2
from nac_openood.detector.program import DetectorProgram
from nac_openood.detector.verdicts import checked_alpha
from nac_openood.errors import NACError, NotFittedError
from nac_openood.network.inputs import prepare
from nac_openood.network.random_state import kept_random_state
from nac_openood.network.replica import unwrap

if TYPE_CHECKING:
    from nac_openood.detector.detector import NACDetector

_WRITERS = {".onnx": write_onnx, ".pt2": write_pt2}
#: Larger differences are errors of a program. Another runtime rounds differently, which can move
#: a sample from one step of the p-values to the next.
_TOLERANCE = 1e-3
#: What ONNX Runtime says about operations that it has in float32 only, such as convolutions.
_NOT_IMPLEMENTED = "NOT_IMPLEMENTED"


def export(detector: NACDetector, path: files.PathLike, example: Any, *, alpha: float) -> None:
    """Write a detector and its network as one program; see `NACDetector.export`."""
    suffix, alpha = _suffix(path), checked_alpha(alpha)
    rule, p_values = _calibrated(detector)
    x = _batch(detector.net, example)
    if suffix == ".onnx":
        check_onnx(detector.net, x)
    with kept_random_state(), torch.no_grad(), files.replacing(path) as temporary:
        p_value = detector.judge(x).p_value  # a pass, in which a detector may find layouts
        program = DetectorProgram(
            detector.net, detector.places, rule, p_values, alpha=alpha, portable=suffix == ".onnx"
        )
        logits = program(x)["logits"]  # also makes what the rule makes once, outside of the trace
        try:
            traced = _traced(program, x)
            found = _WRITERS[suffix](traced, x, temporary, _about(detector, alpha))(x)
        except NACError:
            raise
        except Exception as error:  # tracers and runtimes raise whatever they like
            if getattr(error, "errno", None):  # of the disk; `replacing` tells it
                raise
            raise _failed(detector.net, error) from error
        _check_equal(found, logits.cpu().double(), p_value)


def _suffix(path: files.PathLike) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        raise NACError(
            f"cannot export to {path}: expected a name that ends in .onnx (for ONNX Runtime) or "
            ".pt2 (for torch.export.load)."
        )
    return suffix


def _calibrated(detector: NACDetector) -> tuple[Rule, PValues]:
    """The rule and the p-values, if there are any and they need only a forward pass."""
    rule = detector.rule_
    if rule is None:
        raise NotFittedError("this NACDetector is not fitted: call fit and calibrate first.")
    gradients = sorted(rule.needs.gradients)
    if gradients:
        raise NACError(
            f"rule '{rule.name}' cannot be exported: it needs gradients of the layers {gradients}, "
            "and an exported program has no backward pass. Use rule='nac_plus', which needs none."
        )
    if detector.pvalues_ is None:
        raise NotFittedError(
            "an exported detector returns p-values, which this one does not have yet: call "
            f"calibrate(loader) with at least {MIN_SAMPLES} held-out in-distribution samples."
        )
    return rule, detector.pvalues_


def _batch(net: nn.Module, example: Any) -> Tensor:
    if not isinstance(example, Tensor):
        raise NACError(
            "expected `example` to be a batch [batch, ...] of the kind that the program will be "
            f"given, as one tensor; got {type(example).__name__}."
        )
    x: Tensor = prepare(unwrap(net), example)
    # of one sample, a tracer would conclude that every batch has one
    return torch.cat([x, x]) if x.shape[0] == 1 else x


def _about(detector: NACDetector, alpha: float) -> dict[str, Any]:
    """What whoever runs the file may want to know, as JSON values."""
    return {
        "version": __version__,
        "rule": detector.rule,
        "layers": list(detector.layers),
        "alpha": alpha,
        "classes": list(detector.classes_),
    }


def _traced(program: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch")
    return torch.export.export(program, (x,), dynamic_shapes=({0: batch},), strict=False)


def _failed(net: nn.Module, error: Exception) -> NACError:
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    is_double = any(weight.dtype == torch.float64 for weight in net.parameters())
    if _NOT_IMPLEMENTED in said and is_double:
        return NACError(
            f"ONNX Runtime cannot run {type(net).__name__} in float64 ({said.strip()}). Fit and "
            "export a detector for the float32 network (net.float()), or export to a .pt2 file."
        )
    return NACError(
        f"PyTorch cannot export {type(net).__name__} ({type(error).__name__}: {said.strip()}). Its "
        "forward must do the same whatever the batch size and the content of the batch. Try "
        "torch.export.export on the network alone."
    )


def _check_equal(found: Mapping[str, Tensor], logits: Tensor, p_value: Tensor) -> None:
    by_logits = (found["logits"].cpu().double() - logits).abs().max() / logits.abs().amax().clamp(1)
    by_p_value = (found["p_value"].cpu() - p_value).abs().nanmedian()
    if by_logits > _TOLERANCE or by_p_value > _TOLERANCE:
        raise NACError(
            "the exported program does not compute what the detector computes: logits differ by "
            f"{by_logits:.2g}, p-values by {by_p_value:.2g}. Nothing was written. Export to the "
            "other kind of file (.onnx or .pt2), or report this with the network's class."
        )
