"""One pass over a network: `(net, batch) -> logits and a reading per layer`.

Every layer that is read has a tap on its output, which pools the activation on the way forward.
Where a gradient is wanted, the tap is also an identity in the graph that pools the gradient on the
way back. The graph starts at the first such layer, so nothing is remembered before it, no full-size
gradient is kept, and a pass without gradients has no graph and no backward at all.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any, Collection, Iterable, Mapping, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from nac_openood.core.reading import CLS_TOKENS, BatchReadings, Pool, Reading, mask_for, pooling_for
from nac_openood.errors import ProbeError
from nac_openood.network import inputs, replica
from nac_openood.network.architectures import Layer
from nac_openood.network.flow import foldable
from nac_openood.network.inputs import Inputs, logits_of
from nac_openood.network.replica import unwrap

#: Gradients of float16 layers are computed this much larger, or the small ones become zero.
_FLOAT16_SCALE = 1024.0
#: glibc maps larger blocks anew every time, with a page fault for every page.
_LARGEST_BLOCK = 32 * 2**20


def classify(net: nn.Module, x: Any) -> Tensor:
    """The logits `[batch, classes]` of a batch, in evaluation mode and without gradients."""
    with inputs.explained(x):
        x = inputs.prepare(unwrap(net), x)
        return logits_of(replica.run_without_grad(net, x), x)


def count_classes(net: nn.Module, x: Any) -> int:
    """The number of classes of a network, found by running it on the first sample of a batch."""
    with inputs.explained(x):  # an error describes the whole batch
        first = inputs.rows(inputs.prepare(unwrap(net), x), slice(1))
        return logits_of(replica.run_without_grad(net, first), first).shape[1]


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
    inner = unwrap(net)
    modules = {name: net.get_submodule(layer.path) for name, layer in layers.items()}
    with inputs.explained(x):
        x = inputs.prepare(inner, x)
        parts = [x] if plan is None else plan.parts(x)
        found = [Taps(layers, wanted, mean=mean).run(inner, part, modules, plan) for part in parts]
    if len(found) == 1:
        return found[0]
    by_layer = inputs.joined_inputs([dict(part) for part in found])
    return BatchReadings(torch.cat([part.logits for part in found]), by_layer)


# -- how to run a pass fast ------------------------------------------------------------------


class PassPlan:
    """How best to run a network, found by running it on one sample.

    On CPUs a large batch runs in parts small enough that the allocator reuses memory instead of
    asking the system for it again and again, as with a smaller batch size.

    A fast plan also changes the rounding: BatchNorms are folded into the convolutions before them,
    and on CPUs the pass runs channels-last, in which convolutions need no reordering. Only replicas
    are folded. Threads can share a plan, and it notices when modules of the network are replaced.

    Args:
        net: the network.
        x: a batch of the kind that will be passed.
        fast: also use what changes the rounding.

    Attributes:
        replicas: replicas of the network, for passes by this plan.
        foldable: what a fast pass folds, unless hooks or readings prevent it.
        draws: whether the network draws random numbers even in evaluation mode.
    """

    def __init__(self, net: nn.Module, x: Any, *, fast: bool = False) -> None:
        net = unwrap(net)
        batch, x = x, inputs.rows(inputs.prepare(net, x), slice(1))
        self._fast = fast
        self._on_cpu = inputs.tensors_in(x)[0].device.type == "cpu"
        self._modules = _modules_and_forwards(net.modules())
        self.replicas = replica.ReplicaCache()
        convolutions = [module for module in net.modules() if type(module) is nn.Conv2d]
        sizes = [1]

        def measure(module: nn.Module, inputs: Any, output: Tensor) -> None:
            sizes.append(output.nbytes)

        with replica.kept_random_state(), inputs.explained(batch):
            before = replica.torch_states()
            replica.run_without_grad(net, x, on_output=[(c, measure) for c in convolutions])
            self.draws = not all(map(torch.equal, before, replica.torch_states()))
            self.foldable = foldable(net, x) if fast else []
        self._largest = max(sizes)

    def parts(self, x: Inputs) -> list[Any]:
        """The batch in the pieces and the memory layout that run fastest."""
        if not self._on_cpu:
            return [x]
        n = inputs.sample_count(x)
        # even pieces: a small last one would cost a whole pass of overhead
        size = math.ceil(n / math.ceil(n / max(1, _LARGEST_BLOCK // self._largest)))
        starts = range(0, n, size)
        pieces = [x] if size >= n else [inputs.rows(x, slice(i, i + size)) for i in starts]
        return [inputs.mapped(piece, _channels_last) for piece in pieces] if self._fast else pieces

    def options(self, net: nn.Module, x: Inputs, read: Collection[nn.Module]) -> dict[str, Any]:
        """Options of `nac_openood.network.replica.run` for a pass that reads some modules."""

        def fold(replicas: Mapping[nn.Module, nn.Module]) -> None:
            modules = _modules_and_forwards(replicas)
            if modules != self._modules:
                self.foldable, self._modules = foldable(net, inputs.rows(x, slice(1))), modules
            for conv, norm, between in self.foldable:
                hooked = any(map(replica.has_hooks, between))
                if between.isdisjoint(read) and not hooked and norm.running_mean is not None:
                    folded = partial(_convolve_and_normalize, replicas[conv], replicas[norm])
                    vars(replicas[conv])["forward"] = folded
                    vars(replicas[norm])["forward"] = lambda input: input

        return {"adapt": fold if self._fast else None, "cache": self.replicas}


def _modules_and_forwards(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, Any]]:
    """What folding depends on: the modules, and any `forward` that was set on one of them."""
    return [(module, vars(module).get("forward")) for module in modules]


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _convolve_and_normalize(conv: Any, norm: Any, input: Tensor) -> Tensor:
    # computed at every call, because hooks and functional_call may exchange the weights
    statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    weight, bias = fuse_conv_bn_weights(conv.weight.detach(), conv.bias, *statistics)
    return conv._conv_forward(input, weight, bias)


# -- taps ------------------------------------------------------------------------------------


class _Tap(torch.autograd.Function):
    """An identity that passes its gradient to `receive`.

    `anchor` needs a gradient, so a graph exists also over frozen parameters. The output is a
    copy: an in-place ReLU after the module can't rewrite what was read.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, receive: Any) -> Tensor:
        ctx.receive = receive
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        ctx.receive(gradient)
        return (gradient if ctx.needs_input_grad[0] else None), None, None


