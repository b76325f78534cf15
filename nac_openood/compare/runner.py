"""Run methods on checkpoints; every result is written as it is made, and made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

import numpy as np
import torch
from torch import nn

from nac_openood.__about__ import __version__
from nac_openood.bench.checkpoints import Checkpoint
from nac_openood.bench.collect import plain_worker_errors
from nac_openood.bench.head import Head, head_of
from nac_openood.bench.meter import Meter
from nac_openood.bench.methods import METHODS, UNTRAINED, Absent
from nac_openood.bench.scorer import Given, Scored, Scorer
from nac_openood.compare import cells
from nac_openood.compare.features import FeatureBatches, Features, features_of
from nac_openood.compare.study import Study
from nac_openood.core.fingerprint import fingerprint
from nac_openood.data import batches
from nac_openood.errors import FileError, NACError

Say = Callable[[str], None]


def run_study(study: Study, visited: set[tuple[str, str]], say: Say = lambda text: None) -> None:
    """Fill every cell that is not there yet; a method that fails leaves a note, others go on.

    Args:
        study: what is compared.
        visited: every (run, method) whose cells are as they should be is added to it, also when
            this function is interrupted.
        say: is told what is going on.
    """
    for run in study.runs:
        say(f"{run.name}: {run.path}")
        bench = Bench(study, run, study.network(run))
        accuracy = bench.accuracy()
        cells.write_note(study.out / "runs" / run.name / "run.json", {"accuracy": accuracy})
        say(f"{run.name}: accuracy {accuracy:.2f} %")
        for number, method in enumerate(study.methods, start=1):
            step = f"[{number}/{len(study.methods)}] {METHODS.get(method, method)}"
            _run_method(bench, method, partial(_say_of, say, step))
            visited.add((run.name, method))


@dataclass
class Bench:
    """A network on its image sets: what methods of one run are given.

    Args:
        study: what is compared.
        run: the checkpoint.
        net: its network.
    """

    study: Study
    run: Checkpoint
    net: nn.Module
    _features: dict[str, Features] = field(default_factory=dict)

    def __post_init__(self) -> None:
        study = self.study
        self.device = next((p.device for p in self.net.parameters()), torch.device("cpu"))
        self.images = {**study.fitting_sets(), **study.sets.scored()}
        self.identity = {name: images.identity() for name, images in self.images.items()}
        self._base = {
            "nac_openood": __version__,
            "torch": torch.__version__,
            "weights": fingerprint(self.net)["weights"],
            "device": self.device.type,
            "batch_size": study.batch_size,
        }

    def features(self, name: str) -> Features:
        """Features of a set, from disk or from the pass that all methods share."""
        if name not in self._features:
            path = self.study.out / "runs" / self.run.name / "features" / f"{name}.safetensors"
            images = self.images[name]
            with plain_worker_errors():
                self._features[name] = features_of(
                    path, self.net, self.study.loader(images),
                    {**self._base, "images": self.identity[name]},
                    title=name, progress=self.study.progress,
                )  # fmt: skip
        return self._features[name]

    def accuracy(self) -> float:
        """On the ID test set, and the shifted ones where they count as ID, in percent."""
        names = [n for n, role in self.study.sets.roles().items() if role in ("id", "csid")]
        found = [self.features(name) for name in names]
        right = sum(int((f.prediction == f.label).sum()) for f in found)
        return 100 * right / sum(len(f.label) for f in found)

    def loader(self, name: str, needs: str) -> Any:
        """Batches of a set's images, or of its features."""
        if needs == "features":
            features = partial(self.features, name)
            return FeatureBatches(features, len(self.images[name]), self.study.batch_size)
        return self.study.loader(self.images[name])

    def given(self, needs: str) -> Given:
        """What a method may look at before the test data."""
        study = self.study
        fitting = {n: self.loader(n, needs) for n in study.fitting_sets()}
        return Given(
            self._head() if needs == "features" else self.net,
            study.sets.name, study.sets.n_classes, fitting["train"], fitting["id_val"],
            fitting.get("ood_val"), std=study.sets.std, seed=study.seed, progress=study.progress,
        )  # fmt: skip

    def made_with(self, scorer: Scorer) -> dict[str, Any]:
        """What a method's set-up depends on."""
        fitting = {name: self.identity[name] for name in self.study.fitting_sets()}
        return {
            **self._base,
            "seed": self.study.seed,
            "fitting": fitting,
            "implementation": scorer.implementation,
            "settings": dict(scorer.settings),
        }

    def pending(self, folder: Path, made_with: Mapping[str, Any]) -> list[str]:
        """The test sets that have no scores made with the same."""
        return [
            name for name in self.study.sets.scored() if not self._done(folder, name, made_with)
        ]

    def _done(self, folder: Path, name: str, made_with: Mapping[str, Any]) -> bool:
        found = cells.read_cell(folder / f"{name}.safetensors")
        wanted = {**made_with, "images": self.identity[name]}
        return found is not None and found[1].get("made_with") == wanted

    def _head(self) -> Head:
        sample = next(iter(batches(self.study.loader(self.images["test"])))).data
        return Head(head_of(self.net, sample)[1])


