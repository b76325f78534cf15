"""A training loop over minibatches of several source domains, which saves checkpoints."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.core.layer_config import finite_number, whole_number
from nac_openood.detector.batches import bar, batches, check_labels, dataset_labels
from nac_openood.errors import NACError
from nac_openood.files import PathLike, make_folder, write_weights
from nac_openood.network.head import head_of
from nac_openood.network.inputs import call, joined_inputs, logits_of, prepare, rows, tensors_in
from nac_openood.network.replica import kept_random_state, unwrap
from nac_openood.training.algorithms import ERM, Algorithm, Outputs
from nac_openood.training.entropy import NACEntropy


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
        path = self.folder / f"step_{step:05d}.pt"
        self.paths[step] = write_weights(path, unwrap(net))


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
        NACError: if a loader is empty or has samples of one class only, a setting is out of range,
            or training diverges.
    """
    steps, every = whole_number("steps", steps, 1), whole_number("every", every, 1)
    sign = -finite_number("lam", lam) if maximize else finite_number("lam", lam)
    if entropy is not None and entropy.net is not net:
        raise NACError("`entropy` must watch the network that is trained: NACEntropy(net, layer).")
    _check_domains(loaders)
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


def _minibatches(
    net: nn.Module, loaders: Sequence[Iterable[Any]]
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Inputs, labels and numbers of domains: the next minibatches of all domains as one batch."""
    streams = [_forever(number, loader) for number, loader in enumerate(loaders)]
    for parts in zip(*streams):
        data = prepare(net, joined_inputs([x for x, _ in parts]))
        labels = torch.cat([y for _, y in parts]).to(tensors_in(data)[0].device)
        sizes = torch.tensor([len(y) for _, y in parts])
        domains = torch.arange(len(parts)).repeat_interleave(sizes)
        yield data, labels, domains.to(labels.device)


def _forever(number: int, loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """The batches of a loader, epoch after epoch."""
    while True:
        batch = None
        for batch in batches(loader):
            if batch.label is None:
                raise NACError(
                    f"expected batches (x, y) with labels of domain {number}, got samples alone."
                )
            yield batch.data, batch.label
        if batch is None:
            raise NACError(
                f"the loader of domain {number} yields no batches: the domain is empty, or smaller "
                "than a batch with drop_last=True. Add samples, or use a smaller batch size."
            )


def _check_domains(loaders: Sequence[Iterable[Any]]) -> None:
    if not loaders:
        raise NACError("expected a loader for each source domain in `loaders`, got none.")
    for number, loader in enumerate(loaders):
        labels = dataset_labels(getattr(loader, "dataset", None))
        if labels is not None and len(labels) and len(np.unique(labels)) < 2:
            raise NACError(
                f"domain {number} has samples of one class only, {labels[0]}: expected at least "
                "two. Add images of other classes, or leave the domain out."
            )
