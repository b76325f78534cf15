"""What a study may be told; every study looks only at what concerns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from nac_openood.progress import Say


@dataclass(frozen=True)
class Options:
    """Options of the studies.

    Args:
        against: "paper" puts the published numbers beside the measured ones.
        seed: random seed.
        repeats: how often random draws are repeated.
        shares: shares of the training data to fit on, in (0, 1].
        steepness: values of the paper's alpha to show or to try; None takes those of the study.
        bounds: values of the paper's r; None takes the paper's.
        n_bins: values of the paper's M; None takes the paper's.
        neuron: number of the neuron whose states are shown; None takes the one that tells ID from
            OOD validation data best.
        ood_set: the OOD test set whose distributions are shown; None takes the first far one.
        methods: names of the methods to compare with; None takes those of the study.
        backend: whose baselines run, as in `nac_openood.compare`.
        most_samples: how many training and test samples costs are measured on at most; None takes
            all.
        epochs: how long networks of other training schemes are trained.
        progress: whether to show progress bars; None shows them on a terminal.
        say: is told what is going on.
    """

    against: Optional[str] = None
    seed: int = 0
    repeats: int = 5
    shares: Sequence[float] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    steepness: Optional[Sequence[float]] = None
    bounds: Optional[Sequence[float]] = None
    n_bins: Optional[Sequence[int]] = None
    neuron: Optional[int] = None
    ood_set: Optional[str] = None
    methods: Optional[Sequence[str]] = None
    backend: str = "auto"
    most_samples: Optional[int] = None
    epochs: int = 15
    progress: Optional[bool] = None
    say: Say = lambda text: None
