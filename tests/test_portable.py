"""Arithmetic for other runtimes: the same results in fewer kinds of operations."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nac_openood.core.plus_layer import N_CELLS, ActivationCoverage, FineCounts
from nac_openood.detector.export import Portable, searchsorted

NUMBERS = st.lists(st.sampled_from([-3.0, -1.5, 0.0, 0.1, 0.5, 2.0, float("inf")]), min_size=1)


@given(NUMBERS, NUMBERS, st.booleans())
def test_searchsorted_equals_torch(numbers, values, right):
    ordered = torch.tensor(numbers, dtype=torch.float64).sort().values
    x = torch.tensor(values, dtype=torch.float64)
    expected = torch.searchsorted(ordered, x, right=right)
    assert torch.equal(searchsorted(ordered, x, right=right), expected)
    with Portable():
        assert torch.equal(torch.searchsorted(ordered, x, right=right), expected)
        assert torch.equal(torch.bucketize(x, ordered, right=right), expected)


def test_numbers_become_tensors_without_changing_the_type():
    def computed(x, whole):
        mixed = whole + 0.5, 0.1 / whole, whole + 0.1 * whole.double()
        return (0.1 * x + 0.2).clamp(min=0.19) / 0.7, *mixed

    given = torch.tensor([0.3, -0.2]), torch.tensor([3, 5])
    with Portable():
        found = computed(*given)
    wanted = computed(*given)
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1:], wanted[1:], rtol=0, atol=0)


def test_coverage_stays_what_it_is_to_the_last_bit():
    # activations often have exactly the coverage of a calibration sample, and the slightest
    # difference would put them on another step of the p-values
    draw = torch.Generator().manual_seed(0)
    counts = FineCounts.empty(30, N_CELLS, torch.device("cpu"))
    few_values = (4 * torch.randn(400, 30, generator=draw)).round() / 4
    counts.update(few_values * torch.linspace(0.1, 3, 30))
    x = torch.randn(50, 30, generator=draw)
    expected = ActivationCoverage(counts).neurons(x)
    with Portable():
        assert torch.equal(ActivationCoverage(counts).neurons(x), expected)
