import json
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nac_openood import NACError
from nac_openood.core.histogram import Histogram

CASES = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text())["cases"]
CPU = torch.device("cpu")


def fitted(states, m):
    histogram = Histogram.empty(states.shape[1], m, CPU)
    histogram.update(states)
    return histogram


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"M{case['M']}")
def test_the_authors_counts_and_scores(case):
    fit, test = (torch.tensor(case[k], dtype=torch.float32) for k in ("fit_states", "test_states"))
    histogram = fitted(fit, case["M"])
    if case["counts"] != "omitted":  # too long for the file at M = 500
        authors = torch.tensor(case["counts"]).T  # theirs has one more bin that nothing reaches
        assert authors[:, -1].sum() == 0
        assert histogram.counts.tolist() == authors[:, :-1].long().tolist()
    scores = histogram.covered(test, case["O"]) / (case["O"] * histogram.neurons)
    np.testing.assert_allclose(scores.numpy(), case["scores"], rtol=1e-6)


# edges, their neighbours, the ends and dead neurons come up often, or nothing would test them
EDGES = [float(np.float32(e)) for e in oracle.edges(10)]
STATE = st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.5, 0.0, 1.0, *EDGES]))


def states(rows):
    return hnp.arrays(np.float32, st.tuples(rows, st.just(3)), elements=STATE)


@settings(deadline=None)
@given(
    states(st.integers(1, 30)),
    states(st.integers(1, 8)),
    st.sampled_from([4, 10, 51, 500]),
    st.integers(1, 40),
)
def test_fast_and_literal_agree(fit, test, m, full_count):
    histogram = fitted(torch.from_numpy(fit), m)
    assert histogram.counts.tolist() == oracle.counts(fit, m).tolist()
    ours = histogram.covered(torch.from_numpy(test), full_count) / (full_count * 3)
    np.testing.assert_allclose(ours.numpy(), oracle.scores(fit, test, m, full_count), rtol=1e-6)


@settings(deadline=None)
@given(states(st.integers(2, 30)), st.integers(1, 29), st.randoms(use_true_random=False))
def test_batches_and_order_do_not_matter(fit, cut, random):
    whole = fitted(torch.from_numpy(fit), 50)
    order = list(range(len(fit)))
    random.shuffle(order)
    first, rest = order[:cut], order[cut:]
    parts = fitted(torch.from_numpy(fit[first]), 50)
    if rest:
        parts.update(torch.from_numpy(fit[rest]))
    assert torch.equal(parts.counts, whole.counts)
    assert parts.n_samples == whole.n_samples == len(fit)
    assert (whole.counts.sum(dim=1) == len(fit)).all()


def test_states_of_another_layer_are_refused():
    with pytest.raises(NACError, match=r"expected states of shape \[batch, 3\], got \[5, 4\]"):
        Histogram.empty(3, 50, CPU).update(torch.rand(5, 4))
