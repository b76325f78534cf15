"""Which training samples NAC+ holds out, however the training set is sharded."""

import pytest
import torch

from nac_openood import NACError
from nac_openood.core import plus
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.plus import MAX_SAMPLES, HeldOut, NACPlus
from nac_openood.core.reading import BatchReadings, Reading

LAYERS = {"a": LayoutConfig()}


def samples(n, seed=0):
    draw = torch.Generator().manual_seed(seed)
    a = torch.randn(n, 4, generator=draw)
    return BatchReadings(torch.randn(n, 3, generator=draw), {"a": Reading(a)})


def cut(whole, size):
    """Batches with the number of their first sample."""
    return [
        (start, BatchReadings(whole.logits[start : start + size],
                       {"a": Reading(whole["a"].activation[start : start + size])}))
        for start in range(0, len(whole.logits), size)
    ]  # fmt: skip


def fitted(numbered, seek=True):
    rule = NACPlus(LAYERS)
    for start, batch in numbered:
        if seek:
            rule.start_at(start)
        rule.update(batch)
    return rule


def same(one, other):
    first, second = one.tensors(), other.tensors()
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def merged(rules):
    total = NACPlus(LAYERS)
    for rule in rules:
        total.merge(rule)
    return total


def test_every_tenth_sample_is_held_out_until_there_are_enough():
    whole = samples(10 * MAX_SAMPLES)
    rule = fitted(cut(whole, 999), seek=False)
    assert rule.held_out.n_samples == MAX_SAMPLES and rule.n_samples == 10 * MAX_SAMPLES
    assert torch.equal(rule.held_out.readings.logits, whole.logits[9::10])
    assert torch.equal(rule.tensors()["held/number"], torch.arange(9, 10 * MAX_SAMPLES, 10))


@pytest.mark.parametrize("n", [95, 10 * MAX_SAMPLES + 30, 23_456])
@pytest.mark.parametrize("world", [2, 5])
def test_dealt_out_equals_one_pass(n, world):
    batches = cut(samples(n), 37 if n < 1000 else 1500)
    one = fitted(batches, seek=False)
    ranks = [fitted(batches[rank::world]) for rank in range(world)]
    assert same(merged(ranks), one) and same(merged(ranks[::-1]), one)
    assert same(fitted(batches[::-1]), one)
    assert one.n_samples == n and one.held_out.n_samples == min(n // 10, MAX_SAMPLES)


def test_many_samples_are_chosen_from_all_over_the_training_set(monkeypatch):
    monkeypatch.setattr(plus, "MAX_SAMPLES", 50)
    number = fitted(cut(samples(5000), 250)).tensors()["held/number"]
    per_fifth = torch.histc(number.double(), 5, 0, 5000)
    assert len(number) == 50 and (number % 10 == 9).all() and (per_fifth >= 4).all()


def test_shards_that_all_began_at_zero_merge_in_any_order(monkeypatch):
    monkeypatch.setattr(plus, "MAX_SAMPLES", 30)
    shards = [fitted(cut(samples(200, seed), 64), seek=False) for seed in range(4)]
    one, other = merged(shards), merged(shards[::-1])
    first, second = merged(shards[:2]), merged(shards[2:])
    first.merge(second)
    assert same(one, other) and same(one, first)
    assert one.held_out.n_samples == 30 and one.n_samples == 800


def test_broken_samples_of_a_shard_are_not_lost():
    bad = samples(20)
    bad.logits[3] = float("nan")
    with pytest.raises(NACError, match="1 of 40 fitting samples have NaN or Inf"):
        merged([fitted(cut(samples(20), 20)), fitted(cut(bad, 20))]).check()


def test_files_without_numbers():
    tensors = fitted(cut(samples(100), 100)).held_out.tensors
    old = {name: tensor for name, tensor in tensors.items() if name != "held/number"}
    assert torch.equal(HeldOut.restore(old, LAYERS).tensors["held/number"], tensors["held/number"])
