"""Damaged inputs and files, a few of each kind; `scripts/fuzz.py` tries thousands."""

import json
import random

import pytest
from fuzz_case import FOREIGN, GOOD, HANG, OUTSIDE, REFUSED, attempt
from fuzz_targets import TARGETS
from hypothesis import given
from hypothesis import strategies as st
from mutations import ODD, value_mutated

from nac_openood.benchmark.run.results import Results
from nac_openood.detector.config import NACConfig
from nac_openood.errors import NACError
from nac_openood.evaluation.ranking import Ranking
from nac_openood.files import checked_content, with_checksum
from nac_openood.records import from_values, parse_yaml

#: Cases per target, so that the whole file takes some seconds.
CASES = {
    "comparison, resumed": 1, "comparison, reported": 5, "analysis": 4, "ranking": 15,
    "command line": 20,
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damage_is_refused_healed_or_harmless(target, tmp_path):
    (tmp_path / "target").mkdir()
    case = target.prepare(tmp_path / "target")
    for seed in range(CASES.get(target.name, 40)):
        outcome = attempt(target.name, case, seed, tmp_path / "cases" / str(seed))
        assert outcome.verdict in GOOD, f"case {seed}: {outcome.verdict} {outcome.details}"


@pytest.mark.parametrize(
    ("do", "verdict"),
    [
        (lambda folder: 1 / 0, FOREIGN),
        (lambda folder: (folder.parent / "elsewhere").write_text("x"), OUTSIDE),
        (lambda folder: __import__("subprocess").run(["true"]), OUTSIDE),
        (lambda folder: __import__("pickle").loads(b"cos\nsystem\n."), OUTSIDE),
        (lambda folder: exec("while True: pass"), HANG),
        (lambda folder: parse_yaml("{"), REFUSED),
        (lambda folder: (folder / "inside").write_text("x") and GOOD[1], GOOD[1]),
    ],
)
def test_the_judge_notices_what_no_case_may_do(tmp_path, do, verdict, monkeypatch):
    if verdict == HANG:  # the others may take their time on a busy machine
        monkeypatch.setattr("fuzz_case.SECONDS", 0.2)
    case = lambda rng, folder: do(folder)  # noqa: E731
    assert attempt("wrong", case, 0, tmp_path / "case").verdict == verdict


# ---- anything at all, from hypothesis

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    PLAIN | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(JSON)
def test_values_are_structures_or_refused(value):
    for kind in (Results, Ranking):
        with pytest.raises(NACError):
            from_values(kind, value)


@given(st.dictionaries(st.sampled_from(["postprocessor", "name", "APS_mode", "x"]), JSON))
def test_configs_of_anything(document):
    try:
        found = NACConfig.from_dict(document)
    except NACError:
        return
    assert NACConfig.from_dict(found.to_dict()) == found


@given(st.dictionaries(st.text(), JSON), st.integers(0, 10**6))
def test_a_checksum_notices_every_change(document, seed):
    document.pop("sha256", None)
    whole = with_checksum(document)
    changed = value_mutated(random.Random(seed), whole)
    same = json.dumps(changed, sort_keys=True) == json.dumps(whole, sort_keys=True)
    if isinstance(changed, dict) and "sha256" in changed and not same:
        with pytest.raises(NACError, match="does not match its checksum"):
            checked_content(changed)
