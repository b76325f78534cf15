"""One pass over a network: `(net, batch) -> logits and a reading per layer`.

Every layer that is read has a tap on its output, which pools the activation on the way forward.
Where a gradient is wanted, the tap is also an identity in the graph that pools the gradient on the
way back. The graph starts at the first such layer, so nothing is remembered before it, no full-size
gradient is kept, and a pass without gradients has no graph and no backward at all.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Collection, Iterable, Mapping, Optional, Union

import torch
from torch import Tensor, nn

from nac_openood.core.reading import BatchReadings, Pool, Reading, pooling_for
from nac_openood.errors import ProbeError
from nac_openood.network.architectures import Layer
from nac_openood.network.inputs import (
    Inputs,
    explained,
    joined_inputs,
    logits_of,
    prepare,
    rows,
    sample_count,
    token_mask,
)
from nac_openood.network.plan import PassPlan
from nac_openood.network.replica import Replica, add_hooks, run, run_without_grad, unwrap

#: Gradients of float16 layers are computed this much larger, or the small ones become zero.
_FLOAT16_SCALE = 1024.0


def classify(net: nn.Module, x: Any) -> Tensor:
    """The logits `[batch, classes]` of a batch, in evaluation mode and without gradients."""
    with explained(x):
        x = prepare(unwrap(net), x)
        return logits_of(run_without_grad(net, x), x)


def count_classes(net: nn.Module, x: Any) -> int:
    """The number of classes of a network, found by running it on the first sample of a batch."""
    with explained(x):
        first = rows(prepare(unwrap(net), x), slice(1))
        return logits_of(run_without_grad(net, first), first).shape[1]


def read(
    net: nn.Module,
    x: Any,
    layers: Mapping[str, Layer],
    plan: Optional[PassPlan] = None,
    *,
    gradients: Union[bool, Collection[str]] = True,
    mean: bool = False,
) -> BatchReadings:
    """Run `net` on a batch and read `layers`.

    Works on frozen networks, in train mode, under `no_grad`, `inference_mode` and autocast, and
    from any number of threads. Neither the network nor `x` is changed at any moment.

    Args:
        net: any classifier; wrappers of DataParallel, DDP and torch.compile are run from inside.
        x: a batch: a tensor `[batch, ...]`, or several in a tuple or dict; moved to the network's
            device.
        layers: what to read, by name; see `nac_openood.network.architectures.find_layer`.
        plan: how to run it; None runs the batch in one piece.
        gradients: the names of the layers whose gradients to compute; True is all of them, False
            none. Without gradients there is no backward pass.
        mean: whether to average over positions instead of summing, which NAC's settings assume.
    """
    wanted = list(layers if gradients is True else gradients or ())
    if isinstance(gradients, str) or not layers.keys() >= set(wanted):
        raise ProbeError(
            f"`gradients` must be True, False or a collection of names of the layers to read, "
            f"{list(layers)}; got {gradients!r}."
        )
    inner = unwrap(net)
    if wanted and any(parameter.is_inference() for parameter in inner.parameters()):
        raise ProbeError(
            "the network's parameters were made inside torch.inference_mode(), where no gradient "
            "can ever be computed. Build or load the network outside of it."
        )
    modules = {name: net.get_submodule(layer.path) for name, layer in layers.items()}

    with explained(x):
        x = prepare(inner, x)
        parts = [x] if plan is None else plan.parts(x)
        found = [Taps(layers, wanted, mean=mean).run(inner, part, modules, plan) for part in parts]
    if len(found) == 1:
        return found[0]
    by_layer = joined_inputs([dict(part) for part in found])
    return BatchReadings(torch.cat([part.logits for part in found]), by_layer)


class _Tap(torch.autograd.Function):
    """An identity that passes its gradient to `receive`.

    `anchor` needs a gradient, so a graph exists also over frozen parameters. The output is a
    copy: an in-place ReLU after the module can't rewrite what was read.
    """

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, receive: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.receive = receive
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        ctx.receive(gradient)
        return (gradient if ctx.needs_input_grad[0] else None), None, None


class Taps:
    """Reads the outputs of layers in one pass.

    Args:
        layers: what to read, by name.
        gradients: the names of the layers whose gradients are wanted.
        mean: whether to average over positions instead of summing.
    """

    def __init__(
        self, layers: Mapping[str, Layer], gradients: Collection[str], *, mean: bool
    ) -> None:
        self._layers, self._wanted, self._mean = layers, gradients, mean
        self._mask: Optional[Tensor] = None
        self._anchor = torch.zeros((), requires_grad=True)
        self._activations: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._scale = 1.0

    def run(
        self,
        net: nn.Module,
        x: Inputs,
        modules: Mapping[str, nn.Module],
        plan: Optional[PassPlan] = None,
    ) -> BatchReadings:
        """One pass over a batch."""
        observers = [(module, partial(self.observe, name)) for name, module in modules.items()]
        planned: Mapping[str, Any] = {}
        if plan is not None:
            adapt = partial(plan.adapt, net, x, modules.values())
            planned = {"adapt": adapt, "cache": plan.replicas}
        around = nullcontext() if plan is None else plan.around_pass()
        autocast_cache = torch.is_autocast_cache_enabled()
        # in C, unlike torch.no_grad, so that an interrupt cannot leave it half done
        with around, torch._C._InferenceMode(False):
            self._mask = token_mask(net, x)
            try:
                torch._C._set_grad_enabled(False)
                # weights cast without a graph must not stay in the caller's autocast cache
                torch.set_autocast_cache_enabled(False)
                logits = logits_of(run(net, x, on_output=observers, **planned), x)
                if self._wanted:
                    self._backward(logits)
            finally:
                torch.set_autocast_cache_enabled(autocast_cache)
            logits = logits.clone() if logits.is_inference() else logits.detach()
        return BatchReadings(logits, self.readings(sample_count(x)))

    def observe(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Optional[Tensor]:
        """Read the output of layer `name`; see `nac_openood.network.replica.run`."""
        self._check(name, module, output)
        pool = pooling_for(
            self._layers[name].layout, output.shape, name, mean=self._mean, mask=self._mask
        )
        self._activations[name] = pool(output.detach())
        if name not in self._wanted:
            return None
        if output.dtype == torch.float16:
            self._scale = _FLOAT16_SCALE
        # a graph is needed from here on; `run` restores the mode
        torch.set_grad_enabled(True)
        tapped: Tensor = _Tap.apply(output, self._anchor, partial(self._receive, name, pool))
        return tapped

    def _receive(self, name: str, pool: Pool, gradient: Tensor) -> None:
        self._gradients[name] = pool(gradient) / self._scale

    def _check(self, name: str, module: nn.Module, output: Any) -> None:
        path = self._layers[name].path
        if name in self._activations:
            raise ProbeError(
                f"layer '{name}' (module '{path}') ran more than once in one forward pass, so it "
                "has no single output. Choose a module that runs once, e.g. the block around it."
            )
        if not isinstance(output, Tensor):
            raise ProbeError(
                f"layer '{name}' (module '{path}', {type(module).__name__}) returns "
                f"{type(output).__name__}, expected one tensor. Choose a module inside or after it."
            )
        if name in self._wanted and not output.is_floating_point():
            raise ProbeError(
                f"layer '{name}' (module '{path}') outputs {output.dtype}, which has no gradient. "
                "Choose a module with floating-point outputs."
            )

    def _backward(self, logits: Tensor) -> None:
        """Compute the gradients of KL(uniform || softmax) at all layers at once."""
        if not logits.requires_grad:
            raise ProbeError(
                f"the logits do not depend on layer {_quoted(self._wanted)}, or the network's "
                "forward turns gradients off (torch.no_grad, .detach()): no gradient reaches them."
            )
        torch.set_grad_enabled(True)  # a forward under torch.no_grad has turned it off again
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = -wide.log_softmax(dim=-1).mean(dim=-1).sum() * self._scale
        torch.autograd.grad(loss, self._anchor, allow_unused=True)
        unreached = [n for n in self._wanted if n in self._activations and n not in self._gradients]
        if unreached:
            raise ProbeError(
                f"the logits do not depend on the output of layer {_quoted(unreached)}: no "
                "gradient reaches it. Choose a module between the input and the logits."
            )

    def readings(self, batch: int) -> dict[str, Reading]:
        """The readings of a batch of `batch` samples."""
        missing = [name for name in self._layers if name not in self._activations]
        if missing:
            raise ProbeError(
                f"layer {_quoted(missing)} did not run in the forward pass: the network does not "
                "call that module for this input, or not as one of its own. Choose a module that "
                "the logits are computed with."
            )
        for name, activation in self._activations.items():
            if activation.shape[0] != batch:
                raise ProbeError(
                    f"layer '{name}' outputs {activation.shape[0]} rows for a batch of {batch}: "
                    "it mixes samples with positions (windows, crops). Choose a module around it."
                )
        return {n: Reading(self._activations[n], self._gradients.get(n)) for n in self._layers}


class ReadNetwork(nn.Module):
    """A network and its readings as one module, for tracers such as `torch.export`.

    It returns what `read` returns without gradients, and runs a replica of the network in
    evaluation mode, which shares the network's weights.

    Args:
        net: any classifier.
        layers: what to read, by name.
        mean: whether to average over positions instead of summing.
    """

    def __init__(self, net: nn.Module, layers: Mapping[str, Layer], *, mean: bool) -> None:
        super().__init__()
        self._layers, self._mean = dict(layers), mean
        self._taps = Taps(self._layers, (), mean=mean)
        inner = unwrap(net)
        replicas = Replica(inner, frozen=True).modules
        paths = {name: layer.path for name, layer in layers.items()}
        observers = [(net.get_submodule(p), partial(self._observe, n)) for n, p in paths.items()]
        add_hooks(replicas, "_forward_hooks", observers)
        self.net = replicas[inner]

    def _observe(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        self._taps.observe(name, module, inputs, output)

    def forward(self, x: Tensor) -> BatchReadings:
        """Logits and readings of a batch `[batch, ...]`."""
        self._taps = Taps(self._layers, (), mean=self._mean)
        logits = logits_of(self.net(x), x)
        return BatchReadings(logits, self._taps.readings(x.shape[0]))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
