"""A method of the table as a `Scorer`: fit, search as OpenOOD searches, score."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Mapping, Optional

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.bench.scorer import Fit, Given, Scored
from nac_openood.bench.torch_ood import library
from nac_openood.bench.torch_ood.adapter import Adapter
from nac_openood.bench.torch_ood.data import labelled
from nac_openood.bench.torch_ood.table import METHODS, Row
from nac_openood.core.undisturbed import undisturbed
from nac_openood.errors import NACError, NotFittedError
from nac_openood.progress import bar
from nac_openood.ranking import auroc


class TorchOOD:
    """A baseline out of pytorch-ood.

    Args:
        method: OpenOOD's name of it, one of `METHODS`.

    Raises:
        NACError: for an unknown method, or where pytorch-ood is missing.
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
        with _alone_with(given.net, given.seed):
            adapter.fit(given)
            if chosen is not None or given.ood_val is None or len(self._row.points()) < 2:
                point = _complete(self.method, self._row, chosen or {})
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
        with _alone_with(adapter.net, self._seed):
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
    points = [point for point in row.points() if adapter.against(point) is None]
    if not points:
        raise NACError(f"{method}: {adapter.against(row.points()[0])}, and so do all other values.")
    assert given.ood_val is not None
    id_val, ood_val = adapter.hold(given.id_val), adapter.hold(given.ood_val)
    best, best_auroc = points[0], -1.0
    for point in bar(points, f"{method}: search", given.progress):
        adapter.use(point)
        scores = [-_finite(method, adapter.outliers(held)) for held in (id_val, ood_val)]
        found = float(auroc(*scores))
        if found > best_auroc:
            best, best_auroc = point, found
    return best, {"points": len(points), "auroc": best_auroc, "objective": "auroc"}


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


@contextmanager
def _alone_with(net: nn.Module, seed: int) -> Iterator[None]:
    """With a frozen network in evaluation mode and seeded draws; then everything as before."""
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    with undisturbed(net):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            for parameter in trained:
                parameter.requires_grad = False  # or a detector's backward would leave gradients
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad = True