class Taps:
    """Reads the outputs of layers during a pass.

    Args:
        layers: what to read, by name.
        wanted: the names of the layers whose gradients to compute.
        mean: whether to average over positions instead of summing.
        pool: what to read of activations and gradients; None is what the layer's layout says.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        wanted: Collection[str],
        *,
        mean: bool = False,
        pool: Optional[Pool] = None,
    ) -> None:
        self._layers, self._wanted, self._mean, self._pool = layers, wanted, mean, pool
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
        options = {} if plan is None else plan.options(net, x, modules.values())
        autocast_cache = torch.is_autocast_cache_enabled()
        around = replica.kept_random_state() if plan and plan.draws else nullcontext()
        # in C, unlike torch.no_grad, so that an interrupt cannot leave it half done
        with around, torch._C._InferenceMode(False):
            self._mask = inputs.token_mask(net, x)
            try:
                torch._C._set_grad_enabled(False)
                # weights cast without a graph must not stay in the caller's autocast cache
                torch.set_autocast_cache_enabled(False)
                logits = logits_of(replica.run(net, x, on_output=observers, **options), x)
                if self._wanted:
                    self._backward(logits)
            finally:
                torch.set_autocast_cache_enabled(autocast_cache)
            logits = logits.clone() if logits.is_inference() else logits.detach()
        return BatchReadings(logits, self.readings(inputs.sample_count(x)))

    def observe(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Optional[Tensor]:
        """Read the output of layer `name`; see `nac_openood.network.replica.run`."""
        layer = self._layers[name]
        if name in self._activations:
            raise ProbeError(
                f"layer '{name}' (module '{layer.path}') ran more than once in one forward pass. "
                "Choose a module that runs once, e.g. the block around it."
            )
        if not isinstance(output, Tensor):
            raise ProbeError(
                f"layer '{name}' (module '{layer.path}', {type(module).__name__}) returns "
                f"{type(output).__name__}, expected one tensor. Choose a module inside or after it."
            )
        pool = self._pool or pooling_for(
            layer.layout, output.shape, name, mean=self._mean, mask=self._mask
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

    def _backward(self, logits: Tensor) -> None:
        """Compute the gradients of KL(uniform || softmax) at all layers at once."""
        if logits.requires_grad:
            torch.set_grad_enabled(True)  # a forward under torch.no_grad has turned it off again
            wide = logits if logits.dtype == torch.float64 else logits.float()
            loss = -wide.log_softmax(dim=-1).mean(dim=-1).sum() * self._scale
            torch.autograd.grad(loss, self._anchor, allow_unused=True)
        unreached = [n for n in self._wanted if n in self._activations and n not in self._gradients]
        if unreached:
            raise ProbeError(
                f"no gradient reaches layer {', '.join(map(repr, unreached))}: the logits do not "
                "depend on its output, or the network's forward turns gradients off "
                "(torch.no_grad, .detach()). Choose a module between the input and the logits."
            )

    def readings(self, batch: int) -> dict[str, Reading]:
        """The readings of a pass over `batch` samples; the next pass may begin."""
        activations, self._activations = self._activations, {}
        missing = [name for name in self._layers if name not in activations]
        if missing:
            raise ProbeError(
                f"layer {', '.join(map(repr, missing))} did not run in the forward pass. Choose a "
                "module that the logits are computed with."
            )
        for name, activation in activations.items():
            if activation.shape[0] != batch:
                raise ProbeError(
                    f"layer '{name}' outputs {activation.shape[0]} rows for a batch of {batch}: "
                    "it mixes samples with positions (windows, crops). Choose a module around it."
                )
        return {n: Reading(activations[n], self._gradients.get(n)) for n in self._layers}


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
        self._taps = Taps(dict(layers), (), mean=mean)
        inner = unwrap(net)
        replicas = replica.Replica(inner, frozen=True).modules
        observers = [
            (net.get_submodule(layer.path), partial(self._taps.observe, name))
            for name, layer in layers.items()
        ]
        replica.add_hooks(replicas, "_forward_hooks", observers)
        self.net = replicas[inner]

    def forward(self, x: Tensor) -> BatchReadings:
        """Logits and readings of a batch `[batch, ...]`."""
        logits = logits_of(self.net(x), x)
        return BatchReadings(logits, self._taps.readings(x.shape[0]))


# -- which tokens the logits depend on -------------------------------------------------------


def with_layouts(net: nn.Module, x: Any, layers: Mapping[str, Layer]) -> Optional[dict[str, Layer]]:
    """Add layouts to layers that have none and return tokens `[batch, tokens, width]`.

    Args:
        net: the network.
        x: a batch for it; three samples are used.
        layers: by name.

    Returns:
        The layers; None if all sequences of the batch have a single token, which is ambiguous.
    """
    inner = unwrap(net)
    unknown = {n: net.get_submodule(layer.path) for n, layer in layers.items() if not layer.layout}
    found = token_layouts(inner, inputs.rows(inputs.prepare(inner, x), slice(3)), unknown)
    if None in found.values():
        return None
    return {n: layer._replace(layout=found.get(n, layer.layout)) for n, layer in layers.items()}


def token_layouts(
    net: nn.Module, x: Inputs, modules: Mapping[str, nn.Module]
) -> dict[str, Optional[str]]:
    """Find which tokens the logits depend on, by name of a module that returns tokens.

    The result has a layout for each such module, None where it is ambiguous.

    Args:
        net: the network, without wrappers.
        x: a batch as it takes it.
        modules: of `net`, by name.
    """
    mask, found = inputs.token_mask(net, x), {}
    for name, module in modules.items():
        taps = Taps({name: Layer(name, "")}, [name], pool=lambda tensor: (tensor != 0).any(dim=-1))
        try:
            with replica.kept_random_state():
                read = taps.run(net, x, {name: module})[name].gradient
        except (ProbeError, RuntimeError):  # no gradient can be computed: then all tokens count
            continue
        if read is not None and read.ndim == 2:
            found[name] = _layout(read != 0, mask)
    return found


def _layout(read: Tensor, mask: Optional[Tensor]) -> Optional[str]:
    """The layout, given which tokens the logits read, bool `[batch, tokens]`; None if unclear."""
    mask = mask_for(mask, read.shape)
    mask = torch.ones_like(read) if mask is None else mask
    read, mask = read.cpu(), mask.cpu()
    longer = mask.sum(dim=1) > 1
    if not longer.any():
        return None
    read, mask = (read & mask)[longer], mask[longer]
    positions = torch.arange(read.shape[1])
    last = (mask * positions).amax(dim=1, keepdim=True)
    if bool((read == (positions == last)).all()):
        return "last_token"
    # in short sequences, two tokens may be all there are
    classes = CLS_TOKENS if int(mask.sum(dim=1).max()) > CLS_TOKENS + 1 else 1
    is_class = bool(read[:, 0].all()) and not bool(read[:, classes:].any())
    return "class_token" if is_class else "tokens"
