"""OpenOOD's own postprocessors as methods: the reference implementations of the baselines."""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.scorer import BatchScorer, MethodInputs, Point, stages_of
from nac_openood.benchmark.methods.table import Absent, Method
from nac_openood.detector.batches import as_batch, batches
from nac_openood.errors import NACError
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.head import head_of
from nac_openood.network.inputs import device_of, logits_of
from nac_openood.network.replica import kept_random_state, run
from nac_openood.sources.checkpoints import load_checkpoint

#: OpenOOD's ResNets return a `feature_list`: the input of the first stage, and these outputs.
_LISTED = ("layer1", "layer2", "layer3", "avgpool")


class OpenOODScorer(BatchScorer):
    """A postprocessor of OpenOOD, set up and searched as OpenOOD's evaluator does.

    Args:
        method: a row of the table.
        configs: a folder with `postprocessors/METHOD.yml`; None takes OpenOOD's own.
    """

    def __init__(self, method: Method, configs: Optional[Path] = None) -> None:
        from nac_openood.plugin.source import openood_code, openood_ready

        with openood_ready() as tree:
            title, code = openood_code(tree)
        self._configs = configs or tree / "configs"
        config = self._configs / "postprocessors" / f"{method.name}.yml"
        if not config.is_file():  # OpenOOD itself would download it
            raise NACError(f"there is no {config}: set OPENOOD_SRC to a source tree of OpenOOD.")
        super().__init__(method, title, {"config": config.read_text("utf-8"), "code": code})

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Register the dataset with OpenOOD, seed and silence it; undo all of this at the end."""
        from nac_openood.plugin.source import openood_ready

        inputs = self.inputs
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
            if inputs.progress is False or not sys.stderr.isatty():  # its own progress bars
                stack.enter_context(redirect_stderr(io.StringIO()))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # OpenOOD's own
            yield

    def fit(self, inputs: MethodInputs) -> tuple[Point, Mapping[str, Sequence[Any]]]:
        """See `BatchScorer`."""
        from openood.evaluation_api.postprocessor import get_postprocessor

        name = self.method.name
        processor = get_postprocessor(str(self._configs), name, inputs.id_name)
        self._processor, self._net = processor, self._wrapped(inputs)
        parts = (inputs.train, inputs.id_val, inputs.ood_val)
        train, id_val, ood_val = map(OpenOODBatches, parts)
        processor.setup(self._net, {"train": train, "val": id_val}, {"val": ood_val})
        lists = dict(getattr(processor, "args_dict", None) or {})
        if not lists:
            return {}, {}
        values = processor.get_hyperparam()
        defaults = dict(zip(lists, values if len(lists) > 1 else [values]))
        return defaults, lists if processor.APS_mode else {}

    def use(self, point: Point) -> None:
        """See `BatchScorer`."""
        if point:
            self._processor.set_hyperparam(list(point.values()))

    def score_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `BatchScorer`."""
        prediction, score = self._processor.postprocess(self._net, x.clone())  # it may change `x`
        return score, prediction

    def _wrapped(self, inputs: MethodInputs) -> nn.Module:
        """The network as OpenOOD's evaluator passes it to this method."""
        from openood.networks.adascale_net import AdaScaleANet, AdaScaleLNet
        from openood.networks.ash_net import ASHNet
        from openood.networks.react_net import ReactNet
        from openood.networks.scale_net import ScaleNet

        net = inputs.net
        if self.method.needs == "network":
            net = NetworkView(net, next(iter(batches(inputs.id_val))).data)
        wrappers = {"react": ReactNet, "ash": ASHNet, "scale": ScaleNet}
        wrappers |= {"adascale_a": AdaScaleANet, "adascale_l": AdaScaleLNet}
        return wrappers.get(self.method.name, lambda net: net)(net)


class OpenGANScorer(OpenOODScorer):
    """OpenOOD's OpenGAN: a discriminator of features, trained by OpenOOD beforehand.

    Args:
        method: its row of the table.
        file: `best_DNet.ckpt`, as OpenOOD's recorder writes it.

    Raises:
        Absent: there is no such file.
    """

    def __init__(self, method: Method, file: Path) -> None:
        if not file.is_file():
            raise Absent(
                f"OpenGAN needs a discriminator trained by OpenOOD, and there is no {file}. Train "
                "one with OpenOOD's main.py (pipeline train_opengan) and pass it as `opengan`."
            )
        super().__init__(method)
        changed = file.stat().st_mtime_ns
        self.settings = {**self.settings, "discriminator": str(file), "changed": changed}
        self._file = file

    def fit(self, inputs: MethodInputs) -> tuple[Point, Mapping[str, Sequence[Any]]]:
        """Load the discriminator."""
        from openood.networks.opengan import Discriminator
        from openood.postprocessors import OpenGanPostprocessor

        net: Any = inputs.net
        discriminator = load_checkpoint(Discriminator(net.fc.in_features), self._file)
        self._net, self._processor = discriminator.to(device_of(net)), OpenGanPostprocessor(None)
        return {"discriminator": fingerprint(self._net)["weights"][:16]}, {}

    def use(self, point: Point) -> None:
        """Nothing can be set."""

    def score_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `BatchScorer`."""
        with torch.no_grad():
            # maps of one pixel are features to OpenOOD's postprocessor
            score = self._processor.postprocess({"netD": self._net}, x[..., None, None])[1]
            return score, self.inputs.net(x).argmax(dim=1)


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
    """`net` with what OpenOOD's methods on networks use; `net` itself is never changed.

    OpenOOD's own networks have it built in; those of torchvision, timm and users do not. Stages
    are attributes (`layer1` to `layer4`, `avgpool`), and so is the head (`fc`).

    Args:
        net: the network.
        x: a batch to find its head with.
    """

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.net = net
        self.fc = head_of(net, x)[1]
        self.feature_size = self.fc.in_features
        for name, stage in stages_of(net).items():
            setattr(self, name, stage)

    def forward(
        self, x: Tensor, return_feature: bool = False, return_feature_list: bool = False
    ) -> Any:
        """Logits, with the input of the head, or what enters and leaves the stages, if asked."""
        if return_feature:
            seen: list[Tensor] = []
            head = self.fc, lambda _, inputs: seen.append(inputs[0].clone())
            return logits_of(run(self.net, x, on_input=[head]), x), seen[-1]
        if not return_feature_list:
            return logits_of(self.net(x), x)
        logits, stem, outputs = self._run(x, *_LISTED)
        return logits, [stem, *outputs]

    def get_fc_layer(self) -> nn.Linear:
        """The head."""
        return self.fc

    def intermediate_forward(self, x: Tensor, layer_index: int) -> Tensor:
        """The output of a stage, 1 to 4."""
        return self._run(x, f"layer{layer_index}")[2][0]

    def _run(self, x: Tensor, *names: str) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Logits, the input of the first of these stages, and the outputs of all of them."""
        stages = list(stages_of(self.net, *names).values())
        stem: list[Tensor] = []
        outputs: list[Tensor] = []
        # copies, because a later in-place operation would overwrite them
        on_input = [(stages[0], lambda _, inputs: stem.append(inputs[0].clone()))]
        on_output = [(stage, lambda *call: outputs.append(call[2].clone())) for stage in stages]
        logits = run(self.net, x, on_input=on_input, on_output=on_output)
        return logits_of(logits, x), stem[0], outputs
