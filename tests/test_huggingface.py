"""Networks of Hugging Face, built from small configs: inputs, outputs, and the tokens to read."""

import pytest
import torch

from nac_openood import NACDetector
from nac_openood.network.architectures import Layer, find_layer
from nac_openood.network.auto import auto_layers
from nac_openood.network.probe import read, with_layouts

transformers = pytest.importorskip("transformers")

CLASSES = 3
_SIZE = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32)
_IMAGE = dict(_SIZE, image_size=16, patch_size=8)
_WORDS = dict(vocab_size=40, pad_token_id=0)
_TEXT = dict(_SIZE, **_WORDS, max_position_embeddings=32)
_GPT2 = dict(_WORDS, n_embd=16, n_layer=4, n_head=2, bos_token_id=1, eos_token_id=2)
_DISTIL = dict(_WORDS, dim=16, n_layers=4, n_heads=2, hidden_dim=32)
#: Class of the network and of its config, settings, and what the head's input must be.
NETWORKS = {
    "ViT": ("ViTForImageClassification", _IMAGE, "vit.layernorm:class_token"),
    "DeiT": ("DeiTForImageClassification", _IMAGE, "deit.layernorm:class_token"),
    "DeiT, distilled": (
        "DeiTForImageClassificationWithTeacher", _IMAGE, "deit.layernorm:class_token"
    ),
    "BERT": ("BertForSequenceClassification", _TEXT, "bert.pooler:flat"),
    "RoBERTa": ("RobertaForSequenceClassification", _TEXT, "classifier.dense:flat"),
    "DistilBERT": ("DistilBertForSequenceClassification", _DISTIL, "dropout:flat"),
    "GPT-2": ("GPT2ForSequenceClassification", _GPT2, "transformer.ln_f:last_token"),
}  # fmt: skip
TEXT = ("BERT", "DistilBERT", "GPT-2")


def build(name):
    kind, settings, _ = NETWORKS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind).config_class(**settings, num_labels=CLASSES)
    return getattr(transformers, kind)(config).eval()


def encodings(name, n, seed=0):
    """A batch as Hugging Face's processors and tokenizers make it, with labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    if "image_size" in NETWORKS[name][1]:
        images = torch.randn(n, 3, 16, 16, generator=draw)
        return transformers.BatchFeature({"pixel_values": images, "labels": labels})
    mask = (torch.arange(10) < torch.randint(3, 11, (n, 1), generator=draw)).long()
    ids = torch.randint(3, 40, (n, 10), generator=draw) * mask
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return transformers.BatchEncoding(batch)


@pytest.mark.parametrize("name", NETWORKS)
def test_automatic_layers_are_what_the_head_reads(name):
    net, batch = build(name), encodings(name, 4)
    found = auto_layers(net, batch)
    assert f"{found.head_input.path}:{found.head_input.layout}" == NETWORKS[name][2]
    assert len(found.early) == 3 and all(layer.layout == "tokens" for layer in found.early)


def fitted(net, name, rule):
    detector = NACDetector(net, "auto", rule=rule).fit([encodings(name, 180)])
    return detector.calibrate([encodings(name, 120, seed=1)])


@pytest.mark.parametrize("name", ["ViT", *TEXT])
@pytest.mark.parametrize("rule", ["nac", "nac_plus"])
def test_fit_score_and_predict(name, rule):
    net, batch = build(name), encodings(name, 8, seed=2)
    detector = fitted(net, name, rule)
    assert detector.fit_summary_.class_counts == dict.fromkeys(range(CLASSES), 60)
    scores = detector.score(batch)
    assert scores.shape == (8,) and scores.isfinite().all()
    with torch.no_grad():
        expected = net(**{n: part for n, part in batch.items() if n != "labels"}).logits.argmax(1)
    assert detector.score_loader([batch]).prediction.tolist() == expected.tolist()


@pytest.mark.parametrize("name", TEXT)
def test_a_text_alone_and_padded_scores_the_same(name):
    batch, detector = encodings(name, 10, seed=2), fitted(build(name), name, "nac_plus")
    inputs, alone = {n: part for n, part in batch.items() if n != "labels"}, []
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone.append(detector.score({n: p[row : row + 1, :length] for n, p in inputs.items()}))
    assert torch.allclose(detector.score(batch), torch.cat(alone), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "path", "layout"),
    [
        ("ViT", "vit.layernorm", "class_token"),
        ("ViT", "vit.layers.3", "class_token"),  # of the last block, the head sees no more
        ("ViT", "vit.layers.2", "tokens"),
        ("BERT", "bert.encoder.layer.3", "class_token"),
        ("DistilBERT", "distilbert.transformer.layer.1", "tokens"),
        ("GPT-2", "transformer.ln_f", "last_token"),
        ("GPT-2", "transformer.h.1", "tokens"),
    ],
)
def test_layers_named_by_path_have_the_tokens_that_are_read(name, path, layout):
    net, batch = build(name), encodings(name, 4)
    found = with_layouts(net, batch, {"x": find_layer(net, path)})
    assert found == {"x": Layer(path, path, layout)}
    detector = NACDetector(net, [path], rule="nac").fit([encodings(name, 180)])
    assert detector.locations[path].layout == layout
    expected = read(net, batch, found)["x"]
    assert torch.equal(detector.read_loader([batch])[path].activation, expected.activation)


def test_one_token_cannot_tell_and_does_not_decide():
    net, batch = build("BERT"), encodings("BERT", 4)
    short = {name: part[:, :1] for name, part in batch.items() if name != "labels"}
    layer = {"x": find_layer(net, "bert.encoder.layer.1")}
    assert with_layouts(net, short, layer) is None
    reader = NACDetector(net, ["bert.encoder.layer.1"], rule="nac")
    reader.read_loader([short])
    assert reader.locations["bert.encoder.layer.1"].layout is None
    reader.read_loader([batch])
    assert reader.locations["bert.encoder.layer.1"].layout == "tokens"
