"""A place for OpenOOD's code to run in: it finds what it expects, and leaves nothing behind."""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Iterator

import torch
from torch import nn

from nac_openood.bench.scorer import Given
from nac_openood.core.undisturbed import frozen, undisturbed
from nac_openood.plugin.source import openood_ready


@contextmanager
def at_home(given: Given) -> Iterator[None]:
    """OpenOOD runs here, knows the data set, draws as seeded, is quiet and leaves no trace."""
    with ExitStack() as home:
        home.enter_context(openood_ready(on_cpu=_device(given.net).type == "cpu"))
        home.enter_context(_known(given))
        home.enter_context(undisturbed(given.net, given.seed))
        home.enter_context(frozen(given.net))
        home.enter_context(_same_hooks(given.net))
        home.enter_context(redirect_stdout(io.StringIO()))
        if not shows_bars(given):
            home.enter_context(redirect_stderr(io.StringIO()))
        home.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of code that is not ours to mend
        yield


@contextmanager
def _same_hooks(net: nn.Module) -> Iterator[None]:
    """Hooks of the block are gone after it; OpenOOD's Gram leaves its own where it is stopped."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    places = [getattr(module, kind) for module in net.modules() for kind in kinds]
    before = [set(place) for place in places]
    try:
        yield
    finally:
        for place, ids in zip(places, before):
            for new in set(place) - ids:
                del place[new]


def _device(net: nn.Module) -> torch.device:
    return next((p.device for p in net.parameters()), torch.device("cpu"))


def shows_bars(given: Given) -> bool:
    """Whether OpenOOD's own progress bars may be seen."""
    return given.progress is not False and sys.stderr.isatty()


@contextmanager
def _known(given: Given) -> Iterator[None]:
    """The data set is in the tables that postprocessors look it up in, where it was not."""
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
