"""Texts on the command line: a Hugging Face network with its tokenizer, CSV lists, text files."""

import csv
import random

import pytest
import torch
from torch.utils.data import Subset

from nac_openood.cli import main
from nac_openood.errors import NACError
from nac_openood.sources.networks import kind_of
from nac_openood.sources.readers import labelled_samples
from nac_openood.sources.samples import Samples, collate_texts, without_padding
from nac_openood.sources.sets import own_sets

WORDS = {
    "sport": ["goal", "team", "match", "win", "coach", "league"],
    "money": ["bank", "stock", "market", "price", "trade", "shares"],
    "health": ["virus", "vaccine", "doctor", "cell", "patient", "drug"],
}


def texts(n, seed):
    draw = random.Random(seed)
    return [
        (" ".join(draw.choices(words, k=draw.randint(4, 10))), name)
        for _ in range(n)
        for name, words in WORDS.items()
    ]


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a small BERT that knows three topics, lists of texts and new texts."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    root = tmp_path_factory.mktemp("texts")
    known = ["[PAD]", "[UNK]", *(word for words in WORDS.values() for word in words)]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(known), hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16, id2label=dict(enumerate(WORDS)),
    )  # fmt: skip
    net = transformers.BertForSequenceClassification(config).train()
    steps = torch.optim.Adam(net.parameters(), 1e-3)
    batch = texts(20, 0)
    inputs = tokenizer([text for text, _ in batch], padding=True, return_tensors="pt")
    labels = torch.tensor([list(WORDS).index(name) for _, name in batch])
    for _ in range(25):
        steps.zero_grad()
        net(**inputs, labels=labels).loss.backward()
        steps.step()
    net.save_pretrained(root / "net")
    tokenizer.save_pretrained(root / "net")
    for number, (name, count) in enumerate((("train", 60), ("val", 40), ("test", 40))):
        write(root / f"{name}.csv", texts(count, number + 1))
    (root / "new").mkdir()
    (root / "new/a.txt").write_text("goal team win coach league goal")
    (root / "new/b.txt").write_text("goal bank zebra quasar drug the the virus")
    (root / "new/c.png").write_text("is not looked at")
    return root


@pytest.fixture(scope="module")
def kind(project):
    return kind_of(f"hf:{project / 'net'}")


@pytest.fixture(scope="module")
def encode(kind):
    return kind.transform()


def test_fit_and_score(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    data = ["--train", "train.csv", "--val", "val.csv", "--test", "test.csv"]
    assert main(["fit", "--arch", "hf:net", *data, "--out", "t.nac", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "accuracy      100.0% of 120 validation samples" in shown and "length=16" in shown
    inputs = ["score", "--detector", "t.nac", "--device", "cpu", "--arch", "hf:net"]
    assert main([*inputs, "new"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    found = [(row["path"], row["decision"]) for row in rows]
    assert found == [("new/a.txt", "in"), ("new/b.txt", "out")] and rows[0]["class"] == "sport"
    assert main([*inputs, "missing.txt"]) == 1
    assert "cannot read missing.txt (No such file or directory)" in capsys.readouterr().err
    assert main([*inputs, "new", "--gallery", "g.html"]) == 1
    assert "--gallery needs a detector of images, and" in capsys.readouterr().err
    for command in (["serve", "--port", "0"], ["export", "--out", "t.onnx"]):
        assert main([*command, *inputs[1:]]) == 1
        message = f"{command[0]} needs a detector of images, and"
        assert message in capsys.readouterr().err


def test_held_out_texts_have_an_identity_without_being_read(project, encode, monkeypatch):
    sets = [own_sets(project / "val.csv", transform=encode, seed=seed) for seed in (0, 0, 1)]
    monkeypatch.setattr(type(encode), "__call__", None)  # nothing is tokenized
    first, again, other = (Samples("val", each.id_val).identity for each in sets)
    assert first == again != other


def test_labels_follow_the_network(project, kind, encode):
    classes = kind.classes()
    found = labelled_samples(project / "val.csv", encode, classes)
    assert found.classes == ("sport", "money", "health") and found.labels[:3].tolist() == [0, 1, 2]
    sample = found[0]
    assert sample["label"] == 0 and sample["input_ids"].shape == (16,)
    assert int(sample["attention_mask"].sum()) == len(found.items[0].split())
    with pytest.raises(NACError, match="holds texts, but the network takes images"):
        labelled_samples(project / "val.csv", lambda image: image)


# -- batches as long as their longest text --------------------------------------------------


def test_padding_at_the_end_of_all_texts_is_cut():
    mask = (torch.arange(32) < torch.tensor([[4], [11], [2]])).long()
    ids = torch.arange(96).reshape(3, 32)
    cut = without_padding({"input_ids": ids, "attention_mask": mask, "label": torch.arange(3)})
    assert torch.equal(cut["input_ids"], ids[:, :16])  # 11, as a multiple of 8
    assert torch.equal(cut["attention_mask"], mask[:, :16])
    assert cut["label"].tolist() == [0, 1, 2]
    # padding in front stays: without it, tokens would have other positions
    assert without_padding({"attention_mask": mask.flip(1)})["attention_mask"].shape == (3, 32)
    assert without_padding({"input_ids": ids})["input_ids"].shape == (3, 32)
    assert without_padding({"attention_mask": mask * 0})["attention_mask"].shape == (3, 8)


def test_batches_of_short_texts_are_cut(project, kind, encode):
    """That scores do not depend on padding is tested in test_huggingface.py."""
    test = labelled_samples(project / "test.csv", encode, kind.classes())
    short = [i for i, text in enumerate(test.items) if len(text.split()) <= 8]
    samples = Samples("test", Subset(test, short), batch_size=len(short))
    assert samples.collate is collate_texts and Samples("a", [1, 2]).collate is None
    (cut,) = samples.loader()
    assert test[short[0]]["input_ids"].shape == (16,) and cut["input_ids"].shape[1] == 8
