"""Micro-batching alone: failures, when a batch starts, and how it ends."""

import asyncio
import time

import pytest
import torch

from nac_openood.serving.judge import Batcher, BusyError
from nac_openood.serving.limits import Limits


def numbers(*values):
    return [torch.tensor([float(value)]) for value in values]


class Work:
    """Doubles numbers and notes the size of each batch; fails on negative numbers and loses 99."""

    def __init__(self):
        self.batches = []

    def __call__(self, batch):
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
            await batcher.close()

    return asyncio.run(main())


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
