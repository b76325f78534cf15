"""OpenOOD's own postprocessors as methods: the reference implementations of the baselines."""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Optional, Union

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.scorer import (
    MethodInputs,
    MethodSetup,
    Point,
    joined_scores,
    search_grid,
    usable_values,
)
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.detector.batches import as_batch, batches, map_shards
from nac_openood.detector.outcomes import Scores
from nac_openood.distributed import world
from nac_openood.errors import NACError
from nac_openood.network.architectures import table_layers
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.head import Head, head_of
from nac_openood.network.inputs import device_of, logits_of
from nac_openood.network.replica import kept_random_state, private_copy, run
from nac_openood.search.run import grid_points
from nac_openood.sources.checkpoints import load_checkpoint

#: What OpenOOD's ResNets return as `feature_list`: what enters the first stage, and these.
_LISTED = ("layer1", "layer2", "layer3", "avgpool")


@contextmanager
def openood_environment(inputs: MethodInputs) -> Iterator[None]:
    """Register the dataset with OpenOOD, seed and silence it; undo all of this at the end."""
    from nac_openood.plugin.source import openood_ready

    with ExitStack() as stack:
        stack.enter_context(openood_ready(on_cpu=device_of(inputs.net).type == "cpu"))
        from openood.postprocessors.info import num_classes_dict
        from openood.preprocessors.transform import normalization_dict

        # the tables in which postprocessors look the dataset up
        new: list[tuple[dict[str, Any], Any]] = [(num_classes_dict, inputs.n_classes)]
        if inputs.std is not None:
            new.append((normalization_dict, [[0.0] * len(inputs.std), list(inputs.std)]))
        for table, value in new:
            if inputs.id_name not in table:
                table[inputs.id_name] = value
                stack.callback(table.pop, inputs.id_name, None)
        stack.enter_context(kept_random_state(inputs.seed))
        stack.enter_context(redirect_stdout(io.StringIO()))
        if not _shows_bars(inputs):
            stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # OpenOOD's own
        yield


