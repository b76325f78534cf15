"""Many threads on one network: everybody gets what they would get alone."""

import threading
import time
from functools import partial

import pytest
import torch
from conftest import SmallNet
from test_probe import NAMES, equal, layers, snapshot
from torch import nn

from nac_openood import NACDetector
from nac_openood.network.head import with_features
from nac_openood.network.probe import PassPlan, classify, read

SECONDS = 2.0
#: How often every thread runs at least, however busy the machine is.
LEAST = 6


pytestmark = pytest.mark.usefixtures("one_thread")


def at_once(works, seconds=SECONDS):
    """Repeat each of `works` in a thread of its own, for some seconds and `LEAST` times or more."""
    end, failures = time.monotonic() + seconds, []
    runs = [0] * len(works)
    start = threading.Barrier(len(works))

    def repeat(index, work):
        try:
            start.wait()
            while (time.monotonic() < end or runs[index] < LEAST) and not failures:
                work()
                runs[index] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def always(work):
    """`work`, checking that it returns to the bit what it returns alone."""
    expected = work()

    def check():
        assert equal(work(), expected)

    return check


def values(probed):
    return [probed.logits, *(tuple(reading) for reading in probed.values())]


def plain(net, x):
    with torch.no_grad():
        return net(x)


def test_scoring_and_plain_calls(small_net, images):
    other = images.flip(0)[:9]

    def detector(fast):
        return NACDetector(small_net, NAMES, rule="nac", fast=fast).fit([images])

    exact = PassPlan(small_net, images)
    shared = [detector(fast) for fast in (False, True)]
    works = [
        *(always(partial(one.score, x)) for one in shared for x in (images, other)),
        always(lambda: detector(fast=False).score(images)),
        always(lambda: detector(fast=True).score(other)),
        always(lambda: plain(small_net, images)),
        always(lambda: plain(small_net, other)),
        always(lambda: values(read(small_net, images, layers(small_net), exact, gradients=()))),
        always(lambda: with_features(small_net, other)[:2]),
    ]
    before = snapshot(small_net)
    at_once(works)
    assert equal(before, snapshot(small_net))


def test_training_goes_on_undisturbed(images):
    """The same batches give the same weights, whether or not somebody scores meanwhile."""

    def train(scoring):
        torch.manual_seed(0)
        net, teacher = SmallNet().train(), SmallNet()
        begun, stopped, scored, failures = threading.Event(), threading.Event(), [], []

        def score():
            try:
                while not stopped.is_set():
                    scored.append(classify(net, images))
                    begun.set()
                    read(net, images, layers(net), gradients=False)
                    read(teacher, images, layers(teacher))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=score)
        if scoring:
            thread.start()
            assert begun.wait(60)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(40):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), torch.arange(24) % 4)
            loss.backward()
            optimizer.step()
        stopped.set()
        if scoring:
            thread.join()
            assert scored and not failures, failures
        return net.state_dict(), torch.rand(3)

    assert equal(train(scoring=False), train(scoring=True))


def test_draws_of_other_threads_are_not_repeated(small_net, images):
    """Scoring and looping over a loader put no generator back under the feet of others."""
    detector = NACDetector(small_net, NAMES, rule="nac").fit([images])
    loader = torch.utils.data.DataLoader(images, batch_size=8, shuffle=True)
    drawn = []
    works = [
        lambda: drawn.append(torch.rand(8)),
        lambda: detector.score(images),
        lambda: detector.score_loader(loader, progress=False),
    ]
    at_once(works, SECONDS / 3)
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(drawn)