def _run_method(bench: Bench, method: str, say: Say) -> None:
    folder = cells.cell_folder(bench.study.out, bench.run.name, method)
    failure = folder / "error.json"
    try:
        scorer = bench.study.make(method, bench.run)
        made_with = bench.made_with(scorer)
        pending = bench.pending(folder, made_with)
        done = not pending and _known_setup(folder, made_with) is not None
        say(f"({scorer.implementation})" + (": done before" if done else ""))
        if not done:
            with plain_worker_errors():
                _fill(bench, method, scorer, pending, made_with)
        failure.unlink(missing_ok=True)
    except Absent as error:
        say(f"is absent: {error}")
        cells.write_note(failure, {"status": "absent", "error": str(error)})
    except FileError:  # a full disk is nobody's failure, and no other method would fare better
        raise
    except Exception as error:  # somebody else's method may raise anything
        told = " ".join(str(error).split())  # somebody's message may have many lines
        told = told if isinstance(error, NACError) else f"{type(error).__name__}: {told}"
        say(f"failed: {told}")
        cells.write_note(failure, {"status": "failed", "error": told})


def _say_of(say: Say, step: str, text: str) -> None:
    say(f"{step} {text}")


def _fill(
    bench: Bench, method: str, scorer: Scorer, pending: list[str], made_with: dict[str, Any]
) -> None:
    folder = cells.cell_folder(bench.study.out, bench.run.name, method)
    given = bench.given(scorer.needs)
    if scorer.needs == "features":
        # ahead of the meter, which is to see this method's memory and not the pass's
        for name in bench.images:
            if name != "train" or method not in UNTRAINED:
                bench.features(name)
    known = _known_setup(folder, made_with)
    with Meter(bench.device) as meter:
        fit = scorer.setup(given, None if known is None else known["hyperparameters"])
    if known is None:
        loaders = given.train, given.id_val, given.ood_val
        cells.write_note(
            folder / "setup.json",
            {
                "made_with": made_with,
                "hyperparameters": dict(fit.hyperparameters),
                "search": None if fit.search is None else dict(fit.search),
                "seconds": meter.seconds + sum(_share(loader) for loader in loaders),
                "peak_mb": meter.peak_mb,
            },
        )
    for name in pending:
        loader = bench.loader(name, scorer.needs)
        with Meter(bench.device) as meter:
            scored = scorer.score(loader)
        _check(scored, len(bench.images[name]), name)
        about = {
            "made_with": {**made_with, "images": bench.identity[name]},
            "seconds": meter.seconds + _share(loader),
            "peak_mb": meter.peak_mb,
            "shared_pass": scorer.needs == "features",
        }
        cells.write_scores(folder / f"{name}.safetensors", scored, about)


def _known_setup(folder: Path, made_with: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """The note of an earlier set-up, where it was made with the same."""
    note = cells.read_note(folder / "setup.json")
    return note if note is not None and note.get("made_with") == made_with else None


def _share(loader: Any) -> float:
    """The time of the shared pass, for a method that looked at it: as if it ran alone."""
    return loader.seconds - loader.waited if isinstance(loader, FeatureBatches) else 0.0


def _check(scored: Scored, n: int, name: str) -> None:
    if scored.score.shape != (n,):
        raise NACError(f"expected {n} scores for {name}, got {list(scored.score.shape)}.")
    broken = int((~np.isfinite(scored.score)).sum())
    if broken:
        raise NACError(f"{broken} of {n} scores of {name} are NaN or Inf.")
