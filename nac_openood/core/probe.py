"""One forward and one backward: `(net, batch) -> logits and a pair of readings a layer`.

Every probed module's output passes through a tap: an identity that pools the activation on the
way forward and the gradient on the way back. The graph starts at the first tap, so nothing is
remembered before the earliest probed layer, and no full-size gradient is kept.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import (
    Any,
    Callable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
)

import torch
from torch import Tensor, nn

from nac_openood.core.layers import Layer
from nac_openood.core.layouts import Pool, pooling_for
from nac_openood.core.network import eager, logits_of, prepare, unwrap
from nac_openood.core.plan import PassPlan
from nac_openood.core.undisturbed import undisturbed
from nac_openood.errors import ProbeError

#: Gradients of float16 layers are computed this much larger, or the small ones become zero.
_FLOAT16_SCALE = 1024.0


class Reading(NamedTuple):
    """What a layer said about a batch: two detached tensors `[batch, neurons]`."""

    activation: Tensor
    gradient: Tensor


class Probed(NamedTuple):
    """The logits `[batch, classes]` and a `Reading` by layer name."""

    logits: Tensor
    layers: dict[str, Reading]


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


class _Taps:
    """The taps of one pass: hooks on, readings in, hooks off."""

    def __init__(self, net: nn.Module, layers: Mapping[str, Layer]) -> None:
        self._modules = {name: net.get_submodule(layer.path) for name, layer in layers.items()}
        self._layers = layers
        self._anchor = torch.zeros((), requires_grad=True)
        self.activations: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.scale = 1.0

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, module in self._modules.items():
                stack.callback(module.register_forward_hook(self._hook(name)).remove)
            yield

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], Tensor]:
        def tap(module: nn.Module, inputs: Any, output: Any) -> Tensor:
            self._check(name, module, output)
            pool = pooling_for(self._layers[name].layout, output.shape, name)
            self.activations[name] = pool(output.detach())
            if output.dtype == torch.float16:
                self.scale = _FLOAT16_SCALE
            # from here on a graph is needed; the caller of the pass restores the mode
            torch.set_grad_enabled(True)
            result: Tensor = _Tap.apply(output, self._anchor, self._receiver(name, pool))
            return result

        return tap

    def _receiver(self, name: str, pool: Pool) -> Callable[[Tensor], None]:
        def receive(gradient: Tensor) -> None:
            self.gradients[name] = pool(gradient) / self.scale

        return receive

    def _check(self, name: str, module: nn.Module, output: Any) -> None:
        path = self._layers[name].path
        if name in self.activations:
            raise ProbeError(
                f"layer '{name}' (module '{path}') ran more than once in one forward pass, so it "
                "has no single output. Choose a module that runs once, e.g. the block around it."
            )
        if not isinstance(output, Tensor):
            raise ProbeError(
                f"layer '{name}' (module '{path}', {type(module).__name__}) returns "
                f"{type(output).__name__}, expected one tensor. Choose a module inside or after it."
            )
        if not output.is_floating_point():
            raise ProbeError(
                f"layer '{name}' (module '{path}') puts out {output.dtype}: no gradient exists."
            )

    def backward(self, logits: Tensor) -> None:
        """Send the gradient of KL(uniform || softmax) back through all taps at once."""
        missing = [name for name in self._layers if name not in self.activations]
        if missing:
            raise ProbeError(
                f"layer {_and(missing)} did not run in the forward pass: the network never calls "
                "that module on this path. Choose a module that the logits are computed with."
            )
        if not logits.requires_grad:
            raise ProbeError(
                f"the logits do not depend on layer {_and(self._layers)}, or the network's "
                "forward turns gradients off (torch.no_grad, .detach()): no gradient reaches them."
            )
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = -wide.log_softmax(dim=-1).mean(dim=-1).sum() * self.scale
        torch.autograd.grad(loss, self._anchor, allow_unused=True)
        unreached = [name for name in self._layers if name not in self.gradients]
        if unreached:
            raise ProbeError(
                f"the logits do not depend on the output of layer {_and(unreached)}: no gradient "
                "reaches it. Choose a module between the input and the logits."
            )

    def readings(self, batch: int) -> dict[str, Reading]:
        for name, activation in self.activations.items():
            if activation.shape[0] != batch:
                raise ProbeError(
                    f"layer '{name}' puts out {activation.shape[0]} rows for a batch of {batch}: "
                    "it mixes samples with positions (windows, crops). Choose a module around it."
                )
        return {n: Reading(self.activations[n], self.gradients[n]) for n in self._layers}


def read(
    net: nn.Module, x: Tensor, layers: Mapping[str, Layer], plan: Optional[PassPlan] = None
) -> Probed:
    """Run `net` on a batch and read `layers`.

    Works on frozen networks, in train mode, under `no_grad`, `inference_mode` and autocast, and
    leaves nothing behind: no hook, gradient, mode, BatchNorm statistic or random state.

    Args:
        net: any classifier; wrappers of DataParallel, DDP and torch.compile are run from inside.
        x: a batch, `[batch, ...]`; moved to the network's device.
        layers: what to read, by name; see `nac_openood.core.layers.find_layer`.
        plan: how to run it; None runs the batch as it is.
    """
    if plan is None:
        return _read(net, x, layers)
    with plan.folded([net.get_submodule(layer.path) for layer in layers.values()]):
        parts = [_read(net, piece, layers) for piece in plan.parts(prepare(unwrap(net), x))]
    return parts[0] if len(parts) == 1 else _join(parts)


def _read(net: nn.Module, x: Tensor, layers: Mapping[str, Layer]) -> Probed:
    taps = _Taps(net, layers)
    net = unwrap(net)
    cache = torch.is_autocast_cache_enabled()
    with undisturbed(net), torch.inference_mode(False), torch.no_grad(), eager(net):
        x = prepare(net, x)
        try:
            # weights cast without a graph must not stay in the caller's autocast cache
            torch.set_autocast_cache_enabled(False)
            with taps.attached():
                logits = logits_of(net(x), x)
            taps.backward(logits)
        finally:
            torch.set_autocast_cache_enabled(cache)
    return Probed(logits.detach(), taps.readings(x.shape[0]))


def _join(parts: list[Probed]) -> Probed:
    layers = {
        name: Reading(*(torch.cat(tensors) for tensors in zip(*(p.layers[name] for p in parts))))
        for name in parts[0].layers
    }
    return Probed(torch.cat([p.logits for p in parts]), layers)


def _and(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
