"""`analyze schemes`: OpenOOD's training schemes on a small part of the embedded benchmark."""

from __future__ import annotations

import pytest
import torch

from nac_openood.analysis.data import Options
from nac_openood.analysis.schemes import SCHEMES, Backbone, schemes
from nac_openood.errors import NACError
from nac_openood.plugin.source import has_openood
from nac_openood.sources.networks import build


@pytest.fixture(scope="module")
def data(even_readings):
    return even_readings


def test_a_backbone_returns_what_the_head_was_given():
    torch.manual_seed(0)
    net, x = build("resnet_embedded", 8).eval(), torch.randn(2, 3, 32, 32)
    head, logits = net.fc, net(x)
    backbone = Backbone(net, x)
    _, feature = backbone(x, return_feature=True)
    assert backbone.feature_size == head.in_features
    assert torch.equal(head(feature), logits)


def test_without_openood_it_says_what_is_missing(data, monkeypatch):
    monkeypatch.delenv("OPENOOD_SRC", raising=False)
    monkeypatch.setattr("nac_openood.plugin.source._installed", lambda: None)
    with pytest.raises(NACError, match="Expected OpenOOD, but it is not installed"):
        schemes(data, Options(progress=False, epochs=1))


@pytest.mark.openood
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of OpenOOD and its dependencies
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nac_beside_the_native_detectors(data):
    if not has_openood():
        pytest.skip("needs OpenOOD")
    found = schemes(data, Options(progress=False, epochs=1, against="paper"))
    table = found.tables[0]
    assert len(table.rows) == 3 * len(SCHEMES)
    assert [row[1] for row in table.rows[:3]] == ["its own", "NAC", "NAC+"]
    numbers = [row[2:7] for row in table.rows]
    assert all(0 <= value <= 100 for row in numbers for value in row)
    # the three detectors of a network are not the same thing
    assert all(len({tuple(row[3:7]) for row in table.rows[i : i + 3]}) == 3 for i in (0, 3, 6))
    assert [list(row[-2:]) for row in table.rows[:2]] == [[83.94, 50.98], [93.90, 31.04]]
    assert "for only 1 epochs" in found.notes[0] or "for only 1 epoch" in found.notes[0]
