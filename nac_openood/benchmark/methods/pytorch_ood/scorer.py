"""An adapter as a `Scorer`: fit, search as OpenOOD does, score."""

from __future__ import annotations

from dataclasses import replace
from pkgutil import resolve_name
from typing import Any, Iterable, Mapping, Optional

from torch import Tensor

from nac_openood.benchmark.methods.pytorch_ood.adapter import Adapter
from nac_openood.benchmark.methods.pytorch_ood.data import labelled
from nac_openood.benchmark.methods.scorer import Fit, Given, joined_scores
from nac_openood.benchmark.methods.sweep import best_point
from nac_openood.benchmark.methods.table import Method
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import NACError
from nac_openood.network.random_state import kept_random_state
from nac_openood.network.replica import private_copy
from nac_openood.progress import bar
from nac_openood.search.space import grid_points


class PytorchOODScorer:
    """A baseline from pytorch-ood.

    Args:
        method: a row of the table with an adapter.

    Raises:
        Absent: pytorch-ood is not installed.
    """

    def __init__(self, method: Method) -> None:
        self._kind: type[Adapter] = resolve_name(f"{__package__}.{method.adapter}")
        self._row, self.method = method, method.name
        self.implementation = self._kind.implementation()
        self.settings: Mapping[str, Any] = {
            "defaults": dict(method.defaults),
            "sweep": {name: list(values) for name, values in method.sweep.items()},
        }

    def setup(self, given: Given, chosen: Optional[Mapping[str, Any]] = None) -> Fit:
        """Fit, and search where OpenOOD searches and OOD validation data is given.

        Args:
            given: what the method may look at.
            chosen: hyperparameters to use instead of a search.

        Raises:
            NACError: the method cannot use this data or network.
        """
        adapter = self._kind(self.method)
        self._seed, self._progress = given.seed, given.progress
        search = None
        given = replace(given, net=private_copy(given.net))
        with kept_random_state(given.seed):
            adapter.fit(given)
            if chosen is not None or given.ood_val is None or len(grid_points(self._row.sweep)) < 2:
                point = {**self._row.defaults, **(chosen or {})}
                if chosen is None and adapter.usable([point]):
                    point = dict(adapter.usable([point])[0])
                why = adapter.problem_with(point)
                if why:
                    raise NACError(f"{self.method}: {why}. Choose another value.")
            else:
                point, search = _search(self._row, adapter, given)
            adapter.use(point)
            adapter.release()
        self._adapter = adapter
        return Fit(point, search)

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score the batches of a loader; see `Scorer`."""
        adapter, parts = self._adapter, []
        with kept_random_state(self._seed):
            for x, label in labelled(adapter.net, bar(loader, self.method, self._progress)):
                outlier, logits = adapter.score(x)
                score = -outlier.detach().cpu().double().numpy()
                prediction = logits.argmax(dim=1).cpu().numpy()
                parts.append(Scores(score, prediction, label.numpy()))
        return joined_scores(parts)


def _search(
    method: Method, adapter: Adapter, given: Given
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The best point by AUROC on validation data, and what the search reports.

    Points that cannot be used with this data are skipped; in OpenOOD they rank nothing.
    """
    name, every = method.name, grid_points(method.sweep)
    points = [dict(point) for point in adapter.usable(every)]
    if not points:
        raise NACError(f"{name}: {adapter.problem_with(every[0])}; no other value fits either.")
    assert given.ood_val is not None
    held = [adapter.hold(loader) for loader in (given.id_val, given.ood_val)]

    def validate(point: dict[str, Any]) -> tuple[Tensor, Tensor]:
        adapter.use(point)
        inside, outside = (-adapter.outliers(part) for part in held)
        return inside, outside

    found = best_point(points, validate, title=f"{name}: search", progress=given.progress)
    if found is None:
        raise NACError(f"{name}: no hyperparameters rank any ID above any OOD validation sample.")
    return found.point, found.note(len(every))
