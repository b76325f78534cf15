"""Sequences are pooled under the attention mask: padding never counts."""

from functools import partial

import pytest
import torch
from torch import nn

from nac_openood import NACDetector
from nac_openood.core.reading import pooling_for
from nac_openood.network.architectures import find_layer
from nac_openood.network.probe import read

WORDS, CLASSES = 40, 3


class TextNet(nn.Module):
    """A small transformer that averages the tokens that the mask keeps."""

    def __init__(self, depth=4, width=16):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = input_ids != 0
        x = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        kept = attention_mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1))


class Renamed(nn.Module):
    """The same under the name and the meaning of PyTorch's own masks."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids, src_key_padding_mask):
        return self.net(ids, (~src_key_padding_mask).long())


class ClassToken(nn.Module):
    """A small transformer with a class token, which comes before the first block."""

    def __init__(self, depth=4, width=16):
        super().__init__()
        self.embed, self.token = nn.Embedding(WORDS, width), nn.Parameter(torch.randn(1, 1, width))
        block = partial(nn.TransformerEncoderLayer, width, 2, 32, batch_first=True)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, input_ids, attention_mask):
        x = torch.cat([self.token.expand(len(input_ids), -1, -1), self.embed(input_ids)], 1)
        padding = nn.functional.pad(attention_mask == 0, (1, 0))
        for block in self.blocks:
            x = block(x, src_key_padding_mask=padding)
        return self.head(x[:, 0])


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return TextNet().eval()


@pytest.fixture(scope="module", params=[TextNet, ClassToken])
def either(request):
    torch.manual_seed(0)
    return request.param().eval()


def texts(n, seed, longest=12):
    """Token numbers `[n, longest]` of different lengths, and their mask."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (n, longest), generator=draw)
    lengths = torch.randint(2, longest + 1, (n, 1), generator=draw)
    mask = (torch.arange(longest) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def alone(batch, row):
    """One text without its padding."""
    length = int(batch["attention_mask"][row].sum())
    return {name: part[row : row + 1, :length] for name, part in batch.items()}


def padded(batch, more):
    """The batch with `more` tokens of padding, which are not zero."""
    n = len(batch["input_ids"])
    extra = {"input_ids": torch.full((n, more), 7), "attention_mask": torch.zeros(n, more).long()}
    return {name: torch.cat([part, extra[name]], 1) for name, part in batch.items()}


@pytest.mark.parametrize("rule", ["nac", "nac_plus"])
def test_a_text_alone_and_padded_in_a_batch_scores_the_same(either, rule):
    labels = torch.arange(240) % CLASSES
    detector = NACDetector(either, "auto", rule=rule)
    detector.fit([(texts(240, 0), labels)]).calibrate([texts(120, 1)])
    batch = texts(20, 2)
    together = detector.score(batch)
    one_by_one = torch.cat([detector.score(alone(batch, row)) for row in range(20)])
    assert together.std() > 1e-3  # or the comparison would say nothing
    assert torch.allclose(together, one_by_one, rtol=1e-3, atol=2e-3)
    assert torch.allclose(together, detector.score(padded(batch, 9)), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("mean", [False, True])
def test_readings_ignore_padding(net, mean):
    layers = {"encoder.layers.1": find_layer(net, "encoder.layers.1")}
    batch = texts(6, 3)
    found = read(net, batch, layers, mean=mean)["encoder.layers.1"]
    for row in range(6):
        single = read(net, alone(batch, row), layers, mean=mean)["encoder.layers.1"]
        assert torch.allclose(found.activation[row], single.activation[0], atol=1e-5)
        assert torch.allclose(found.gradient[row], single.gradient[0], atol=1e-6)


def test_masks_are_known_by_name_in_tuples_and_in_pytorchs_meaning(net):
    batch = texts(6, 3)
    layers = {"x": find_layer(net, "encoder.layers.1")}
    expected = read(net, batch, layers)["x"].activation
    in_tuple = read(net, tuple(batch.values()), layers)["x"].activation
    assert torch.equal(in_tuple, expected)
    other = Renamed(net)
    inputs = {"ids": batch["input_ids"], "src_key_padding_mask": batch["attention_mask"] == 0}
    found = read(other, inputs, {"x": find_layer(other, "net.encoder.layers.1")})["x"].activation
    assert torch.equal(found, expected)


def test_pooling_by_hand():
    tokens = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [float("nan")] * 2], [[5.0, 6.0]] * 3])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    shape = tokens.shape
    left = torch.tensor([[False, True, True], [False, False, True]])
    numbers = torch.arange(12.0).reshape(2, 3, 2)
    for layout, options, values, expected in (
        (None, {"mask": mask}, tokens, [[4, 6], [15, 18]]),
        ("tokens", {"mask": mask, "mean": True}, tokens, [[2, 3], [5, 6]]),
        ("last_token", {"mask": mask}, tokens, [[3, 4], [5, 6]]),
        ("last_token", {"mask": left}, numbers, [[4, 5], [10, 11]]),
        ("last_token", {"mean": True}, numbers, [[4, 5], [10, 11]]),
        # one shorter: there is a class token in front; others say nothing about this layer
        ("tokens", {"mask": mask[:, 1:]}, tokens, [[4, 6], [15, 18]]),
        ("last_token", {"mask": mask[:, 1:]}, tokens, [[3, 4], [5, 6]]),
        ("tokens", {"mask": mask.repeat(1, 2)}, numbers, [[6, 9], [24, 27]]),
    ):
        assert pooling_for(layout, shape, "x", **options)(values).tolist() == expected
