"""Methods given as functions: how they are run, and what several of them need."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from nac_openood.benchmark.methods.scorer import BatchScorer, MethodInputs, Point
from nac_openood.benchmark.methods.table import Method
from nac_openood.detector.batches import batches
from nac_openood.errors import NACError, some
from nac_openood.network.inputs import prepare

#: How many numbers a method may compute at a time.
_CHUNK = 2**26
#: A function that computes scores, and one that returns it for some hyperparameters; see
#: `FunctionScorer`.
ScoreFunction = Callable[..., Any]
FittedMethod = Callable[..., ScoreFunction]


class FunctionScorer(BatchScorer):
    """A method given as a function `fit_NAME`, with the defaults and sweep of its row.

    `fit_NAME(inputs, ...)` takes the hyperparameters that have no sweep. It returns a function that
    takes the others and returns the function that computes the scores `[batch]`:

    * a method on features takes features `[batch, D]` and logits `[batch, classes]`;
    * a method on the network takes a batch, and returns scores and logits.

    Args:
        method: its row of the table.
        implementation: the library whose code runs, with its version.
        function: `fit_NAME`.
    """

    #: -1 for functions whose higher scores mean more out-of-distribution.
    sign = 1

    def __init__(
        self, method: Method, implementation: str, function: Callable[..., FittedMethod]
    ) -> None:
        settings = {"defaults": method.defaults, "sweep": method.sweep}
        super().__init__(method, implementation, settings)
        self._function = function

    def fit(self, inputs: MethodInputs) -> tuple[Point, Mapping[str, Sequence[Any]]]:
        """See `BatchScorer`."""
        defaults, sweep = dict(self.method.defaults), self.method.sweep
        fixed = {name: value for name, value in defaults.items() if name not in sweep}
        self._fitted = self._function(inputs, **fixed)
        return defaults, sweep

    def use(self, point: Point) -> None:
        """See `BatchScorer`."""
        self._score = self._fitted(**{name: point[name] for name in self.method.sweep})

    def score_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `BatchScorer`."""
        if self.method.needs == "network":
            score, logits = self._score(x)
        else:
            with torch.no_grad():
                logits = self.inputs.net(x).float()
                score = self._score(x.float(), logits)
        return self.sign * score, logits.argmax(dim=1)


def labelled(net: nn.Module, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches as `net` takes them, and their labels on the CPU, -1 if there are none."""
    for batch in batches(loader):
        yield prepare(net, batch.data), batch.labels()


@torch.no_grad()
def collect(
    net: nn.Module, loader: Iterable[Any], function: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, Tensor]:
    """The results of a function of every batch `[samples, ...]`, and the labels, on the CPU."""
    parts, labels = [], []
    for x, label in labelled(net, loader):
        parts.append(function(x).detach().float().cpu())
        labels.append(label)
    # not torch.cat, which would need twice the memory: each part is freed when it is copied
    whole = torch.empty((sum(map(len, parts)), *parts[0].shape[1:]))
    for rows in whole.split([len(part) for part in parts]):
        rows.copy_(parts.pop(0))
    return whole, torch.cat(labels)


def check_classes(method: str, label: Tensor, n_classes: int, what: str = "sample") -> None:
    """Check that every class has a training label."""
    missing = sorted(set(range(n_classes)) - set(label.unique().tolist()))
    if missing:
        raise NACError(
            f"{method} needs at least one training {what} of every class; there is none of "
            f"{some(missing)}. Add training data, or leave it out of `methods`."
        )


def head_weights(net: Any) -> tuple[Tensor, Tensor]:
    """Weight `[classes, D]` and bias `[classes]` of the head, on the CPU.

    Detectors work where their weights are, and the features of a training set may not fit on a GPU.
    """
    weight, bias = net.get_fc()
    return torch.from_numpy(weight), torch.from_numpy(bias)


def in_parts(x: Tensor, numbers_each: int) -> tuple[Tensor, ...]:
    """Split a batch so that no part computes too many numbers at a time."""
    return x.split(max(1, _CHUNK // max(1, numbers_each)))
