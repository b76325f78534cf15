"""`nac_openood.rank_checkpoints`: which checkpoint of a run will generalize best."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np
from torch import nn

from nac_openood.core.layer_config import IntegralConfig
from nac_openood.detector.batches import batches
from nac_openood.detector.config import AUTO
from nac_openood.errors import FileError, NACError
from nac_openood.evaluation.checkpoints import Networks, networks_of
from nac_openood.evaluation.correlation import rank_correlation
from nac_openood.evaluation.data import Domains
from nac_openood.evaluation.extraction import CheckpointReadings, extract_checkpoint
from nac_openood.evaluation.ranking import IntegralCandidate, RankedCheckpoint, Ranking, choose
from nac_openood.evaluation.space import Space, integral_candidates
from nac_openood.evaluation.volume import rc_by_volume
from nac_openood.files import locked, make_folder
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.probe import count_classes
from nac_openood.progress import Say
from nac_openood.sources.checkpoints import Checkpoint, training_step

_READINGS = "readings"


def rank_checkpoints(
    checkpoints: Networks,
    *,
    train: Mapping[str, Any],
    val: Mapping[str, Any],
    test: Optional[Mapping[str, Any]] = None,
    oracle: Optional[Mapping[str, Any]] = None,
    load: Optional[Callable[[str], nn.Module]] = None,
    layer: str = AUTO,
    space: Space = "all",
    out: Union[str, Path, None] = None,
    batch_size: int = 100,
    workers: int = 0,
    progress: Optional[bool] = None,
    say: Say = lambda text: None,
) -> Ranking:
    """Rank the checkpoints of a training run by their coverage on training data (NAC-ME).

    Each checkpoint is read once. Of the settings in `space`, those are chosen whose coverage agrees
    best with validation accuracy over the checkpoints (Spearman's rank correlation). Target data,
    where it is given, only measures how well that worked.

    Examples:
        >>> ranking = nac_openood.rank_checkpoints(
        ...     {"step_300": "run/step_300.pt", "step_600": "run/step_600.pt"},
        ...     load=lambda path: load_checkpoint(build("resnet18", 7), path),
        ...     train={"photo": photo_train, "cartoon": cartoon_train},
        ...     val={"photo": photo_val, "cartoon": cartoon_val},
        ...     test={"sketch": sketch},
        ...     space="pacs", out="ranking",
        ... )
        >>> ranking.chosen().name                 # by NAC-ME
        >>> ranking.rc("nac-me"), ranking.rc("validation")
        >>> ranking.accuracy("nac-me"), ranking.accuracy("oracle")

    Repeat the call after an interruption to continue: readings in `out` are used again if they are
    of the same weights, data and layer.

    Args:
        checkpoints: two or more, in the order of training: paths or modules, in a list or by name.
            Paths whose names end in a number (`step_300.pt`) are put in the order of the numbers.
        train: training data of the source domains by name, without augmentation: map-style datasets
            of `(x, y)`, or `DataLoader`s of them.
        val: held-out data of the source domains by name.
        test: data of the target domains by name; None ranks without measuring anything.
        oracle: other data of the target domains, by which the oracle chooses; None lets it choose
            by `test` itself.
        load: makes a network, on its device, from the path of a checkpoint.
        layer: as in `coverage_integral`.
        space: the settings to choose from: "pacs", "vlcs", "officehome", "terraincognita" (the
            paper's), "all", lists by setting, or one `IntegralConfig`.
        out: folder of the readings and of `ranking.json`; None uses a temporary one.
        batch_size: samples per batch.
        workers: number of processes that load samples.
        progress: whether to show progress bars; None shows them on a terminal.
        say: is told what is going on, e.g. `print`.

    Raises:
        NACError: there are fewer than two checkpoints, one does not fit the network or the data,
            or no setting can be chosen. Nothing is written then.
    """
    configs = integral_candidates(space)
    found, network = networks_of(checkpoints, load)
    domains = Domains(
        train, val, test or {}, oracle or {}, batch_size=batch_size, workers=workers,
        progress=progress,
    )  # fmt: skip
    reader = _Reader(found, network, domains, layer, configs[0].layout)
    made_with = reader.checked()
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="nac_rank_"))
        folder = make_folder(out)
        stack.enter_context(locked(folder))
        readings = reader.readings(make_folder(folder / _READINGS), made_with, say)
        ranking = assemble_ranking(found, readings, configs, domains.sizes())
        ranking.save(folder)
    return ranking


def assemble_ranking(
    checkpoints: Sequence[Checkpoint],
    readings: Sequence[CheckpointReadings],
    configs: Sequence[IntegralConfig],
    sizes: Mapping[str, Mapping[str, int]],
) -> Ranking:
    """The ranking, from readings alone."""
    val = [each.accuracy("val") or 0.0 for each in readings]  # there is always validation data
    coverage = np.array([each.coverage(configs) for each in readings])  # [checkpoints, settings]
    tried = [
        IntegralCandidate(config, tuple(values), rank_correlation(values, val))
        for config, values in zip(configs, coverage.T.tolist())
    ]
    best, notes = choose(tried)
    roles = ("val", "test", "oracle")
    ranked = tuple(
        RankedCheckpoint(
            one.name, one.path, training_step(one), g, accuracy, each.accuracy("test"),
            each.accuracy("oracle") if "oracle" in each.correct else each.accuracy("test"),
            {role: each.accuracies(role) for role in roles if role in each.correct},
        )
        for one, each, g, accuracy in zip(checkpoints, readings, best.coverage, val)
    )  # fmt: skip
    volume = []
    if "test" in readings[0].correct:
        stacked = [
            np.stack([each.correct["test"][name].numpy() for each in readings])
            for name in readings[0].correct["test"]
        ]
        volume = rc_by_volume({"validation": val, "nac-me": best.coverage}, stacked)
    layer = readings[0].layer
    return Ranking(ranked, tuple(tried), best.config, layer, sizes, tuple(volume), tuple(notes))


@dataclass(frozen=True)
class _Reader:
    """Reads the checkpoints of a run, or finds what an earlier call has read."""

    checkpoints: Sequence[Checkpoint]
    network: Callable[[Checkpoint], nn.Module]
    domains: Domains
    layer: str
    layout: Optional[str]

    def checked(self) -> list[dict[str, Any]]:
        """Load every checkpoint before anything is written; returns what each is made with."""
        found: list[dict[str, Any]] = []
        identities: dict[str, str] = {}
        for one in self.checkpoints:
            net = self.network(one)
            if not identities:
                first = next(iter(self.domains.samples.values()))
                self.domains.check(count_classes(net, next(batches(first.loader())).data))
                identities = self.domains.identities()
            found.append({"network": fingerprint(net), "layer": self.layer, "layout": self.layout,
                          "data": identities})  # fmt: skip
        others = [
            one.name
            for one, made_with in zip(self.checkpoints, found)
            if made_with["network"]["structure"] != found[0]["network"]["structure"]
        ]
        if others:
            raise NACError(
                f"expected checkpoints of one architecture; {', '.join(others)} differ from "
                f"{self.checkpoints[0].name}. Coverage of different architectures cannot be "
                "compared."
            )
        return found

    def readings(
        self, folder: Path, made_with: Sequence[Mapping[str, Any]], say: Say
    ) -> list[CheckpointReadings]:
        """The readings of all checkpoints; those in the folder are used if nothing has changed."""
        found = []
        for number, (one, expected) in enumerate(zip(self.checkpoints, made_with), start=1):
            path = folder / f"{one.name}.safetensors"
            known = self._known(path, expected)
            if known is None:
                say(f"reading checkpoint {number} of {len(self.checkpoints)}: {one.name}")
                known = extract_checkpoint(
                    path, self.network(one), self.domains, expected, layer=self.layer,
                    layout=self.layout,
                )  # fmt: skip
            found.append(known)
        return found

    def _known(self, path: Path, made_with: Mapping[str, Any]) -> Optional[CheckpointReadings]:
        """Readings of an earlier call, if they were made with the same and are of all samples."""
        with suppress(FileError):
            found = CheckpointReadings.load(path)
            read = {r: {n: len(c) for n, c in sets.items()} for r, sets in found.correct.items()}
            if dict(found.made_with) == dict(made_with) and read == self.domains.sizes():
                return found
        return None
