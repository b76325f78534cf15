"""NAC against the native detectors of other training schemes: ConfBranch, RotPred, GODIN (Table 3).

Networks, trainers and detectors are OpenOOD's; the backbone is the architecture under study with
new weights. The networks are trained here, on the training data of the study and for a few epochs,
so they are weaker than published ones. NAC is set up as in `nac_openood.compare`.
"""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stderr
from pkgutil import resolve_name
from typing import Any, Iterator, Union

from torch import Tensor, nn
from torch.utils.data import DataLoader

from nac_openood.analysis.data import AnalysisData, Options
from nac_openood.analysis.finding import Finding, MetricStudy
from nac_openood.analysis.scores import Metrics
from nac_openood.benchmark.api import compare
from nac_openood.benchmark.methods.openood import OpenOODBatches, OpenOODScorer
from nac_openood.benchmark.methods.scorer import MethodInputs
from nac_openood.benchmark.methods.table import Method
from nac_openood.detector.batches import bar, batches
from nac_openood.errors import NACError
from nac_openood.network.head import head_of
from nac_openood.network.replica import kept_random_state
from nac_openood.plugin.source import openood_ready
from nac_openood.sources.networks import build
from nac_openood.tables import Column, metric_bars, text_columns

#: Titles of the paper's schemes by the names of their detectors in OpenOOD.
SCHEMES = {"conf_branch": "ConfBranch", "rotpred": "RotPred", "godin": "GODIN"}
#: Their classes in `openood.networks` and `openood.trainers`.
_CLASSES = {
    "conf_branch": ("conf_branch_net:ConfBranchNet", "conf_branch_trainer:ConfBranchTrainer"),
    "rotpred": ("rot_net:RotNet", "rotpred_trainer:RotPredTrainer"),
    "godin": ("godin_net:GodinNet", "godin_trainer:GodinTrainer"),
}
# from OpenOOD's configs/pipelines/train, except for the learning rate: short runs diverge at 0.1
_OPTIMIZER = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
_TRAINER = {"budget": 0.3, "lmbda": 0.1, "eps": 1e-12}
_BATCH = 64  # samples per training step
_NATIVE = "native"
#: The detectors that run on each network, and their names in tables.
_DETECTORS = {_NATIVE: "its own", "nac": "NAC", "nac_plus": "NAC+"}


def schemes(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of a scheme's own detector, NAC and NAC+ on its network."""
    study, printed = MetricStudy(data, options, "scheme", "method"), {}
    for name, title in SCHEMES.items():
        options.say(f"{title}: training for {options.epochs} epochs")
        for method, metrics in _compared(data, name, _trained(data, name, options), options):
            study.found[name, method] = metrics
        for method, values in study.paper("Table 3", "method", training=name).items():
            printed[name, _NATIVE if method == "baseline" else method] = values
    accuracy = {name: study.values("ACC")[name, "nac"] for name in SCHEMES}
    rows = [
        ([SCHEMES[name], _DETECTORS[method], accuracy[name]], line, (name, method))
        for (name, method), line in study.found.items()
    ]
    ours = [number for number, (_, method) in enumerate(study.found) if method != _NATIVE]
    heads = [*text_columns("Training", "Detector"), Column("ID accuracy")]
    study.table("", heads, rows, paper=printed, ours=ours)
    aurocs = study.values()
    bars = [(title, [aurocs[name, m] for m in _DETECTORS]) for name, title in SCHEMES.items()]
    title = f"{study.title} AUROC by training scheme"
    study.figures.append(metric_bars("AUROC", title, list(_DETECTORS.values()), bars))
    study.notes.insert(
        0, f"OpenOOD's networks around {data.arch}, trained from scratch by OpenOOD's trainers for "
        f"only {options.epochs} epochs on {len(data.run.samples['train'])} samples without "
        "augmentation: they show that NAC works on such networks, not which scheme is best.",
    )  # fmt: skip
    text = "{} {:.2f} % with its own detector, {:.2f} % with NAC"
    listed = "; ".join(text.format(title, *values[:2]) for title, values in bars)
    return study.finding(
        "schemes", "Other training schemes", f"{study.title} AUROC: {listed}.",
        {"accuracy": accuracy, "epochs": options.epochs},
    )  # fmt: skip


class Backbone(nn.Module):
    """A classifier without its head, as OpenOOD's schemes expect it.

    Args:
        net: a classifier that ends in a linear layer, which is removed.
        sample: a batch for it.
    """

    def __init__(self, net: nn.Module, sample: Tensor) -> None:
        super().__init__()
        path, head = head_of(net, sample)
        net.set_submodule(path, nn.Identity())
        self.net, self.feature_size = net, head.in_features

    def forward(self, x: Tensor, return_feature: bool = False) -> Union[Tensor, tuple[Any, ...]]:
        """Features `[batch, D]`; they also replace the logits, which are not used."""
        feature = self.net(x)
        return (feature, feature) if return_feature else feature


class NativeScorer(OpenOODScorer):
    """A scheme's own detector, which runs on the scheme's network only."""

    def _wrapped(self, inputs: MethodInputs) -> nn.Module:
        return inputs.net


def _trained(data: AnalysisData, name: str, options: Options) -> nn.Module:
    """A network trained by OpenOOD's trainer of a scheme, in evaluation mode."""
    study, (network, trainer_name) = data.run.study, _CLASSES[name]
    n_classes = study.sets.n_classes
    sample = next(iter(batches(study.scored["test"].loader()))).rows(slice(2)).data
    loader: Any = data.run.loader("train", "network")
    shuffled = DataLoader(
        loader.dataset, batch_size=_BATCH, shuffle=True, drop_last=True,
        num_workers=study.workers, collate_fn=loader.collate_fn,
    )  # fmt: skip
    with openood_ready(on_cpu=True), kept_random_state(options.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OpenOOD's own
        from openood.utils import Config

        backbone = Backbone(build(data.arch, n_classes), sample)
        sizes = (backbone.feature_size, n_classes) if name == "godin" else (n_classes,)
        net: nn.Module = resolve_name(f"openood.networks.{network}")(backbone, *sizes)
        config = Config(
            num_classes=n_classes, baseline=False, trainer=Config(**_TRAINER),
            optimizer=Config(**_OPTIMIZER, num_epochs=options.epochs),
        )  # fmt: skip
        make_trainer = resolve_name(f"openood.trainers.{trainer_name}")
        trainer = make_trainer(net, OpenOODBatches(shuffled), config)
        for epoch in bar(range(options.epochs), f"training {SCHEMES[name]}", options.progress):
            with redirect_stderr(io.StringIO()):  # its own bars, one per epoch
                trainer.train_epoch(epoch)
    return net.eval()


def _compared(
    data: AnalysisData, name: str, net: nn.Module, options: Options
) -> Iterator[tuple[str, Metrics]]:
    """The metrics of the scheme's own detector, NAC and NAC+ on its network."""
    study, method = data.run.study, Method(name, SCHEMES[name], needs="network", uses_train=False)
    native = method._replace(name=_NATIVE, scorer=lambda: NativeScorer(method))
    results = compare(
        net, **vars(study.sets), methods=[native, "nac", "nac_plus"],
        out=study.out / "schemes" / name, arch=data.arch,
        nac_config=data.config if data.config.layers else None, batch_size=study.batch_size,
        workers=study.workers, seed=options.seed, progress=options.progress, say=options.say,
    )  # fmt: skip
    for row in results.rows:
        if row.status != "ok":
            raise NACError(f"{row.title} could not run on the network of a scheme: {row.error}")
        yield row.method, row.metrics
