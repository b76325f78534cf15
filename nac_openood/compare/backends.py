"""Whose implementation of a method runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Callable, Optional

from nac_openood.bench.checkpoints import Checkpoint
from nac_openood.bench.methods import NAC, Absent
from nac_openood.bench.scorer import Scorer
from nac_openood.bench.torch_ood import library
from nac_openood.plugin.source import has_openood, openood_ready

OPENOOD, PYTORCH_OOD, AUTO = "openood", "pytorch-ood", "auto"
BACKENDS = (AUTO, OPENOOD, PYTORCH_OOD)
_OPENGAN = "opengan"
_DISCRIMINATOR = "best_DNet.ckpt"

Make = Callable[[str, Checkpoint], Scorer]


def chosen_backend(name: str, say: Callable[[str], None] = lambda text: None) -> str:
    """The backend that "auto" stands for here: OpenOOD's own where it is installed.

    Args:
        name: one of `BACKENDS`.
        say: is told where there is neither of them, and the baselines will be absent.

    Raises:
        NACError: the backend was asked for by name and is not here.
    """
    if name == OPENOOD:
        with openood_ready():
            return name
    if name == AUTO and has_openood():
        return OPENOOD
    try:
        library.detectors()
    except Absent as error:
        if name != AUTO:
            raise
        say(f"without baselines, NAC alone: there is no OpenOOD, and {error}")
    return PYTORCH_OOD


def scorers(backend: str, nac: Callable[[], Scorer], opengan: Optional[Path] = None) -> Make:
    """How to make each method's scorer.

    Args:
        backend: "openood" or "pytorch-ood".
        nac: makes NAC's.
        opengan: OpenGAN's trained discriminator; None looks beside the checkpoint.
    """
    return partial(_make, backend, nac, opengan)


def _make(
    backend: str,
    nac: Callable[[], Scorer],
    opengan: Optional[Path],
    method: str,
    checkpoint: Checkpoint,
) -> Scorer:
    if method == NAC:
        return nac()
    if method == _OPENGAN:
        return _opengan(backend, opengan or Path(checkpoint.path).parent / _DISCRIMINATOR)
    if backend == OPENOOD:
        from nac_openood.plugin.baselines import OpenOODScorer

        return OpenOODScorer(method)
    from nac_openood.bench.torch_ood import make

    return make(method)


def _opengan(backend: str, discriminator: Path) -> Scorer:
    if backend != OPENOOD:
        raise Absent("OpenGAN needs OpenOOD (--backend openood); pytorch-ood does not have it.")
    if not discriminator.is_file():
        raise Absent(
            f"OpenGAN needs a discriminator trained by OpenOOD, and there is no {discriminator}. "
            "Train it with OpenOOD's main.py (pipeline train_opengan) and name it with --opengan."
        )
    from nac_openood.plugin.opengan import OpenGANScorer

    return OpenGANScorer(discriminator)
