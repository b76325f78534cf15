"""Batches of any kind: tensors, tuples, dicts and Hugging Face encodings."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import NACDetector
from nac_openood.detector.batches import as_batch
from nac_openood.errors import NACError, ProbeError
from nac_openood.network.inputs import as_inputs, joined_inputs, prepare, rows, sample_count
from nac_openood.network.probe import classify

CLASSES = 3


class TwoInputs(nn.Module):
    """Takes an image-like tensor and a table; the same numbers whichever way it is called."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(5, 8), nn.Linear(4, 8)
        self.act, self.head = nn.ReLU(), nn.Linear(8, CLASSES)

    def forward(self, a, b, labels=None):
        assert labels is None, "a label was passed to the network"
        return {"loss": None, "logits": self.head(self.act(self.left(a) + self.right(b)))}


class Joined(nn.Module):
    """`TwoInputs` for one tensor that holds both."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x[:, :5], x[:, 5:])


def data(n=240, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 9, generator=draw), torch.arange(n) % CLASSES


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return TwoInputs().eval()


def encoding(values):
    transformers = pytest.importorskip("transformers")
    return transformers.BatchEncoding(values)


#: The same samples and labels in all the forms that loaders yield.
FORMS = {
    "tuple": lambda a, b, y: ((a, b), y),
    "list": lambda a, b, y: [[a, b], y],
    "dict": lambda a, b, y: {"a": a, "b": b, "labels": y},
    "label": lambda a, b, y: {"a": a, "b": b, "label": y},
    "dict and labels": lambda a, b, y: ({"a": a, "b": b}, y),
    "openood": lambda a, b, y: {"data": (a, b), "label": y, "index": torch.arange(len(y))},
    "openood dict": lambda a, b, y: {"data": {"b": b, "a": a}, "label": y.float()},
    "with strings": lambda a, b, y: {"a": a, "b": b, "text": ["x"] * len(y), "labels": y},
    "encoding": lambda a, b, y: encoding({"a": a, "b": b, "labels": y, "extra": None}),
    "encoding and labels": lambda a, b, y: (encoding({"a": a, "b": b}), y),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", ["nac", "nac_plus"])
def test_every_form_scores_as_one_tensor_does(net, form, rule):
    x, y = data()

    def loader(x, y):
        halves = zip(x.split(100), y.split(100))
        return [FORMS[form](part[:, :5], part[:, 5:], label) for part, label in halves]

    held = data(seed=2)
    expected = NACDetector(Joined(net), ["net.act"], rule=rule).fit([(x, y)]).calibrate([held])
    found = NACDetector(net, ["act"], rule=rule).fit(loader(x, y)).calibrate(loader(*held))
    new, label = data(seed=1)
    scores = found.score_loader(loader(new, label))
    assert np.allclose(scores.score, expected.score(new), rtol=1e-6, atol=1e-7)
    assert scores.label.tolist() == label.tolist()
    batch = loader(new, label)[0]
    single = batch if hasattr(batch, "keys") and "data" not in batch else as_batch(batch).data
    assert torch.allclose(found.score(single), expected.score(new[:100]), rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        prediction = net(new[:, :5], new[:, 5:])["logits"].argmax(1)
    assert scores.prediction.tolist() == prediction.tolist()


def test_one_tensor_under_any_name_is_the_input(small_net, images, labels):
    expected = NACDetector(small_net, ["avgpool"], rule="nac").fit([(images, labels)]).score(images)
    for name in ("image", "pixel_values"):
        batch = {name: images, "label": labels}
        found = NACDetector(small_net, ["avgpool"], rule="nac").fit([batch])
        assert torch.equal(found.score({name: images}), expected)


def test_inputs_the_network_does_not_take_are_reported(net):
    x, _ = data(4)
    batch = {"a": x[:, :5], "b": x[:, 5:], "idx": torch.arange(4)}
    with pytest.warns(UserWarning, match="TwoInputs.forward takes a, b, labels, not 'idx'"):
        assert sorted(prepare(net, batch)) == ["a", "b"]
    with pytest.raises(ProbeError, match="got an unexpected keyword argument 'c'"):
        classify(net, {"c": x, "d": x})
    with pytest.raises(ProbeError, match="dicts as `net\\(\\*\\*x\\)`: leave out labels"):
        classify(nn.Linear(10, 4), (x, torch.arange(4)))

    class Open(nn.Module):
        def forward(self, **batch):
            return net(batch["a"], batch["b"])

    assert torch.equal(classify(Open(), batch), classify(net, (x[:, :5], x[:, 5:])))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": [[1, 2]], "b": torch.zeros(1, 4)}, "input 'a' is list of list.*return_tensors='pt'"),
        ({"a": np.zeros((1, 5)), "b": torch.zeros(1, 4)}, "input 'a' is ndarray"),
        ({"a": "x", "b": None}, "got dict of a: str, b: NoneType"),
        (DataLoader([1]), "got DataLoader. `score_loader` and `select` take loaders"),
        ((torch.zeros(2, 5), torch.zeros(3, 4)), r"one row per sample.* \[2, 5\], shape \[3, 4\]"),
        ((torch.zeros(0, 5), torch.zeros(0, 4)), "a batch of at least one sample"),
    ],
)
def test_what_is_not_a_batch_is_named(net, batch, message):
    with pytest.raises(ProbeError, match=message):
        classify(net, batch)


def test_several_inputs_where_labels_were_expected(net):
    x, y = data(4)
    with pytest.raises(NACError, match=r"network with several inputs needs them in a tuple, \(\("):
        NACDetector(net, ["act"], rule="nac").fit(DataLoader(TensorDataset(x[:, :5], x[:, 5:], y)))


def test_rows_counts_and_joins_of_nested_inputs():
    x = as_inputs({"a": [torch.arange(6), torch.ones(6, 2)], "b": torch.arange(6) * 2})
    assert sample_count(x) == 6
    part = rows(x, torch.tensor([4, 1]))
    assert part["a"][0].tolist() == [4, 1] and part["b"].tolist() == [8, 2]
    both = joined_inputs([rows(x, slice(0, 2)), rows(x, slice(2, 6))])
    assert both["a"][0].tolist() == list(range(6)) and both["b"].tolist() == x["b"].tolist()


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda y: {"scores": y}, r"got dict of scores: shape \[2, 3\]"),
        (lambda y: (y[..., None], "x"), r"got tuple of shape \[2, 3, 1\], str"),
        (lambda y: y[:1], "logits for 1 samples, given input of shape"),
    ],
)
def test_what_came_in_the_place_of_logits_is_reported(wrap, message):
    net = nn.Linear(4, CLASSES)
    net.register_forward_hook(lambda m, i, o: wrap(o))
    with pytest.raises(ProbeError, match=message):
        classify(net, torch.rand(2, 4))
