"""OpenOOD's own postprocessors as scorers: the reference implementations of the baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
from torch import nn

from nac_openood.benchmark.methods.openood.home import at_home, shows_bars
from nac_openood.benchmark.methods.openood.view import NetworkView
from nac_openood.benchmark.methods.scorer import Fit, Given, joined_scores
from nac_openood.benchmark.methods.sweep import best_point, check_neighbors, vim_dims
from nac_openood.benchmark.methods.table import Method
from nac_openood.detector.batches import as_batch, batches, map_shards
from nac_openood.detector.outcomes import Scores
from nac_openood.distributed import world
from nac_openood.errors import NACError
from nac_openood.network.replica import private_copy
from nac_openood.search.space import grid_points


class OpenOODScorer:
    """A postprocessor of OpenOOD, set up and searched as OpenOOD's evaluator does.

    Args:
        method: a row of the table.
        configs: a folder with `postprocessors/METHOD.yml`; None takes OpenOOD's own.
    """

    def __init__(self, method: Method, configs: Optional[Path] = None) -> None:
        from nac_openood.plugin.source import code_of, openood_ready, openood_title

        self.method, self._needs = method.name, method.needs
        with openood_ready() as tree:
            self.implementation = openood_title(tree)
            self._configs, code = configs or tree / "configs", code_of(tree)
        config = _config(self._configs, self.method).read_text(encoding="utf-8")
        self.settings: Mapping[str, Any] = {"config": config, "code": code}

    def setup(self, given: Given, chosen: Optional[Mapping[str, Any]] = None) -> Fit:
        """Fit and search; see `Scorer`."""
        with at_home(given):
            from openood.evaluation_api.postprocessor import get_postprocessor

            self._given = given
            self._processor = get_postprocessor(str(self._configs), self.method, given.id_name)
            self._net = self._wrapped(given)
            self._check_weights(given)
            id_loaders = {"train": OpenOODBatches(given.train), "val": OpenOODBatches(given.id_val)}
            self._processor.setup(self._net, id_loaders, {"val": OpenOODBatches(given.ood_val)})
            return self._search(given, chosen)

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score a dataset; see `Scorer`."""
        with at_home(self._given):
            return self._inference(loader)

    def _search(self, given: Given, chosen: Optional[Mapping[str, Any]]) -> Fit:
        lists = dict(getattr(self._processor, "args_dict", None) or {})
        if not lists:
            return Fit()
        search = None
        if chosen is not None:
            point = dict(chosen)
        elif not self._processor.APS_mode or given.ood_val is None:
            point = self._settings(lists)
        else:
            point, search = self._best(given, lists)
        self._processor.set_hyperparam([point[name] for name in lists])
        return Fit(point, search)

    def _settings(self, lists: Mapping[str, Any]) -> dict[str, Any]:
        """The hyperparameters that the config file names, which are used without a search."""
        values = self._processor.get_hyperparam()
        values = values if len(lists) > 1 else self._usable([values])
        return dict(zip(lists, values))

    def _usable(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values of a hyperparameter that can be used with this network and data."""
        if self.method == "vim":
            return vim_dims(values, len(self._processor.u))
        if self.method == "knn":
            problems = [check_neighbors(k, self._processor.index.ntotal) for k in values]
            if all(problems):
                raise NACError(f"{problems[0]}. Add some, or leave KNN out of `methods`.")
            return [k for k, problem in zip(values, problems) if problem is None]
        return values

    def _best(
        self, given: Given, lists: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Optional[dict[str, Any]]]:
        points = grid_points({name: self._usable(values) for name, values in lists.items()})
        if len(points) == 1:
            return points[0], None

        def validate(point: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
            self._processor.set_hyperparam(list(point.values()))
            return self._inference(given.id_val).score, self._inference(given.ood_val).score

        found = best_point(points, validate, title=self.method, progress=given.progress)
        if found is None:
            raise NACError("no hyperparameters rank any ID above any OOD validation sample.")
        return found.point, found.note(len(grid_points(lists)))

    def _inference(self, loader: Any) -> Scores:
        if world().size == 1:
            return self._infer(loader, progress=shows_bars(self._given))
        return joined_scores(
            map_shards(self.method, loader, lambda batch: self._infer([batch], progress=False))
        )

    def _infer(self, loader: Any, *, progress: bool) -> Scores:
        prediction, score, label = self._processor.inference(
            self._net, OpenOODBatches(loader), progress=progress
        )
        return Scores(score.reshape(-1).astype(np.float64), prediction.reshape(-1), label)

    def _check_weights(self, given: Given) -> None:
        """MDSEns takes the weights of its layers from OOD validation data or from its config."""
        if self.method != "mds_ensemble" or given.ood_val is not None:
            return
        if not self._processor.postprocessor_args.alpha_list:
            raise NACError(
                "MDSEns needs OOD validation data, from which it takes the weights of its layers. "
                "Pass `ood_val`, set alpha_list in its config, or leave it out of `methods`."
            )

    def _wrapped(self, given: Given) -> nn.Module:
        """The network as OpenOOD's evaluator hands it to this method."""
        from openood.networks.ash_net import ASHNet
        from openood.networks.react_net import ReactNet

        net = private_copy(given.net)  # OpenOOD's Gram leaves hooks behind where it is stopped
        if self._needs == "network":
            net = NetworkView(net, next(iter(batches(given.id_val))).data)
        wrappers = {"react": ReactNet, "ash": ASHNet}
        return wrappers[self.method](net) if self.method in wrappers else net


class OpenOODBatches:
    """A loader's batches as OpenOOD's dicts `{'data', 'label', 'data_aux'}`."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> _Counted:
        return _Counted(iter(self.loader), len(self))


class _Counted:
    """An iterator with a length, which OpenOOD's OpenMax asks for."""

    def __init__(self, batches: Iterator[Any], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = as_batch(next(self.batches))
        return {"data": batch.data, "label": batch.labels(), "data_aux": batch.data}


def _config(configs: Path, method: str) -> Path:
    """OpenOOD's config of a method; where it is missing, OpenOOD itself would download it."""
    config = configs / "postprocessors" / f"{method}.yml"
    if not config.is_file():
        raise NACError(
            f"there is no {config}. Use a source tree of OpenOOD, which holds its configs "
            "(pip install -e, or OPENOOD_SRC)."
        )
    return config
