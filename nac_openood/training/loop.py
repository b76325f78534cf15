"""A plain training loop over minibatches of several source domains."""

from __future__ import annotations

import math
from contextlib import ExitStack
from itertools import chain
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.core.layer_config import finite_number, whole_number
from nac_openood.detector.batches import batches, check_labels
from nac_openood.detector.subset import dataset_labels
from nac_openood.errors import NACError
from nac_openood.network.head import head_of
from nac_openood.network.inputs import call, joined_inputs, logits_of, prepare, rows, tensors_in
from nac_openood.network.random_state import kept_random_state
from nac_openood.progress import bar
from nac_openood.training.algorithms import ERM, Algorithm, Outputs
from nac_openood.training.entropy import NACEntropy


class Logged(NamedTuple):
    """Means since the last checkpoint: of the algorithm's loss and of the NAC entropy, if any."""

    step: int
    loss: float
    entropy: Optional[float]


class _Minibatch(NamedTuple):
    data: Any
    labels: Tensor
    domains: Tensor


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
    random state is kept.

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
        every: distance of checkpoints in steps; there is one after the last step, too.
        on_checkpoint: called as `on_checkpoint(step, net)`, with the network in evaluation mode,
            e.g. `SaveCheckpoints(folder)` or `CoverageMonitor(...)`. If it has an attribute
            `should_stop` that is true, training ends there.
        seed: random seed of the training; the network has its weights already.
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
    with kept_random_state(seed), ExitStack() as stack:
        stream = _minibatches(net, loaders)
        first = next(stream)
        features = _Features(net, algorithm, first.data, stack)
        parameters = chain(net.parameters(), algorithm.parameters())
        optimizer = torch.optim.Adam(parameters, lr=rate, weight_decay=weight_decay)
        log, recent = [], []
        net.train()
        numbers = bar(range(1, steps + 1), "training", progress)
        for step, batch in zip(numbers, chain([first], stream)):
            loss = algorithm(_outputs(net, batch, features))
            spread = None if entropy is None else entropy()
            total = loss if spread is None else loss + sign * spread
            recent.append(
                (_finite(total, loss, step), None if spread is None else float(spread.detach()))
            )
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            if step % every == 0 or step == steps:
                log.append(_row(step, recent))
                recent = []
                if _show(net, step, on_checkpoint):
                    break
    net.eval()
    return log


class _Features:
    """Keeps the input of the network's last linear layer, where an algorithm needs it."""

    def __init__(self, net: nn.Module, algorithm: Algorithm, sample: Any, stack: ExitStack) -> None:
        self.last: Optional[Tensor] = None
        if algorithm.needs_features:
            _, head = head_of(net, rows(sample, slice(2)))
            algorithm.start(head.in_features)
            algorithm.to(head.weight.device).train()
            stack.callback(head.register_forward_pre_hook(self._observe).remove)

    def _observe(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.last = inputs[0]


def _outputs(net: nn.Module, batch: _Minibatch, features: _Features) -> Outputs:
    logits = logits_of(call(net, batch.data), batch.data)
    check_labels(batch.labels, logits.shape[1])
    return Outputs(logits, batch.labels, batch.domains, features.last)


def _minibatches(net: nn.Module, loaders: Sequence[Iterable[Any]]) -> Iterator[_Minibatch]:
    """The minibatches of all domains, one after the other, as one batch per step."""
    streams = [_forever(number, loader) for number, loader in enumerate(loaders)]
    for parts in zip(*streams):
        data = prepare(net, joined_inputs([x for x, _ in parts]))
        labels = torch.cat([y for _, y in parts]).to(tensors_in(data)[0].device)
        sizes = torch.tensor([len(y) for _, y in parts])
        domains = torch.arange(len(parts)).repeat_interleave(sizes)
        yield _Minibatch(data, labels, domains.to(labels.device))


def _forever(number: int, loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """The batches of a loader, epoch after epoch."""
    while True:
        empty = True
        for batch in batches(loader):
            if batch.label is None:
                raise NACError(
                    f"expected batches (x, y) with labels of domain {number}, got samples alone."
                )
            empty = False
            yield batch.data, batch.label
        if empty:
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


def _finite(total: Tensor, loss: Tensor, step: int) -> float:
    if not math.isfinite(float(total.detach())):
        raise NACError(
            f"the loss is {float(total.detach())} at step {step}: training has diverged, or the "
            "data holds NaN. Lower `rate` or `lam`."
        )
    return float(loss.detach())


def _row(step: int, recent: Sequence[tuple[float, Optional[float]]]) -> Logged:
    spreads = [spread for _, spread in recent if spread is not None]
    mean = float(np.mean(spreads)) if spreads else None
    return Logged(step, float(np.mean([loss for loss, _ in recent])), mean)


def _show(
    net: nn.Module, step: int, on_checkpoint: Optional[Callable[[int, nn.Module], Any]]
) -> bool:
    """Call back; returns whether to stop."""
    if on_checkpoint is not None:
        net.eval()
        on_checkpoint(step, net)
        net.train()
    return bool(getattr(on_checkpoint, "should_stop", False))
