"""One forward and one backward: `(net, batch) -> logits and a pair of readings a layer`.

Every probed module's output passes through a tap: an identity that pools the activation on the
way forward and the gradient on the way back. The graph starts at the first tap, so nothing is
remembered before the earliest probed layer, and no full-size gradient is kept.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
)

import torch
from torch import Tensor, nn

from nac_openood.core.layers import Layer
from nac_openood.core.layouts import Pool, pooling_for
from nac_openood.core.undisturbed import undisturbed
from nac_openood.errors import ProbeError

if TYPE_CHECKING:
    from nac_openood.core.fast import FastPass

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
    net: nn.Module, x: Tensor, layers: Mapping[str, Layer], fast: Optional[FastPass] = None
) -> Probed:
    """Run `net` on a batch and read `layers`.

    Works on frozen networks, in train mode, under `no_grad`, `inference_mode` and autocast, and
    leaves nothing behind: no hook, gradient, mode, BatchNorm statistic or random state.

    Args:
        net: any classifier; wrappers of DataParallel, DDP and torch.compile are run from inside.
        x: a batch, `[batch, ...]`; moved to the network's device.
        layers: what to read, by name; see `nac_openood.core.layers.find_layer`.
        fast: how to make the pass faster, at the price of rounding differently.
    """
    if fast is None:
        return _read(net, x, layers)
    with fast.folded([net.get_submodule(layer.path) for layer in layers.values()]):
        parts = [_read(net, piece, layers) for piece in fast.parts(prepare(unwrap(net), x))]
    return parts[0] if len(parts) == 1 else _join(parts)


def _read(net: nn.Module, x: Tensor, layers: Mapping[str, Layer]) -> Probed:
    taps = _Taps(net, layers)
    net = unwrap(net)
    cache = torch.is_autocast_cache_enabled()
    with undisturbed(net), torch.inference_mode(False), torch.no_grad(), _eager(net):
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


def classify(net: nn.Module, x: Tensor) -> Tensor:
    """A plain forward pass: the logits `[batch, classes]`, as undisturbed as `read`."""
    net = unwrap(net)
    with undisturbed(net), torch.no_grad():
        x = prepare(net, x)
        return logits_of(net(x), x)


def unwrap(net: nn.Module) -> nn.Module:
    """The network inside DataParallel, DDP and torch.compile, which compute what it computes."""
    while True:
        if isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            net = net.module
            continue
        inner = getattr(net, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return net
        net = inner


def _eager(net: nn.Module) -> ContextManager[Any]:
    """Run compiled parts eagerly: compiled code was traced without our hooks and skips them."""
    compiled = any(
        getattr(m, "_compiled_call_impl", None) is not None or hasattr(m, "_orig_mod")
        for m in net.modules()
    )
    if compiled and hasattr(torch.compiler, "set_stance"):
        stance: ContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance
    return nullcontext()


def prepare(net: nn.Module, x: Any) -> Tensor:
    """The batch as `net` takes it: a tensor on its device, in its precision."""
    if not isinstance(x, Tensor):
        raise ProbeError(f"expected a batch as a torch.Tensor, got {type(x).__name__}.")
    if x.ndim == 0 or x.shape[0] == 0:
        raise ProbeError(f"expected a batch of at least one sample, got shape {list(x.shape)}.")
    weights = next((p for p in net.parameters() if p.is_floating_point()), None)
    if weights is not None:
        if weights.is_inference():
            raise ProbeError(
                "the network's parameters were made inside torch.inference_mode(), where no "
                "gradient can ever be computed. Build or load the network outside of it."
            )
        dtype = weights.dtype if x.is_floating_point() else x.dtype
        x = x.to(weights.device, dtype, non_blocking=True)
    if x.is_inference():
        x = x.clone()
    return x


def logits_of(output: Any, x: Tensor) -> Tensor:
    """The logits `[batch, classes]` in what a network returned: a tensor, `.logits`, or a tuple."""
    found = output.get("logits") if isinstance(output, Mapping) else output
    found = getattr(found, "logits", found)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[1] < 2:
        what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ProbeError(
            f"expected logits of shape [batch, classes] from the network, got {what}. NAC needs a "
            "classifier with two or more classes; wrap a network that returns something else."
        )
    if found.shape[0] != x.shape[0]:
        raise ProbeError(
            f"the network returned logits for {found.shape[0]} samples, given input of shape "
            f"{list(x.shape)}. Expected a batch: a single image needs a leading dimension, x[None]."
        )
    return found


def _and(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
