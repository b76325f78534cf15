"""Networks of other training schemes: OpenOOD's ConfBranch, RotPred and GODIN, trained briefly.

OpenOOD's own networks, trainers and detectors run. The backbone is the architecture under study
with fresh weights.
"""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stderr
from pkgutil import resolve_name
from typing import Any, Mapping, NamedTuple, Union

from torch import Tensor, nn

from nac_openood.benchmark.methods.openood.scorer import OpenOODBatches, OpenOODScorer
from nac_openood.benchmark.methods.scorer import Given
from nac_openood.benchmark.methods.table import Method
from nac_openood.network.head import head_of
from nac_openood.network.random_state import kept_random_state
from nac_openood.plugin.source import openood_ready
from nac_openood.progress import bar


class Scheme(NamedTuple):
    """A training scheme of OpenOOD.

    Args:
        title: the name in tables.
        network: class in `openood.networks`, as `module:Class`.
        trainer: class in `openood.trainers`, as `module:Class`.
    """

    title: str
    network: str
    trainer: str


#: The paper's schemes by the names of their detectors in OpenOOD.
SCHEMES: Mapping[str, Scheme] = {
    "conf_branch": Scheme(
        "ConfBranch", "conf_branch_net:ConfBranchNet", "conf_branch_trainer:ConfBranchTrainer"
    ),
    "rotpred": Scheme("RotPred", "rot_net:RotNet", "rotpred_trainer:RotPredTrainer"),
    "godin": Scheme("GODIN", "godin_net:GodinNet", "godin_trainer:GodinTrainer"),
}
# those of OpenOOD's configs/pipelines/train, but for the learning rate: short runs diverge at 0.1
_OPTIMIZER = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
_TRAINER = {"budget": 0.3, "lmbda": 0.1, "eps": 1e-12}


class Backbone(nn.Module):
    """A classifier without its head, as OpenOOD's schemes ask for it.

    Args:
        net: a classifier that ends in a linear layer, which is removed.
        sample: a batch for it.
    """

    def __init__(self, net: nn.Module, sample: Tensor) -> None:
        super().__init__()
        path, head = head_of(net, sample)
        parent, _, name = path.rpartition(".")
        setattr(net.get_submodule(parent), name, nn.Identity())
        self.net, self.feature_size = net, head.in_features

    def forward(self, x: Tensor, return_feature: bool = False) -> Union[Tensor, tuple[Any, ...]]:
        """Features `[batch, D]`, also in the place of the logits, which nobody looks at."""
        feature = self.net(x)
        return (feature, feature) if return_feature else feature


class NativeScorer(OpenOODScorer):
    """A scheme's own detector; it calls the scheme's network, not any network."""

    def __init__(self, name: str) -> None:
        super().__init__(Method(name, SCHEMES[name].title, needs="network", openood=True))

    def _wrapped(self, given: Given) -> nn.Module:
        return given.net


def train_scheme(
    name: str,
    backbone: Backbone,
    loader: Any,
    n_classes: int,
    *,
    epochs: int,
    seed: int = 0,
    progress: Any = None,
) -> nn.Module:
    """Train a network by OpenOOD's trainer of a scheme.

    Args:
        name: a key of `SCHEMES`.
        backbone: with fresh weights.
        loader: batches of training data in random order.
        n_classes: number of classes.
        epochs: number of epochs.
        seed: random seed.
        progress: whether to show a progress bar; None shows it on a terminal.

    Returns:
        The network, in evaluation mode.

    Raises:
        NACError: OpenOOD is not installed.
    """
    scheme = SCHEMES[name]
    with openood_ready(on_cpu=True), kept_random_state(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OpenOOD's are not ours
        kind = resolve_name(f"openood.networks.{scheme.network}")
        size = (backbone.feature_size,) if name == "godin" else ()
        net: nn.Module = kind(backbone, *size, n_classes)
        trainer = resolve_name(f"openood.trainers.{scheme.trainer}")(
            net, OpenOODBatches(loader), _config(n_classes, epochs)
        )
        for epoch in bar(range(epochs), f"training {scheme.title}", progress):
            with redirect_stderr(io.StringIO()):  # its own bars, one per epoch
                trainer.train_epoch(epoch)
    return net.eval()


def _config(n_classes: int, epochs: int) -> Any:
    from openood.utils import Config

    return Config(
        num_classes=n_classes, baseline=False,
        optimizer=Config(**_OPTIMIZER, num_epochs=epochs), trainer=Config(**_TRAINER),
    )  # fmt: skip
