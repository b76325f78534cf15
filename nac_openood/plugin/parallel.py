"""OpenOOD's evaluation in several processes, which `torchrun` starts: each of them takes its share.

Every process runs the script. Passes over data, of NAC and of any other postprocessor, are shared
batch by batch, so that all processes get the results of one. The first process writes the files.
"""

from __future__ import annotations

import builtins
import os
import tempfile
from contextlib import ExitStack
from typing import Any, Callable, Sequence

import numpy as np
import torch

from nac_openood.detector.batches import Batch, map_shards
from nac_openood.distributed import is_main, world
from nac_openood.plugin.patches import replace_attribute


def share_evaluation(undo: ExitStack) -> None:
    """Share the passes of OpenOOD's evaluator until `undo` is closed; alone, change nothing."""
    if world().size == 1:
        return
    from openood.evaluation_api.evaluator import Evaluator
    from openood.postprocessors.base_postprocessor import BasePostprocessor

    for owner, name, shared in (
        (BasePostprocessor, "inference", _inference),
        (Evaluator, "_classifier_inference", _classification),
    ):
        replace_attribute(owner, name, shared(getattr(owner, name)), undo)
    if not is_main():
        _write_nothing(undo)


def _inference(alone: Callable[..., Any]) -> Callable[..., Any]:
    def inference(self: Any, net: Any, data_loader: Any, progress: bool = True) -> Any:
        parts = _shared("inference", data_loader, lambda one: alone(self, net, one, False))
        return tuple(np.concatenate(column) for column in zip(*parts))

    return inference


def _classification(alone: Callable[..., Any]) -> Callable[..., Any]:
    def inference(self: Any, data_loader: Any, msg: str = "", progress: bool = True) -> Any:
        parts = _shared("accuracy", data_loader, lambda one: alone(self, one, msg, False))
        return tuple(torch.cat(column) for column in zip(*parts))

    return inference


def _shared(step: str, loader: Any, of: Callable[[Sequence[Any]], Any]) -> list[Any]:
    """What `of` makes of every batch, given as a loader that yields it only."""

    def work(batch: Batch) -> Any:
        return of([{"data": batch.data, "label": batch.labels()}])

    return list(map_shards(step, loader, work))


def _write_nothing(undo: ExitStack) -> None:
    """Files that the script opens to write vanish, and it may create folders that exist."""
    opened, made = builtins.open, os.makedirs
    elsewhere = undo.enter_context(tempfile.TemporaryDirectory())

    def open_elsewhere(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax") and not isinstance(file, int) and file != os.devnull:
            file = os.path.join(elsewhere, "file")  # noqa: PTH118
            mode = mode.replace("x", "w")
        return opened(file, mode, *args, **options)

    def make(name: Any, mode: int = 0o777, exist_ok: bool = True) -> None:
        made(name, mode, exist_ok=True)

    replace_attribute(builtins, "open", open_elsewhere, undo)
    replace_attribute(os, "makedirs", make, undo)
