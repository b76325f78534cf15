"""Patches that let OpenOOD run on NumPy 2, on new Pythons and without a GPU.

Nothing is patched on import. `apply_compat()` applies those of `PATCHES` that this machine needs,
`remove_compat()` removes them, and `compat()` does both around a block. OpenOOD's files are not
changed: the patches restore names that NumPy dropped, and redirect to the CPU what OpenOOD sends
to a GPU that does not exist.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Callable, Iterable, Iterator, Optional

import torch

from nac_openood.errors import NACError
from nac_openood.plugin import patches


@dataclass(frozen=True)
class Patch:
    """One change, why it is made and when it is needed.

    Attributes:
        name: its name in `apply_compat` and `remove_compat`.
        reason: what fails without it.
        needed: whether this machine needs it; called when patches are applied.
        apply: makes the change, and registers with the stack it is given how to undo it.
    """

    name: str
    reason: str
    needed: Callable[[], bool]
    apply: Callable[[ExitStack], None]


def apply_compat(on_cpu: bool = False) -> tuple[str, ...]:
    """Apply the patches that are needed and not applied yet, either all of them or none.

    Args:
        on_cpu: keep OpenOOD on the CPU even if there is a GPU.

    Returns:
        The names of the patches applied by this call; pass them to `remove_compat` to remove
        exactly these. A second call applies nothing and returns `()`.
    """
    new: list[str] = []
    try:
        for patch in PATCHES:
            wanted = patch.needed() or (on_cpu and patch.needed is _no_gpu)
            if patch.name not in applied and wanted:
                applied[patch.name] = ExitStack()
                new.append(patch.name)
                patch.apply(applied[patch.name])
    except BaseException:
        remove_compat(new)
        raise
    return tuple(new)


def remove_compat(names: Optional[Iterable[str]] = None) -> None:
    """Remove the patches `names` (default: all), the latest first."""
    known = [patch.name for patch in PATCHES]
    wanted = set(known if names is None else names)
    if wanted - set(known):
        raise NACError(
            f"Expected names of compat patches, {', '.join(known)}, but got "
            f"{', '.join(sorted(wanted - set(known)))}. Pass what apply_compat() returned."
        )
    for patch in reversed(PATCHES):
        if patch.name in wanted and patch.name in applied:
            applied.pop(patch.name).close()


@contextmanager
def compat(on_cpu: bool = False) -> Iterator[tuple[str, ...]]:
    """Apply what is needed until the block ends; patches applied before it stay."""
    names = apply_compat(on_cpu)
    try:
        yield names
    finally:
        remove_compat(names)


def _no_gpu() -> bool:
    return not torch.cuda.is_available()


PATCHES: tuple[Patch, ...] = (
    Patch(
        "numpy-sctypes",
        "imgaug 0.4.0, which OpenOOD imports, reads np.sctypes; NumPy 2 dropped it",
        lambda: bool(patches.missing_in_numpy(["sctypes"])),
        partial(patches.add_to_numpy, {"sctypes": patches.NUMPY_SCTYPES}),
    ),
    Patch(
        "numpy-aliases",
        "OpenOOD uses np.float (ECE evaluator), np.int (CutMix) and np.product (PatchCore)",
        lambda: bool(patches.missing_in_numpy(patches.NUMPY_ALIASES)),
        partial(patches.add_to_numpy, patches.NUMPY_ALIASES),
    ),
    Patch(
        "fork-workers",
        "OpenOOD's scripts have no __main__ guard: workers that are not forked run them again",
        lambda: sys.platform == "linux" and patches.workers_are_spawned(),
        patches.fork_workers,
    ),
    Patch(
        "cuda-to-cpu",
        "OpenOOD calls .cuda() and allocates on 'cuda' even if there is no GPU",
        _no_gpu,
        patches.redirect_cuda,
    ),
    Patch(
        "cuda-float-tensor",
        "MDSEns and GMM use torch.cuda.FloatTensor, a type, which 'cuda-to-cpu' cannot redirect",
        _no_gpu,
        partial(patches.replace_attribute, torch.cuda, "FloatTensor", patches.CpuFloatTensor),
    ),
    Patch(
        "load-on-cpu",
        "checkpoints and pickled postprocessors saved on a GPU are loaded to that GPU",
        _no_gpu,
        patches.load_on_cpu,
    ),
)

#: The patches that are applied now, and what undoes each of them.
applied: dict[str, ExitStack] = {}
