"""NAC entropy: how spread out the outputs of a layer's neurons are, as a loss with a gradient.

A histogram over `n_bins` equal bins is a step function of the neuron's output z. With interior
edges `e_1 < ... < e_{M-1}` and bin probabilities `q_0 ... q_{M-1}` it is

    p(z) = q_0 + sum over k of step(z - e_k) * (q_k - q_{k-1}),

where step is 1 from 0 on. Replacing each step by `sigmoid((z - e_k) / (temperature * width))` makes
it smooth. The result is a weighted mean of the bin probabilities, and differs from the histogram by
at most `sum over k of sigmoid(-|z - e_k| / (temperature * width)) * |q_k - q_{k-1}|`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from nac_openood.core.layer_config import finite_number, refuse_unknown, whole_number
from nac_openood.core.reading import pooling_for
from nac_openood.errors import NACError
from nac_openood.network.architectures import find_layer

#: Forms of the entropy of one neuron, given the probability of its output.
ENTROPY_FORMS = ("paper", "surprisal")


class NACEntropy(AbstractContextManager["NACEntropy"]):
    """The paper's NAC entropy of one layer, for your own training loop.

    A forward hook on the layer keeps the outputs of the last `window` samples. Their histograms,
    one per neuron, are the running estimate of the distributions `p_i`. Calling the object returns
    the entropy of the last batch, with a gradient::

        with NACEntropy(net, "avgpool") as entropy:
            for x, y in loader:
                loss = cross_entropy(net(x), y) - lam * entropy()

    Passes without gradients (`torch.no_grad()`), such as those of a validation, are ignored.

    Args:
        net: the network that is trained.
        layer: name or module path of the layer, as in `NACDetector`; positions are summed.
        n_bins: number of bins of a histogram, over the range of the samples in the window.
        window: number of the most recent samples that the histograms are made of; at least the
            current batch.
        temperature: width of the smoothing in bins; see `nac_openood.training.entropy`.
        form: "paper" is the sum over neurons of `-p log p`, as printed in the paper. "surprisal" is
            the sum over neurons of `-log p`, whose mean over samples is the entropy of their
            distributions.
        layout: how the layer's output is laid out, as in `LayerConfig`.

    Raises:
        NACError: if there is no such layer, or a setting is out of range.
    """

    def __init__(
        self,
        net: nn.Module,
        layer: str,
        *,
        n_bins: int = 50,
        window: int = 1024,
        temperature: float = 0.5,
        form: str = "paper",
        layout: Optional[str] = None,
    ) -> None:
        self.n_bins = whole_number("n_bins", n_bins, 2)
        self.window = whole_number("window", window, 2)
        self.temperature = finite_number("temperature", temperature)
        if not self.temperature:
            raise NACError("temperature must be positive: at 0 there is no gradient.")
        refuse_unknown({form: None}, ENTROPY_FORMS, "form")
        self.net, self.layer, self.form = net, layer, form
        found = find_layer(net, layer)
        self._layout = layout or found.layout
        # the last outputs [up to window, neurons], oldest first
        self._seen: Any = None
        self._last: Optional[Tensor] = None
        self._handle = net.get_submodule(found.path).register_forward_hook(self._observe)

    def __call__(self) -> Tensor:
        """The entropy of the last training batch: a sum over neurons, a mean over samples.

        Raises:
            NACError: if no batch went through the network since the last call, or an output is not
                finite.
        """
        z, self._last = self._last, None
        if z is None:
            raise NACError(
                f"no batch has gone through layer '{self.layer}' with gradients since the last "
                "call: run the network on a batch first, outside torch.no_grad() and with "
                "parameters before this layer that are trained, and call this once per batch."
            )
        if not bool(z.isfinite().all()):
            raise NACError(
                f"layer '{self.layer}' has outputs that are not finite, so training has diverged "
                "or the input holds NaN. Lower the learning rate or `lam`, and check the data."
            )
        seen = z.detach() if self._seen is None else torch.cat([self._seen, z.detach()])
        # the batch is always part of its own histograms, so no output has probability 0
        self._seen = seen[-max(self.window, len(z)) :]
        return entropy(z, self.histogram(), self.temperature, self.form)

    def histogram(self) -> BinnedNeurons:
        """The running histograms of the samples in the window; call it after the entropy."""
        return histogram(self._seen, self.n_bins)

    def close(self) -> None:
        """Remove the hook from the layer."""
        self._handle.remove()
        self._last = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def _observe(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if output.requires_grad:
            # pooling copies, so a later in-place operation cannot change it
            self._last = pooling_for(self._layout, output.shape, self.layer)(output)


def entropy(z: Tensor, bins: BinnedNeurons, temperature: float, form: str = "paper") -> Tensor:
    """NAC entropy of a batch under the histograms of `bins`.

    Args:
        z: outputs `[batch, neurons]`.
        bins: the histograms, which are constants here.
        temperature: width of the smoothing in bins.
        form: as in `NACEntropy`.

    Returns:
        The sum over neurons and mean over samples, a scalar with a gradient with respect to `z`.
    """
    p = soft_probability(z, bins, temperature)
    # far outside the range of the histograms p may vanish, and its logarithm must not be infinite
    log = p.clamp_min(torch.finfo(p.dtype).tiny).log()
    by_neuron = -p * log if form == "paper" else -log
    return by_neuron.sum(dim=1).mean()


class BinnedNeurons(NamedTuple):
    """The histogram of each neuron.

    Args:
        edges: interior edges `[neurons, n_bins - 1]`; the outer bins are open outwards.
        width: width of a bin `[neurons]`; 0 for a neuron that never changed.
        probabilities: share of the samples in each bin `[neurons, n_bins]`; rows sum to 1.
    """

    edges: Tensor
    width: Tensor
    probabilities: Tensor


def histogram(samples: Tensor, n_bins: int) -> BinnedNeurons:
    """The histogram of each neuron over its own range, in equal bins, closed on the left.

    Args:
        samples: outputs `[samples, neurons]`, finite.
        n_bins: number of bins.
    """
    by_neuron = samples.detach().t().contiguous()
    low, high = by_neuron.amin(dim=1), by_neuron.amax(dim=1)
    width = (high - low) / n_bins
    # a range below the rounding error of its ends cannot be divided into bins
    limits = torch.finfo(width.dtype)
    smallest = torch.maximum(low.abs(), high.abs()) * limits.eps + limits.tiny
    width = torch.where(width > smallest, width, torch.zeros_like(width))
    steps = torch.arange(1, n_bins, dtype=width.dtype, device=width.device)
    edges = low[:, None] + width[:, None] * steps
    index = torch.searchsorted(edges, by_neuron, right=True)
    counts = edges.new_zeros(len(edges), n_bins)
    counts.scatter_add_(1, index, torch.ones_like(by_neuron))
    return BinnedNeurons(edges, width, counts / len(samples))


def soft_probability(z: Tensor, bins: BinnedNeurons, temperature: float) -> Tensor:
    """The probability of each output, smoothed, with a gradient with respect to `z`.

    Args:
        z: outputs `[batch, neurons]`.
        bins: the histograms, which are constants here.
        temperature: width of the smoothing in bins; the histogram itself is the limit at 0.

    Returns:
        Probabilities `[batch, neurons]`; 1 for a neuron that never changed.
    """
    varies = bins.width > 0
    scale = torch.where(varies, temperature * bins.width, torch.ones_like(bins.width))
    steps = torch.sigmoid((z[:, :, None] - bins.edges) / scale[:, None])
    jumps = bins.probabilities.diff(dim=1)
    found = bins.probabilities[:, 0] + (steps * jumps).sum(dim=-1)
    return torch.where(varies, found, torch.ones_like(found))
