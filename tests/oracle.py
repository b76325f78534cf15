"""The slow, literal version of the method: broadcast comparisons, written from the paper.

Nothing here is shared with the package, so that agreement means something.
"""

import math

import numpy as np


def edges(m):
    h = m // 2
    left = [math.log(x) / math.log(1000.0) for x in np.linspace(1, np.sqrt(1000.0), h)]
    left[-1] = 0.5
    right = [1 - value for value in reversed(left)]
    return np.array(left[:-1] + right)


def membership(states, m):
    """[samples, bins, neurons] of 0 and 1: the outermost bins are open outwards."""
    bounds = edges(m)
    low, high = bounds[:-1].copy(), bounds[1:].copy()
    low[0], high[-1] = -np.inf, np.inf
    states = np.asarray(states, dtype=np.float64)[:, None, :]
    return (states >= low[None, :, None]) & (states < high[None, :, None])


def counts(states, m):
    """[neurons, bins]."""
    return membership(states, m).sum(axis=0).T


def scores(fit_states, test_states, m, full_count):
    table = np.minimum(counts(fit_states, m) / full_count, 1.0)
    return (membership(test_states, m) * table.T[None]).sum(axis=1).mean(axis=1)


def coverage_integral(states, m, full_count):
    """NAC-ME as its formula has it: m float32 edges, half-open bins, divided by m."""
    edges = np.linspace(0, 1, m, dtype=np.float64).astype(np.float32)
    states = np.asarray(states)
    total = 0.0
    for neuron in range(states.shape[1]):
        for low, high in zip(edges[:-1], edges[1:]):
            count = sum(1 for state in states[:, neuron] if low <= state < high)
            total += min(count / full_count, 1.0)
    return total / m / states.shape[1]
