"""Ctrl-C at any moment: the network and the thread's modes are as they were."""

import gc
import random
import signal
import sys
import threading
import time

import pytest
import torch
from test_probe import NAMES, equal, layers, snapshot

from nac_openood import NACDetector
from nac_openood.network.head import with_features
from nac_openood.network.probe import PassPlan, classify, read

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(),
    reason="needs a timer that interrupts the main thread",
)
#: Interrupts to try, for how long, and how many must hit, however long that takes.
TRIES, SECONDS, HITS = 120, 2.0, 21


@pytest.fixture
def timer():
    """Calls work and interrupts it after some seconds; tells whether it was."""

    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupted(work, seconds):
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False

    def unraisable(lost):
        # torch's own weak references, interrupted while they were made, fail when they are freed
        unfinished = "StorageWeakRef" in repr(lost.object)
        if lost.exc_type is not KeyboardInterrupt and not unfinished:
            report(lost)

    previous = signal.signal(signal.SIGALRM, interrupt)
    # hypothesis has one, in which an interrupt cannot be caught
    callbacks, gc.callbacks[:] = list(gc.callbacks), []
    # Python itself drops an interrupt inside a finalizer (torch has some): it counts as a miss
    report, sys.unraisablehook = sys.unraisablehook, unraisable
    yield interrupted
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
    sys.unraisablehook = report
    gc.callbacks[:] = callbacks


def everything(net):
    """All that a network is made of, with the identity of each attribute."""
    attributes = [
        {n: [*map(id, v.values())] if isinstance(v, dict) else id(v) for n, v in vars(m).items()}
        for m in net.modules()
    ]
    stacks = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    modes = *stacks, torch.is_inference_mode_enabled()
    return {**snapshot(net), "attributes": attributes, "more modes": modes}


@pytest.mark.parametrize(
    "work", ["read", "forward only", "fast", "plan", "classify", "features", "score"]
)
def test_an_interrupt_leaves_no_trace(small_net, images, timer, work):
    draw = random.Random(work)
    small_net.train()
    small_net.layer1.eval().requires_grad_(False)
    fast = PassPlan(small_net, images[:2], fast=True)
    detector = NACDetector(small_net, NAMES, rule="nac", fast=True).fit([images])
    x = images[:2]
    do = {
        "read": lambda: read(small_net, x, layers(small_net)),
        "forward only": lambda: read(small_net, x, layers(small_net), gradients=False),
        "fast": lambda: read(small_net, x, layers(small_net), fast),
        "plan": lambda: PassPlan(small_net, x, fast=True),
        "classify": lambda: classify(small_net, x),
        "features": lambda: with_features(small_net, x),
        "score": lambda: detector.score(x),
    }[work]
    durations = []
    for _ in range(5):
        start = time.perf_counter()
        do()
        durations.append(time.perf_counter() - start)
    before, end, hits = everything(small_net), time.monotonic() + SECONDS, 0
    for _ in range(TRIES):
        start = time.perf_counter()
        hit = timer(do, max(1e-6, draw.uniform(0, 1.1 * min(durations))))
        if not hit:  # it was slower while the machine was busy
            durations.append(time.perf_counter() - start)
        hits += hit
        after = everything(small_net)
        for key in before:
            assert equal(before[key], after[key]), key
        if time.monotonic() > end and hits >= HITS:
            break
    assert hits >= HITS
    assert torch.equal(classify(small_net, images), small_net.eval()(images).detach())
