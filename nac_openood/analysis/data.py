"""The arguments of every study: the readings of one pass over the network, and options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Mapping, Optional, Sequence

import numpy as np

from nac_openood.analysis.finding import About, ValidationData
from nac_openood.benchmark.run.network import NetworkRun
from nac_openood.benchmark.run.results import FAR, GROUP_NAMES, NEAR
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.batches import Say
from nac_openood.detector.config import NACConfig
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.run import SearchResult
from nac_openood.search.stored import ReadingSet


@dataclass(frozen=True)
class Options:
    """Options of the studies; each study uses those that concern it.

    Args:
        against: "paper" puts the published numbers beside the measured ones.
        seed: random seed.
        repeats: how often random draws are repeated.
        shares: fractions of the training data to fit on, in (0, 1].
        steepness: values of the paper's alpha to show or to try; None takes those of the study.
        bounds: values of the paper's r; None takes the paper's.
        n_bins: values of the paper's M; None takes the paper's.
        neuron: index of the neuron whose states are shown; None takes the one that separates ID
            and OOD validation data best.
        ood_set: the OOD test set whose distributions are shown; None takes the first far one.
        methods: names of the methods to compare with; None takes those of the study.
        backend: the library that runs the baselines, as in `nac_openood.compare`.
        most_samples: upper limit of training and test samples to measure costs on; None takes all.
        epochs: for which networks of other training schemes are trained.
        progress: whether to show progress bars; None shows them on a terminal.
        say: receives progress messages.
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


@dataclass(frozen=True)
class AnalysisData:
    """A network's readings of all datasets, and the settings that NAC would use.

    Readings hold activations and gradients of every layer, summed over positions, with logits,
    predictions and labels. They are memory-mapped from files.

    Args:
        run: the network and the datasets.
        fitting: readings of the fitting subset, both validation sets and held-out training data.
        more: readings of the other training samples; None if there are none.
        train_rows: int64, indices of the training samples in `fitting.fit`, `fitting.held_out`
            and `more`, in this order.
        scored: readings of the test sets by name; the ID test set is called "test".
        config: settings and sweep that the search started from.
        settings: the settings in use by layer, deepest first; those that the search chose.
        found: what the search found; None without one.
    """

    run: NetworkRun
    fitting: ReadingSet
    more: Optional[Readings]
    train_rows: np.ndarray
    scored: Mapping[str, Readings]
    config: NACConfig
    settings: Mapping[str, LayerConfig]
    found: Optional[SearchResult] = None

    @property
    def id_name(self) -> str:
        """Name of the in-distribution data."""
        return self.run.study.sets.id_name

    @property
    def arch(self) -> str:
        """Name of the architecture."""
        return self.run.study.arch

    @property
    def roles(self) -> dict[str, str]:
        """The role of every test set: "id", "csid", "near" or "far"."""
        return self.run.study.sets.roles()

    def names(self, *roles: str) -> list[str]:
        """The test sets of these roles."""
        return [name for name, role in self.roles.items() if role in roles]

    @property
    def layers(self) -> list[str]:
        """The layers in use, deepest first."""
        return list(self.settings)

    @property
    def groups(self) -> dict[str, str]:
        """Titles of the means over OOD sets by name: "nearood", "farood" or both."""
        groups = {"near": NEAR, "far": FAR}
        return {mean: GROUP_NAMES[mean] for role, mean in groups.items() if self.names(role)}

    @property
    def main_group(self) -> str:
        """The mean that the paper's ablations are about: far OOD, or near without a far set."""
        return list(self.groups)[-1]

    @cached_property
    def train(self) -> Readings:
        """Readings of all training samples that were read, in the order of the dataset."""
        parts = [self.fitting.fit, self.fitting.held_out, self.more]
        joined = Readings.concatenate([part for part in parts if part is not None])
        return joined.rows(np.argsort(self.train_rows, kind="stable"))

    @cached_property
    def accuracy(self) -> float:
        """ID accuracy in percent, as `compare` computes it."""
        tested = [self.scored[name] for name in self.names("id", "csid")]
        correct = sum(int((each.prediction == each.label).sum()) for each in tested)
        return 100 * correct / sum(each.n_samples for each in tested)

    @property
    def head_input(self) -> str:
        """The layer whose output is the input of the linear head.

        Raises:
            NACError: if it was not read.
        """
        name = self.fitting.alternative_layers.head_input
        if name is None:
            raise NACError(
                f"none of the layers that were read, {list(self.fitting.fit)}, is the input of the "
                "linear head. Use settings that include it, e.g. 'avgpool' of a ResNet."
            )
        return name

    def ood_set(self, name: Optional[str]) -> str:
        """The OOD test set of that name; None takes the first far one, else the first near one."""
        if name is None:
            return (self.names("far") or self.names("near"))[0]
        names = self.names("far", "near")
        if name not in names:
            raise NACError(f"`ood_set` must be one of {', '.join(names)}; got {name!r}.")
        return name

    def about(self) -> About:
        """The network and data, for the record of a finding."""
        about = self.fitting.about
        sizes = {name: read.n_samples for name, read in self.scored.items()}
        return About(
            self.id_name, self.arch, self.accuracy, self.roles, {**about["samples"], **sizes},
            ValidationData(**about["ood_val"]),
            {name: used.to_dict() for name, used in self.settings.items()}, self.found is not None,
            about["made_with"], self.run.study.command, len(self.train_rows),
        )  # fmt: skip