def _shows_bars(inputs: MethodInputs) -> bool:
    """Whether to show OpenOOD's own progress bars."""
    return inputs.progress is not False and sys.stderr.isatty()


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
        config = self._configs / "postprocessors" / f"{self.method}.yml"
        if not config.is_file():  # OpenOOD itself would download it
            raise NACError(
                f"there is no {config}. Use a source tree of OpenOOD, which holds its configs "
                "(pip install -e, or OPENOOD_SRC)."
            )
        self.settings: Mapping[str, Any] = {"config": config.read_text("utf-8"), "code": code}

    def setup(
        self, inputs: MethodInputs, chosen: Optional[Mapping[str, Any]] = None
    ) -> MethodSetup:
        """Fit and search; see `Scorer`."""
        with openood_environment(inputs):
            from openood.evaluation_api.postprocessor import get_postprocessor

            self._inputs = inputs
            self._processor = get_postprocessor(str(self._configs), self.method, inputs.id_name)
            self._net = self._wrapped(inputs)
            without_weights = self.method == "mds_ensemble" and inputs.ood_val is None
            if without_weights and not self._processor.postprocessor_args.alpha_list:
                raise NACError(
                    "MDSEns needs OOD validation data for the weights of its layers. Pass "
                    "`ood_val`, set alpha_list in its config, or leave it out of `methods`."
                )
            train, id_val, ood_val = map(
                OpenOODBatches, (inputs.train, inputs.id_val, inputs.ood_val)
            )
            self._processor.setup(self._net, {"train": train, "val": id_val}, {"val": ood_val})
            lists = dict(getattr(self._processor, "args_dict", None) or {})
            if not lists:
                return MethodSetup()
            found = self._chosen(lists) if chosen is None else MethodSetup(dict(chosen))
            self._processor.set_hyperparam([found.hyperparameters[name] for name in lists])
            return found

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score a dataset; see `Scorer`."""
        with openood_environment(self._inputs):
            return self._inference(loader)

    def _chosen(self, lists: Mapping[str, Any]) -> MethodSetup:
        """The hyperparameters of the config file, or those that the search finds."""
        inputs = self._inputs
        if not self._processor.APS_mode or inputs.ood_val is None:
            values = self._processor.get_hyperparam()
            values = values if len(lists) > 1 else self._usable([values])
            return MethodSetup(dict(zip(lists, values)))
        points = grid_points({name: self._usable(values) for name, values in lists.items()})
        if len(points) == 1:
            return MethodSetup(points[0])

        def validate(point: Point) -> tuple[np.ndarray, np.ndarray]:
            self._processor.set_hyperparam(list(point.values()))
            return self._inference(inputs.id_val).score, self._inference(inputs.ood_val).score

        return search_grid(
            points, validate, sweep_size=len(grid_points(lists)), title=self.method,
            progress=inputs.progress,
        )  # fmt: skip

    def _usable(self, values: Any) -> Any:
        n_train = self._processor.index.ntotal if self.method == "knn" else 0
        width = len(self._processor.u) if self.method == "vim" else 0
        return usable_values(self.method, values, n_train=n_train, width=width)

    def _inference(self, loader: Any) -> Scores:
        if world().size == 1:
            return self._infer(loader, progress=_shows_bars(self._inputs))
        return joined_scores(
            map_shards(self.method, loader, lambda batch: self._infer([batch], progress=False))
        )

    def _infer(self, loader: Any, *, progress: bool) -> Scores:
        prediction, score, label = self._processor.inference(
            self._net, OpenOODBatches(loader), progress=progress
        )
        return Scores(score.reshape(-1).astype(np.float64), prediction.reshape(-1), label)

    def _wrapped(self, inputs: MethodInputs) -> nn.Module:
        """The network as OpenOOD's evaluator passes it to this method."""
        from openood.networks.ash_net import ASHNet
        from openood.networks.react_net import ReactNet

        net = private_copy(inputs.net)  # OpenOOD's Gram leaves its hooks if it is interrupted
        if self._needs == "network":
            net = NetworkView(net, next(iter(batches(inputs.id_val))).data)
        wrappers = {"react": ReactNet, "ash": ASHNet}
        return wrappers[self.method](net) if self.method in wrappers else net


