"""The page about NAC entropy: its code runs, its table and its errors are the real ones."""

import re
from pathlib import Path

import pytest
import torch
from test_docs import blocks
from test_entropy import bound, hard_probability
from torch import nn

from nac_openood.errors import NACError
from nac_openood.training import NACEntropy, train
from nac_openood.training.entropy import entropy, histogram, soft_probability

PATH = Path(__file__).parents[1] / "docs" / "nac_entropy.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_its_code_runs(capsys):
    names = {"__name__": "nac_entropy"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks(PAGE):
            exec(compile(block, str(PATH), "exec"), names)
    assert sorted(names["saved"]) == [10, 20, 30]
    assert [row.step for row in names["log"]] == [10, 20, 30]
    assert "(10, " in capsys.readouterr().out


def test_its_table_is_measured():
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(1024, 100, generator=draw, dtype=torch.float64)
    bins = histogram(z, 50)
    hard = hard_probability(z, bins)
    assert f"{hard.mean():.4f}" in PAGE
    rows = re.findall(r"^\| ([\d.]+)[^|]* \| (0\.\d+) \| (0\.\d+) \| ([\d.]+) \|", PAGE, re.M)
    assert len(rows) == 4
    exact = -(hard * hard.log()).sum(1).mean()
    assert PAGE.count(f"| {exact:.2f} |") >= 4
    for row in rows:
        t = float(row[0])
        soft = soft_probability(z, bins, t)
        found = ((soft - hard).abs().mean(), bound(z, bins, t).mean())
        assert ((soft - hard).abs() <= bound(z, bins, t) + 1e-12).all()
        assert row[1:3] == tuple(f"{value:.4f}" for value in found)
        assert row[3] == f"{entropy(z, bins, t):.2f}"


def mistakes():
    net = nn.Sequential(nn.Linear(2, 2))
    yield lambda: NACEntropy(net, "layer9")
    yield NACEntropy(net, "0")
    measure = NACEntropy(net, "0")
    yield lambda: (net(torch.full((2, 2), float("nan"))), measure())
    yield lambda: train(net, [[]], lam=-1.0)
    yield lambda: train(net, [[]], progress=False)


def test_its_errors_are_the_real_ones():
    told = re.findall(r"^\| [^|]+ \| `([^|]+?)` \|$", PAGE.split("## Errors")[1], re.M)
    for text, mistake in zip(told, mistakes()):
        with pytest.raises(NACError, match=re.escape(text)):
            mistake()
    assert len(told) == 5
