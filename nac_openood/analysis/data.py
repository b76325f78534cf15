"""What all analyses work on: the readings of one pass over the network, and the settings of NAC."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Mapping, Optional

import numpy as np

from nac_openood.analysis.finding import About, ValidationData
from nac_openood.benchmark.run.metrics import FAR, NEAR
from nac_openood.benchmark.run.workbench import Workbench
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.config import NACConfig
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.result import SearchResult
from nac_openood.search.stored import ReadingSet


@dataclass(frozen=True)
class AnalysisData:
    """A network's readings of all datasets, and the settings that NAC would use.

    Readings hold activations and gradients of every layer, summed over positions, with logits,
    predictions and labels. They lie in files and are read as they are used.

    Args:
        bench: the network, the datasets, and what results depend on.
        fitting: readings of the fitting subset, both validation sets and held-out training data.
        more: readings of the other training samples; None if there are none.
        train_rows: int64, which training samples `fitting.fit`, `fitting.held_out` and `more`
            are, in this order.
        scored: readings of the test sets by name; the ID test set is called "test".
        config: settings and sweep that the search started from.
        settings: the settings in use by layer, deepest first; those that the search chose.
        found: what the search found; None without one.
    """

    bench: Workbench
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
        return self.bench.study.sets.id_name

    @property
    def arch(self) -> str:
        """Name of the architecture."""
        return self.bench.study.arch

    @property
    def roles(self) -> dict[str, str]:
        """The role of every test set: "id", "csid", "near" or "far"."""
        return self.bench.study.sets.roles()

    def names(self, *roles: str) -> list[str]:
        """The test sets of these roles."""
        return [name for name, role in self.roles.items() if role in roles]

    @property
    def layers(self) -> list[str]:
        """The layers in use, deepest first."""
        return list(self.settings)

    @property
    def groups(self) -> list[str]:
        """The means over OOD sets that there are: "nearood", "farood" or both."""
        return [group for role, group in (("near", NEAR), ("far", FAR)) if self.names(role)]

    @property
    def main_group(self) -> str:
        """The mean that the paper's ablations are about: far OOD, or near without a far set."""
        return self.groups[-1]

    @cached_property
    def train(self) -> Readings:
        """Readings of all training samples that were read, in the order of the dataset."""
        parts = [self.fitting.fit, self.fitting.held_out, self.more]
        joined = Readings.concatenate([part for part in parts if part is not None])
        return joined.rows(np.argsort(self.train_rows, kind="stable"))

    @cached_property
    def accuracy(self) -> float:
        """ID accuracy in percent, as `compare` computes it."""
        read = [self.scored[name] for name in self.names("id", "csid")]
        right = sum(int((each.prediction == each.label).sum()) for each in read)
        return 100 * right / sum(each.n_samples for each in read)

    @property
    def head_input(self) -> str:
        """The layer whose output the head is given.

        Raises:
            NACError: if it was not read.
        """
        name = self.fitting.known.head_input
        if name is None:
            raise NACError(
                f"none of the layers that were read, {list(self.fitting.fit)}, is what the linear "
                "head is given. Use settings that include it, e.g. 'avgpool' of a ResNet."
            )
        return name

    def ood_set(self, name: Optional[str]) -> str:
        """The OOD test set of that name; None takes the first far one, else the first near one."""
        known = self.names("far", "near")
        if name is None:
            return (self.names("far") or known)[0]
        if name not in known:
            raise NACError(f"`ood_set` must be one of {', '.join(known)}; got {name!r}.")
        return name

    def about(self) -> About:
        """What the numbers are about."""
        noted = self.fitting.about
        sizes = {name: read.n_samples for name, read in self.scored.items()}
        return About(
            self.id_name, self.arch, self.accuracy, self.roles, {**noted["samples"], **sizes},
            ValidationData(**noted["ood_val"]),
            {name: used.to_dict() for name, used in self.settings.items()}, self.found is not None,
            noted["made_with"], self.bench.study.command, len(self.train_rows),
        )  # fmt: skip
