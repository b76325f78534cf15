"""An environment in which OpenOOD's code runs: it finds what it expects and leaves no trace."""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Iterator

from nac_openood.benchmark.methods.scorer import Given
from nac_openood.network.inputs import device_of
from nac_openood.network.random_state import kept_random_state


@contextmanager
def at_home(given: Given) -> Iterator[None]:
    """Inside the block OpenOOD knows the dataset, is seeded and quiet; afterwards all is undone."""
    from nac_openood.plugin.source import openood_ready

    with ExitStack() as home:
        home.enter_context(openood_ready(on_cpu=device_of(given.net).type == "cpu"))
        home.enter_context(_known(given))
        home.enter_context(kept_random_state(given.seed))
        home.enter_context(redirect_stdout(io.StringIO()))
        if not shows_bars(given):
            home.enter_context(redirect_stderr(io.StringIO()))
        home.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of code that is not ours
        yield


def shows_bars(given: Given) -> bool:
    """Whether OpenOOD's own progress bars may be seen."""
    return given.progress is not False and sys.stderr.isatty()


@contextmanager
def _known(given: Given) -> Iterator[None]:
    """Add the dataset to the tables in which postprocessors look it up, if it is not there."""
    from openood.postprocessors.info import num_classes_dict
    from openood.preprocessors.transform import normalization_dict

    new: list[tuple[dict[str, Any], Any]] = [(num_classes_dict, given.n_classes)]
    if given.std is not None:
        new.append((normalization_dict, [[0.0] * len(given.std), list(given.std)]))
    added = [(table, value) for table, value in new if given.id_name not in table]
    try:
        for table, value in added:
            table[given.id_name] = value
        yield
    finally:
        for table, _ in added:
            table.pop(given.id_name, None)
