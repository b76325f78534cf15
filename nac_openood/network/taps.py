"""One pass over the network: `(net, batch) -> logits and a reading per layer`.

Every layer that is read has a tap on its output, which pools the activation on the way forward.
Where a gradient is wanted, the tap is also an identity in the graph that pools the gradient on the
way back. The graph starts at the first such layer, so nothing is remembered before it, no full-size
gradient is kept, and a pass without gradients has no graph and no backward at all. Neither has a
pass with the gradient of the head's input alone, which has a closed form (`penultimate.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Collection, Iterable, Mapping, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from nac_openood.core.layouts import Pool, pooling_for
from nac_openood.core.reading import Probed, Reading
from nac_openood.errors import ProbeError
from nac_openood.network.architectures import Layer
from nac_openood.network.calling import explained, logits_of, prepare
from nac_openood.network.hooks import Adapt, OutputObserver, run
from nac_openood.network.inputs import Inputs, joined_inputs, sample_count, token_mask
from nac_openood.network.penultimate import HeadWatch
from nac_openood.network.plan import PassPlan
from nac_openood.network.replica import unwrap

#: Gradients of float16 layers are computed this much larger, or the small ones become zero.
_FLOAT16_SCALE = 1024.0


class _NoClosedForm(Exception):
    """The layer is not the input of a linear head: its gradient needs a backward pass."""


class _Tap(torch.autograd.Function):
    """An identity that shows its gradient to `receive`.

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
    """The taps of one pass.

    Args:
        layers: what to read, by name.
        gradients: the names of the layers whose gradients are wanted.
        mean: whether to average over positions instead of summing.
        head: if given, the gradient of the only layer in `gradients` comes from it.
        mask: bool `[batch, tokens]`, False for padding.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        gradients: Collection[str],
        *,
        mean: bool,
        head: Optional[HeadWatch] = None,
        mask: Optional[Tensor] = None,
    ) -> None:
        self._layers, self._wanted, self._mean, self._head = layers, gradients, mean, head
        self._mask = mask
        self._anchor = torch.zeros((), requires_grad=True)
        self._activations: dict[str, Tensor] = {}
        self._gradients: dict[str, Tensor] = {}
        self._scale = 1.0

    def observe(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Optional[Tensor]:
        """Read the output of layer `name`; see `nac_openood.network.hooks.run`."""
        self._check(name, module, output)
        pool = pooling_for(
            self._layers[name].layout, output.shape, name, mean=self._mean, mask=self._mask
        )
        self._activations[name] = pool(output.detach())
        if name not in self._wanted:
            return None
        if self._head is not None:
            self._head.saw_layer(output)
            self._pool_of_head = pool
            return None
        if output.dtype == torch.float16:
            self._scale = _FLOAT16_SCALE
        # from here on a graph is needed; the caller of the pass restores the mode
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

    def backward(self, logits: Tensor) -> None:
        """Send the gradient of KL(uniform || softmax) back through all taps at once."""
        if not self._wanted:
            return
        if self._head is not None:
            gradient = self._head.gradient(logits)
            if gradient is None:
                raise _NoClosedForm
            (name,) = self._wanted
            self._gradients[name] = self._pool_of_head(gradient)
            return
        if not logits.requires_grad:
            raise ProbeError(
                f"the logits do not depend on layer {_listed(self._wanted)}, or the network's "
                "forward turns gradients off (torch.no_grad, .detach()): no gradient reaches them."
            )
        torch.set_grad_enabled(True)  # a forward under torch.no_grad has turned it off again
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = -wide.log_softmax(dim=-1).mean(dim=-1).sum() * self._scale
        torch.autograd.grad(loss, self._anchor, allow_unused=True)
        unreached = [name for name in self._wanted if name not in self._gradients]
        if unreached:
            raise ProbeError(
                f"the logits do not depend on the output of layer {_listed(unreached)}: no "
                "gradient reaches it. Choose a module between the input and the logits."
            )

    def check_all_ran(self) -> None:
        """Refuse a pass in which a layer was not called."""
        missing = [name for name in self._layers if name not in self._activations]
        if missing:
            raise ProbeError(
                f"layer {_listed(missing)} did not run in the forward pass: the network does not "
                "call that module for this input, or not as one of its own. Choose a module that "
                "the logits are computed with."
            )

    def readings(self, batch: int) -> dict[str, Reading]:
        """What was read of a batch of `batch` samples."""
        for name, activation in self._activations.items():
            if activation.shape[0] != batch:
                raise ProbeError(
                    f"layer '{name}' outputs {activation.shape[0]} rows for a batch of {batch}: "
                    "it mixes samples with positions (windows, crops). Choose a module around it."
                )
        return {n: Reading(self._activations[n], self._gradients.get(n)) for n in self._layers}


def read(
    net: nn.Module,
    x: Any,
    layers: Mapping[str, Layer],
    plan: Optional[PassPlan] = None,
    *,
    gradients: Union[bool, Collection[str]] = True,
    mean: bool = False,
) -> Probed:
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
    wanted = _wanted(layers, gradients)
    inner = unwrap(net)
    if wanted and any(parameter.is_inference() for parameter in inner.parameters()):
        raise ProbeError(
            "the network's parameters were made inside torch.inference_mode(), where no gradient "
            "can ever be computed. Build or load the network outside of it."
        )
    modules = {name: net.get_submodule(layer.path) for name, layer in layers.items()}
    probe = _Probe(inner, layers, modules, wanted, mean)
    with explained(x):
        x = prepare(inner, x)
        if plan is None:
            return probe.read(x)
        parts = [probe.planned(part, plan) for part in plan.parts(x)]
    return parts[0] if len(parts) == 1 else _join(parts)


class _Probe(NamedTuple):
    """What to read of a network; `modules` are those of its layers."""

    net: nn.Module
    layers: Mapping[str, Layer]
    modules: Mapping[str, nn.Module]
    wanted: list[str]
    mean: bool

    def planned(self, x: Inputs, plan: PassPlan) -> Probed:
        """Read one of the parts of a batch, without a backward pass if that can be."""
        adapt = partial(plan.adapt, self.net, x, self.modules.values())
        if len(self.wanted) == 1 and plan.try_closed_form:
            try:
                with plan.around_pass():
                    return self.read(x, adapt, HeadWatch(self.net))
            except _NoClosedForm:
                plan.try_closed_form = False
        with plan.around_pass():
            return self.read(x, adapt)

    def read(
        self, x: Inputs, adapt: Optional[Adapt] = None, head: Optional[HeadWatch] = None
    ) -> Probed:
        """One pass."""
        cache = torch.is_autocast_cache_enabled()
        # in C, unlike torch.no_grad: no interrupt can come between half of it and the rest
        with torch._C._InferenceMode(False):
            mask = token_mask(self.net, x)
            taps = Taps(self.layers, self.wanted, mean=self.mean, head=head, mask=mask)
            observers: list[tuple[nn.Module, OutputObserver]] = [
                (module, partial(taps.observe, name)) for name, module in self.modules.items()
            ]
            if head is not None:
                observers += head.observers
            try:
                torch._C._set_grad_enabled(False)
                # weights cast without a graph must not stay in the caller's autocast cache
                torch.set_autocast_cache_enabled(False)
                logits = logits_of(run(self.net, x, on_output=observers, adapt=adapt), x)
                taps.check_all_ran()
                taps.backward(logits)
            finally:
                torch.set_autocast_cache_enabled(cache)
            logits = logits.clone() if logits.is_inference() else logits.detach()
        return Probed(logits, taps.readings(sample_count(x)))


def _wanted(layers: Mapping[str, Layer], gradients: Union[bool, Collection[str]]) -> list[str]:
    if isinstance(gradients, bool):
        return list(layers) if gradients else []
    unknown = [name for name in gradients if name not in layers]
    if unknown or isinstance(gradients, str):
        raise ProbeError(
            f"`gradients` must be True, False or a collection of names of the layers to read, "
            f"{list(layers)}; got {gradients!r}."
        )
    return [name for name in layers if name in gradients]


def _join(parts: list[Probed]) -> Probed:
    by_layer = joined_inputs([dict(part) for part in parts])
    return Probed(torch.cat([part.logits for part in parts]), by_layer)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
