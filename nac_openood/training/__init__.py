"""NAC entropy as a training loss, and training on several source domains as in DomainBed.

`NACEntropy` is for training loops of your own. `train` is a small loop that takes a minibatch of
each domain and saves checkpoints; ERM, CORAL and SelfReg are losses for it.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood.core.layer_config import finite_number, whole_number
from nac_openood.detector.batches import bar, batches, check_labels
from nac_openood.errors import NACError
from nac_openood.files import PathLike, make_folder, write_weights
from nac_openood.network.head import head_of
from nac_openood.network.inputs import call, joined_inputs, logits_of, prepare, rows, tensors_in
from nac_openood.network.replica import kept_random_state, unwrap
from nac_openood.training.entropy import NACEntropy

__all__ = ["CORAL", "ERM", "Algorithm", "Logged", "NACEntropy", "Outputs"]
__all__ += ["SaveCheckpoints", "SelfReg", "train"]

# -- losses ----------------------------------------------------------------------------------


class Outputs(NamedTuple):
    """One step's minibatches of all domains, after one pass over the network.

    Args:
        logits: `[batch, classes]`.
        labels: int64 `[batch]`.
        domains: number of each sample's domain, int64 `[batch]`.
        features: input of the classifier's last linear layer `[batch, D]`; None for an algorithm
            that does not need it.
    """

    logits: Tensor
    labels: Tensor
    domains: Tensor
    features: Any = None


class Algorithm(nn.Module):
    """A loss on the minibatches of all domains. Subclasses may have parameters, which are trained.

    Attributes:
        needs_features: whether it uses `Outputs.features`.
    """

    needs_features = False

    def start(self, width: int) -> None:
        """Create modules that depend on the number of features; called once before training."""

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, a scalar; cross-entropy over the samples of all domains unless overridden."""
        return F.cross_entropy(outputs.logits, outputs.labels)


class ERM(Algorithm):
    """Empirical risk minimization: cross-entropy over the samples of all domains."""


class CORAL(Algorithm):
    """Cross-entropy, and features whose mean and covariance agree between domains.

    Args:
        weight: of the second term (DomainBed's `mmd_gamma`).
    """

    needs_features = True

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = finite_number("weight", weight)

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, a scalar."""
        parts = [outputs.features[outputs.domains == d] for d in outputs.domains.unique()]
        distances = [moment_distance(*pair) for pair in combinations(parts, 2)]
        loss = super().forward(outputs)
        return loss + self.weight * torch.stack(distances).mean() if distances else loss


class SelfReg(Algorithm):
    """Cross-entropy, and outputs that agree between samples of a class, alone and mixed.

    Args:
        feature_weight: of the terms on features, relative to those on logits.
    """

    needs_features = True

    def __init__(self, feature_weight: float = 0.3) -> None:
        super().__init__()
        self.feature_weight = finite_number("feature_weight", feature_weight)
        self.project = nn.Sequential()

    def start(self, width: int) -> None:
        """Create the projection of the features, which is trained with the network."""
        first = (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True))
        self.project = nn.Sequential(*first, nn.Linear(width, width), nn.BatchNorm1d(width))

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, a scalar."""
        features, logits = outputs.features, outputs.logits
        projected = self.project(features)
        mix = float(torch.distributions.Beta(0.5, 0.5).sample())
        other, another = within_classes(outputs.labels), within_classes(outputs.labels)

        def mixed(values: Tensor) -> Tensor:
            return mix * values[other] + (1 - mix) * values[another]

        single = F.mse_loss(logits, logits[other])
        single = single + self.feature_weight * F.mse_loss(features, projected[other])
        double = F.mse_loss(logits, mixed(logits))
        double = double + self.feature_weight * F.mse_loss(features, mixed(projected))
        loss = super().forward(outputs)
        return loss + min(float(loss.detach()), 1.0) * (mix * single + (1 - mix) * double)


