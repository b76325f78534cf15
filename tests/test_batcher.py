"""Micro-batching alone: who gets what, when a batch starts, and how it ends."""

import asyncio
import threading
import time

import pytest
import torch

from nac_openood.serving.judge import Batcher, BusyError
from nac_openood.serving.limits import Limits


def numbers(*values):
    return [torch.tensor([float(value)]) for value in values]


class Work:
    """Doubles numbers, notes the batches, waits at the gate, cannot stand negative ones and loses 99."""

    def __init__(self, opened=True):
        self.batches, self.gate, self.entered = [], threading.Event(), threading.Event()
        if opened:
            self.gate.set()

    def __call__(self, batch):
        self.entered.set()
        assert self.gate.wait(30)
        self.batches.append(len(batch))
        if (batch < 0).any():
            raise ValueError("negative")
        return [2 * value for value in batch.flatten().tolist() if value != 99]  # one too few


def run(work, test, **options):
    async def main():
        settings = {"max_batch": 4, "max_wait_ms": 10, "max_queue": 20, "max_images": 1, **options}
        batcher = Batcher(work, Limits(**settings))
        await batcher.start()
        try:
            return await test(batcher)
        finally:
            work.gate.set()
            await batcher.close()

    return asyncio.run(main())


def test_results_go_to_their_callers_in_order():
    async def test(batcher):
        calls = [batcher.results(numbers(*range(10 * n, 10 * n + 3))) for n in range(6)]
        return await asyncio.gather(*calls)

    work = Work()
    found = run(work, test)
    assert found == [[2.0 * v for v in range(10 * n, 10 * n + 3)] for n in range(6)]
    assert sum(work.batches) == 18 and max(work.batches) == 4


def test_nobody_fails_for_another():
    async def test(batcher):
        calls = [batcher.results(numbers(v)) for v in (1, -1, 3, 99)]
        return await asyncio.gather(*calls)

    (good,), (bad,), (other,), (lost,) = run(Work(), test)
    assert (good, other) == (2.0, 6.0) and isinstance(bad, ValueError)
    assert str(lost) == "0 results for 1 images"


def test_a_batch_waits_for_others_but_not_for_long():
    async def together(batcher):
        first = asyncio.create_task(batcher.results(numbers(1)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batcher.results(numbers(2)))
        return await first, await second

    async def apart(batcher):
        return await batcher.results(numbers(1)), await batcher.results(numbers(2))

    start = time.monotonic()
    for test, batches, wait in ((together, [2], 60_000), (apart, [1, 1], 1)):
        work = Work()
        assert run(work, test, max_wait_ms=wait, max_batch=2) == ([2.0], [4.0])
        assert work.batches == batches
    assert time.monotonic() - start < 55, "a full batch starts at once"


def test_who_gives_up_leaves_the_queue():
    async def test(batcher):
        first = asyncio.create_task(batcher.results(numbers(1)))
        assert await asyncio.to_thread(work.entered.wait, 30)  # at work, behind the gate
        second = asyncio.create_task(batcher.results(numbers(2, 3)))
        third = asyncio.create_task(batcher.results(numbers(4)))
        await asyncio.sleep(0.05)
        assert len(batcher) == 3
        second.cancel()
        await asyncio.wait({second})
        assert len(batcher) == 1
        work.gate.set()
        return await first, await third

    work = Work(opened=False)
    assert run(work, test) == ([2.0], [8.0]) and work.batches == [1, 1]


def test_the_queue_has_an_end():
    async def test(batcher):
        first = asyncio.create_task(batcher.results(numbers(1)))
        assert await asyncio.to_thread(work.entered.wait, 30)
        rest = asyncio.create_task(batcher.results(numbers(*range(20))))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="too many"):
            await batcher.results(numbers(1))
        work.gate.set()
        return len(await first + await rest)

    work = Work(opened=False)
    assert run(work, test) == 21


def test_closing_answers_what_waits_and_takes_no_more():
    async def main():
        batcher = Batcher(Work(), Limits(max_batch=2, max_wait_ms=5000))
        with pytest.raises(BusyError, match="stopping"):
            await batcher.results(numbers(1))
        await batcher.start()
        waiting = asyncio.create_task(batcher.results(numbers(1, 2, 3)))
        await asyncio.sleep(0)
        await batcher.close()
        assert await waiting == [2.0, 4.0, 6.0]
        with pytest.raises(BusyError, match="stopping"):
            await batcher.results(numbers(1))

    asyncio.run(main())
