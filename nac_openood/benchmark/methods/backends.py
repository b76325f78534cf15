"""Whose implementation of a method runs: this package's, OpenOOD's or pytorch-ood's."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterable, Sequence, Union

from nac_openood.benchmark.methods.nac import NACScorer
from nac_openood.benchmark.methods.scorer import Scorer
from nac_openood.benchmark.methods.table import (
    AUTO_BACKEND,
    BACKENDS,
    OPENOOD,
    PYTORCH_OOD,
    Absent,
    Method,
)
from nac_openood.errors import NACError
from nac_openood.files import is_file
from nac_openood.progress import Say
from nac_openood.sources.checkpoints import Checkpoint

_OPENGAN = "opengan"
_DISCRIMINATOR = "best_DNet.ckpt"
_TITLES = {OPENOOD: "OpenOOD", PYTORCH_OOD: "pytorch-ood"}

Make = Callable[[Method, Checkpoint], Scorer]


def usable_backends(name: str, say: Say = lambda text: None) -> tuple[str, ...]:
    """The backends that may be used here, the preferred one first.

    Args:
        name: one of `BACKENDS`; "auto" prefers OpenOOD where it is installed.
        say: is told if there is none, so that no baseline can run.

    Raises:
        NACError: the name is unknown, or the backend was asked for by name and is not installed.
    """
    from nac_openood.benchmark.methods.pytorch_ood import detectors
    from nac_openood.plugin.source import has_openood, openood_ready

    if name not in BACKENDS:
        raise NACError(f"`backend` must be one of {', '.join(BACKENDS)}; got {name!r}.")
    if name == OPENOOD:
        with openood_ready():
            return (OPENOOD,)
    found = (OPENOOD, PYTORCH_OOD) if name == AUTO_BACKEND and has_openood() else (PYTORCH_OOD,)
    try:
        detectors()
    except Absent as error:
        if name != AUTO_BACKEND:
            raise
        if OPENOOD not in found:
            say(f"no baselines, NAC alone: OpenOOD is not installed, and {error}")
    return found


def scorers(
    rows: Iterable[Method],
    backend: str,
    *,
    nac: Callable[[Method], Scorer] = lambda method: NACScorer(rule=str(method.rule)),
    opengan: Union[str, Path, None] = None,
    say: Say = lambda text: None,
) -> Make:
    """A function that makes the scorer of a method for a checkpoint.

    Args:
        rows: the methods; a backend is only looked for if one of them needs it.
        backend: one of `BACKENDS`; see `usable_backends`.
        nac: makes the scorer of a method that is a rule of this package.
        opengan: OpenGAN's trained discriminator; None looks beside the checkpoint.
        say: is told if no baseline can run.
    """
    baselines = any(row.rule is None and row.scorer is None for row in rows)
    backends = usable_backends(backend, say) if baselines else ()

    def make(method: Method, checkpoint: Checkpoint) -> Scorer:
        if method.scorer is not None:
            return method.scorer()
        if method.rule is not None:
            return nac(method)
        if _backend_of(method, backends) == PYTORCH_OOD:
            from nac_openood.benchmark.methods.pytorch_ood import PytorchOODScorer

            return PytorchOODScorer(method)
        if method.name == _OPENGAN:
            return _opengan(Path(opengan or Path(checkpoint.path).parent / _DISCRIMINATOR))
        from nac_openood.benchmark.methods.openood import OpenOODScorer

        return OpenOODScorer(method)

    return make


def _backend_of(method: Method, backends: Sequence[str]) -> str:
    """The first of the backends that implements a method."""
    has = {OPENOOD: method.openood, PYTORCH_OOD: method.pytorch_ood}
    if not any(has.values()):
        raise NACError(f"nobody implements {method.title}: pass `scorer` to its `Method`.")
    for name in backends:
        if has[name]:
            return name
    where = [name for name in has if has[name]]
    raise Absent(
        f"{method.title} is not in {' or '.join(_TITLES[b] for b in backends)}, only in "
        f"{' and '.join(_TITLES[b] for b in where)}: pass `backend={where[0]!r}`."
    )


def _opengan(discriminator: Path) -> Scorer:
    if not is_file(discriminator):
        raise Absent(
            f"OpenGAN needs a discriminator trained by OpenOOD, and there is no {discriminator}. "
            "Train one with OpenOOD's main.py (pipeline train_opengan) and pass it as `opengan`."
        )
    from nac_openood.benchmark.methods.openood import OpenGANScorer

    return OpenGANScorer(discriminator)
