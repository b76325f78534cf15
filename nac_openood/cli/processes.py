"""Commands that `torchrun` starts several times: the processes share the work, one speaks."""

from __future__ import annotations

import os
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Callable

from nac_openood.errors import NACError

#: The commands whose work can be shared.
SHARED = ("fit", "score", "search", "compare", "run")


def run_shared(name: str, run: Callable[[], int]) -> int:
    """Run a command in one of several processes and return its exit code.

    The first process prints and writes files. The others say nothing but errors of their own.
    """
    if name not in SHARED:
        raise NACError(
            f"nac-openood {name} runs in one process: start it without torchrun. Several processes "
            f"can share {', '.join(SHARED)}."
        )
    from nac_openood.distributed import joined, was_shared, with_rank

    with ExitStack() as stack:
        world = stack.enter_context(joined())
        if world.rank:
            _be_quiet(stack)
        try:
            return run()
        except NACError as error:
            if world.rank and was_shared(error):
                return 1
            if world.rank:
                raise NACError(with_rank(world.rank, str(error))) from error
            raise


def _be_quiet(stack: ExitStack) -> None:
    import warnings

    nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    stack.enter_context(redirect_stdout(nowhere))
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