class OpenGANScorer:
    """OpenOOD's OpenGAN: a discriminator of features, trained by OpenOOD beforehand.

    Args:
        file: `best_DNet.ckpt`, as OpenOOD's recorder writes it.
    """

    def __init__(self, file: Path) -> None:
        from nac_openood.plugin.source import openood_title, openood_tree

        self.file, self.implementation = file, openood_title(openood_tree())
        changed = file.stat().st_mtime_ns
        self.settings: Mapping[str, Any] = {"discriminator": str(file), "changed": changed}

    def setup(
        self, inputs: MethodInputs, chosen: Optional[Mapping[str, Any]] = None
    ) -> MethodSetup:
        """Load the discriminator; see `Scorer`."""
        with openood_environment(inputs):
            from openood.networks.opengan import Discriminator
            from openood.postprocessors import OpenGanPostprocessor

            width = inputs.net.get_fc()[0].shape[1]  # type: ignore[operator]
            self._inputs, self._device = inputs, device_of(inputs.net)
            self._net = load_checkpoint(Discriminator(width), self.file).to(self._device)
            self._processor = OpenGanPostprocessor(None)
        return MethodSetup({"discriminator": fingerprint(self._net)["weights"][:16]})

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score a dataset; see `Scorer`."""
        parts = []
        with openood_environment(self._inputs), torch.no_grad():
            for batch in batches(loader):
                feature = batch.data.to(self._device)
                # maps of one pixel are features to OpenOOD's postprocessor
                found = self._processor.postprocess({"netD": self._net}, feature[..., None, None])
                prediction = self._inputs.net(feature).argmax(dim=1).cpu().numpy()
                parts.append(Scores(found[1].double().numpy(), prediction, batch.labels().numpy()))
        return joined_scores(parts)


class OpenOODBatches:
    """A loader's batches as OpenOOD's dicts `{'data', 'label', 'data_aux'}`.

    Its iterators have a length too, which OpenOOD's OpenMax needs.
    """

    def __init__(self, loader: Any, items: Optional[Iterator[Any]] = None) -> None:
        self.loader, self._items = loader, items

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> OpenOODBatches:
        return OpenOODBatches(self.loader, iter(self.loader))

    def __next__(self) -> dict[str, Any]:
        batch = as_batch(next(self._items or iter(())))
        return {"data": batch.data, "label": batch.labels(), "data_aux": batch.data}


class NetworkView(nn.Module):
    """`net` with the methods that OpenOOD's postprocessors call; `net` itself is never changed.

    OpenOOD's own networks have them built in; those of torchvision, timm and users do not.

    Args:
        net: the network.
        x: a batch to find its head with.
    """

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.net = net
        self.fc = head_of(net, x)[1]
        modules = dict(net.named_modules())
        # OpenOOD takes the output of a stage for maps [batch, channels, height, width]
        self._stages = {
            layer.alias: modules[layer.path]
            for layer in table_layers(net)
            if layer.layout == "maps" or layer.alias == "avgpool"
        }

    def __getattr__(self, name: str) -> Any:
        stages = self.__dict__.get("_stages", {})
        return stages[name] if name in stages else super().__getattr__(name)

    def forward(
        self, x: Tensor, return_feature: bool = False, return_feature_list: bool = False
    ) -> Union[Tensor, tuple[Tensor, Any]]:
        """Logits; with the head's input, or with a list of the stages' outputs."""
        if return_feature:
            logits, seen = self._run(x, entering={"feature": self.fc})
            return logits, seen["feature"]
        if return_feature_list:
            stages = {name: self._stage(name) for name in _LISTED}
            logits, seen = self._run(x, entering={"stem": stages["layer1"]}, leaving=stages)
            return logits, [seen[name] for name in ("stem", *_LISTED)]
        return logits_of(self.net(x), x)

    def intermediate_forward(self, x: Tensor, layer_index: int) -> Tensor:
        """The output of a stage, 1 to 4."""
        name = f"layer{layer_index}"
        return self._run(x, leaving={name: self._stage(name)})[1][name]

    def forward_threshold(self, x: Tensor, threshold: float) -> Tensor:
        """Logits of features that are clipped at `threshold`."""
        feature = self._run(x, entering={"feature": self.fc})[1]["feature"]
        return logits_of(self.fc(feature.clip(max=threshold)), feature)

    def get_fc(self) -> tuple[np.ndarray, np.ndarray]:
        """Weight and bias of the head."""
        return Head(self.fc).get_fc()

    def get_fc_layer(self) -> nn.Linear:
        """The head."""
        return self.fc

    def _run(
        self,
        x: Tensor,
        *,
        entering: Mapping[str, nn.Module] = {},
        leaving: Mapping[str, nn.Module] = {},
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, the inputs of the modules `entering`, and the outputs of those `leaving`."""
        seen: dict[str, Tensor] = {}

        def keep(
            name: str, module: nn.Module, inputs: Any, output: Optional[Tensor] = None
        ) -> None:
            # a copy, because a later in-place operation would overwrite it
            seen[name] = (inputs[0] if output is None else output).clone()

        on_input = [(module, partial(keep, name)) for name, module in entering.items()]
        on_output = [(module, partial(keep, name)) for name, module in leaving.items()]
        return logits_of(run(self.net, x, on_input=on_input, on_output=on_output), x), seen

    def _stage(self, name: str) -> nn.Module:
        if name not in self._stages:
            raise Absent(
                f"this method reads feature maps of '{name}' as a ResNet has them, and "
                f"{type(self.net).__name__} has no such stage. Leave it out of `methods`."
            )
        return self._stages[name]
