"""Scores, p-values and files are equal to the bit to those of earlier code, on a known machine."""

import json

import pytest
from script_module import script_module


@pytest.mark.bench
def test_scores_are_the_same_to_the_bit(bench):
    hashes = script_module("score_hashes")
    known = json.loads(hashes.HASHES.read_text())
    if hashes.machine() not in known:
        pytest.skip(f"no hashes are stored for this machine ({hashes.machine()})")
    found = hashes.score_hashes(*bench)
    assert hashes.changed(found, known[hashes.machine()]) == []
