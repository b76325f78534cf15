"""A method of the table as a `Scorer`: fit, search as OpenOOD searches, score."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional

import torch
from torch import Tensor

from nac_openood.bench.scorer import Fit, Given, Scored
from nac_openood.bench.sweep import best_point
from nac_openood.bench.torch_ood import library
from nac_openood.bench.torch_ood.adapter import Adapter
from nac_openood.bench.torch_ood.data import labelled
from nac_openood.bench.torch_ood.table import METHODS, Row
from nac_openood.core.undisturbed import frozen, undisturbed
from nac_openood.errors import NACError, NotFittedError
from nac_openood.progress import bar


class TorchOOD:
    """A baseline out of pytorch-ood.

    Args:
        method: OpenOOD's name of it, one of `METHODS`.

    Raises:
        NACError: for an unknown method; `Absent` where pytorch-ood is missing.
    """

    def __init__(self, method: str) -> None:
        if method not in METHODS:
            raise NACError(
                f"pytorch-ood has no method '{method}'. Expected one of {', '.join(METHODS)}."
            )
        self._detectors = library.detectors()
        self.method, self._row = method, METHODS[method]
        self.needs = self._row.adapter.needs
        self.implementation = f"pytorch-ood {library.version()}"
        self.settings: Mapping[str, Any] = {
            "defaults": dict(self._row.defaults),
            "sweep": {name: list(values) for name, values in self._row.sweep.items()},
        }
        self._adapter: Optional[Adapter] = None
        self._seed = 0
        self._progress: Optional[bool] = None

    def setup(self, given: Given, chosen: Optional[Mapping[str, Any]] = None) -> Fit:
        """Fit, and search where OpenOOD searches and there are OOD validation data.

        Args:
            given: what to look at.
            chosen: hyperparameters to use instead of a search.

        Raises:
            NACError: where the data or the network do not suit the method.
        """
        self._adapter = None
        adapter = self._row.adapter(self.method, self._detectors)
        self._seed, self._progress = given.seed, given.progress
        search = None
        with undisturbed(given.net, given.seed), frozen(given.net):
            adapter.fit(given)
            if chosen is not None or given.ood_val is None or len(self._row.points()) < 2:
                point = _complete(self.method, self._row, chosen or {})
                if chosen is None and adapter.usable([point]):
                    point = dict(adapter.usable([point])[0])
                why = adapter.against(point)
                if why:
                    raise NACError(f"{self.method}: {why}. Choose another value, or leave it out.")
            else:
                point, search = _search(self.method, self._row, adapter, given)
            adapter.use(point)
            adapter.release()
        self._adapter = adapter
        return Fit(point, search)

    def score(self, loader: Iterable[Any]) -> Scored:
        """Score the batches of a loader.

        Raises:
            NotFittedError: before `setup`.
        """
        adapter = self._adapter
        if adapter is None:
            raise NotFittedError(f"{self.method} was asked for scores before setup(given).")
        outliers, predictions, labels = [], [], []
        with undisturbed(adapter.net, self._seed), frozen(adapter.net):
            for x, label in labelled(adapter.net, bar(loader, self.method, self._progress)):
                outlier, logits = adapter.score(x)
                outliers.append(outlier.detach().cpu().double())
                predictions.append(logits.argmax(dim=1).cpu())
                labels.append(label)
        if not outliers:
            raise NACError(f"{self.method}: there is nothing to score, the loader is empty.")
        score = -_finite(self.method, torch.cat(outliers))
        return Scored(score.numpy(), torch.cat(predictions).numpy(), torch.cat(labels).numpy())


def _search(
    method: str, row: Row, adapter: Adapter, given: Given
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first of the best points, by AUROC of ID against OOD validation data.

    Points that cannot be used here are passed over; in OpenOOD they tell nothing apart.
    """
    points = [dict(point) for point in adapter.usable(row.points())]
    if not points:
        raise NACError(f"{method}: {adapter.against(row.points()[0])}, and so do all other values.")
    assert given.ood_val is not None
    held = [adapter.hold(loader) for loader in (given.id_val, given.ood_val)]

    def validate(point: dict[str, Any]) -> tuple[Tensor, Tensor]:
        adapter.use(point)
        inside, outside = (-_finite(method, adapter.outliers(part)) for part in held)
        return inside, outside

    found = best_point(points, validate, title=f"{method}: search", progress=given.progress)
    if found is None:
        raise NACError(f"{method}: no hyperparameters rank any ID above any OOD validation image.")
    return found.point, found.told()


def _complete(method: str, row: Row, chosen: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(chosen) - set(row.defaults))
    if unknown:
        raise NACError(
            f"{method} has no hyperparameter {', '.join(unknown)}; it has "
            f"{', '.join(row.defaults) or 'none'}."
        )
    return {**row.defaults, **chosen}


def _finite(method: str, scores: Tensor) -> Tensor:
    strange = int((~scores.isfinite()).sum())
    if strange:
        raise NACError(
            f"{method} scored {strange} of {len(scores)} samples NaN or Inf, which cannot be "
            "ranked. Check the network's features and logits for NaN, or leave the method out."
        )
    return scores