def moment_distance(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared difference of the means, plus that of the covariances, of features `[n, D]`."""
    mean = (first.mean(dim=0) - second.mean(dim=0)).pow(2).mean()
    return mean + (first.t().cov() - second.t().cov()).pow(2).mean()


def within_classes(labels: Tensor) -> Tensor:
    """For each sample the row of a random sample of its class: a permutation, int64 `[batch]`."""
    rows = torch.arange(len(labels), device=labels.device)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        rows[members] = members[torch.randperm(len(members)).to(labels.device)]
    return rows


# -- the loop --------------------------------------------------------------------------------


class Logged(NamedTuple):
    """Mean loss of the algorithm, and mean NAC entropy if used, since the last checkpoint."""

    step: int
    loss: float
    entropy: Optional[float]


class SaveCheckpoints:
    """Saves a network's state dict at every checkpoint of `train(on_checkpoint=...)`.

    Files are named `step_00300.pt` and so on, so that their names sort by step, and are written
    atomically. `nac-openood rank` reads them.

    Args:
        folder: created if it does not exist.

    Attributes:
        paths: the files written so far, by step.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = make_folder(folder)
        self.paths: dict[int, Path] = {}

    def __call__(self, step: int, net: nn.Module) -> None:
        """Save the network, without its DataParallel, DDP or torch.compile wrapper."""
        self.paths[step] = write_weights(self.folder / f"step_{step:05d}.pt", unwrap(net))


def train(
    net: nn.Module,
    loaders: Sequence[Iterable[Any]],
    *,
    algorithm: Optional[Algorithm] = None,
    entropy: Optional[NACEntropy] = None,
    lam: float = 1e-4,
    maximize: bool = True,
    steps: int = 5000,
    rate: float = 5e-5,
    weight_decay: float = 0.0,
    every: int = 300,
    on_checkpoint: Optional[Callable[[int, nn.Module], Any]] = None,
    seed: int = 0,
    progress: Optional[bool] = None,
) -> list[Logged]:
    """Train a classifier on several source domains with Adam; defaults are DomainBed's.

    A step takes one minibatch of each domain and runs the network once on all of them. The caller's
    random state is not changed.

    Args:
        net: a classifier; it is trained in place, and left in evaluation mode.
        loaders: batches `(x, y)` of each source domain, repeated without end. Shuffle them.
        algorithm: the loss; None is `ERM()`.
        entropy: `NACEntropy(net, layer)` to add its value to the loss; None trains without it.
        lam: weight of the entropy, not negative.
        maximize: whether the entropy is subtracted from the loss (the paper's better choice) or
            added to it.
        steps: number of steps.
        rate: learning rate.
        weight_decay: of Adam.
        every: number of steps between checkpoints; there is one after the last step, too.
        on_checkpoint: called as `on_checkpoint(step, net)`, with the network in evaluation mode,
            e.g. `SaveCheckpoints(folder)` or `CoverageMonitor(...)`. If it has an attribute
            `should_stop` that is true, training ends there.
        seed: random seed of the training; the initial weights of `net` do not depend on it.
        progress: whether to show a progress bar; None shows it on a terminal.

    Returns:
        A row per checkpoint.

    Raises:
        NACError: if a loader is empty, a setting is out of range, or training diverges.
    """
    steps, every = whole_number("steps", steps, 1), whole_number("every", every, 1)
    sign = -finite_number("lam", lam) if maximize else finite_number("lam", lam)
    if not loaders:
        raise NACError("expected a loader for each source domain in `loaders`, got none.")
    algorithm = algorithm or ERM()
    features: dict[str, Tensor] = {}  # the last input of the head, where it is needed
    log, losses, entropies = [], [], []
    with kept_random_state(seed), ExitStack() as stack:
        stream = _minibatches(net, loaders)
        first = next(stream)
        if algorithm.needs_features:
            _, head = head_of(net, rows(first[0], slice(2)))
            algorithm.start(head.in_features)
            algorithm.to(head.weight.device).train()
            hook = head.register_forward_pre_hook(lambda _, x: features.update(last=x[0]))
            stack.callback(hook.remove)
        parameters = chain(net.parameters(), algorithm.parameters())
        optimizer = torch.optim.Adam(parameters, lr=rate, weight_decay=weight_decay)
        net.train()
        numbers = bar(range(1, steps + 1), "training", progress)
        for step, (data, labels, domains) in zip(numbers, chain([first], stream)):
            logits = logits_of(call(net, data), data)
            check_labels(labels, logits.shape[1])
            outputs = Outputs(logits, labels, domains, features.get("last"))
            total = loss = algorithm(outputs)
            losses.append(float(loss.detach()))
            if entropy is not None:
                spread = entropy()
                entropies.append(float(spread.detach()))
                total = loss + sign * spread
            if not bool(total.isfinite()):
                raise NACError(
                    f"the loss is {float(total.detach())} at step {step}: training has diverged, "
                    "or the data holds NaN. Lower `rate` or `lam`."
                )
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            if step % every == 0 or step == steps:
                mean = float(np.mean(entropies)) if entropies else None
                log.append(Logged(step, float(np.mean(losses)), mean))
                losses, entropies = [], []
                net.eval()
                if on_checkpoint is not None:
                    on_checkpoint(step, net)
                if getattr(on_checkpoint, "should_stop", False):
                    break
                net.train()
    net.eval()
    return log


def _minibatches(net: nn.Module, loaders: Sequence[Any]) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Inputs, labels and numbers of domains: the next minibatches of all domains as one batch."""
    for parts in zip(*(_forever(number, loader) for number, loader in enumerate(loaders))):
        data = prepare(net, joined_inputs([x for x, _ in parts]))
        device = tensors_in(data)[0].device
        domains = [number for number, (_, y) in enumerate(parts) for _ in y]
        labels = torch.cat([y for _, y in parts])
        yield data, labels.to(device), torch.tensor(domains, device=device)


def _forever(number: int, loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """The batches of a loader, epoch after epoch."""
    while True:
        batch = None
        for batch in batches(loader):
            if batch.label is None:
                raise NACError(f"expected batches (x, y) of domain {number}, got samples alone.")
            yield batch.data, batch.label
        if batch is None:
            raise NACError(
                f"the loader of domain {number} yields no batches: the domain is empty, or smaller "
                "than a batch with drop_last=True. Add samples, or use a smaller batch size."
            )
