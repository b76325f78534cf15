"""A Hugging Face ViT that was trained: its class token is read by itself, and that helps."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from nac_openood import LayerConfig, NACDetector
from nac_openood.core.metrics import auroc

transformers = pytest.importorskip("transformers")

KNOWN = 6  # digits 0 to 5; the network never sees 6 to 9


@pytest.fixture(scope="module")
def digits():
    """Images and labels of known digits in random order, and images of the others."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(found.target)
    known = labels < KNOWN
    order = torch.randperm(int(known.sum()), generator=torch.Generator().manual_seed(2))
    return images[known][order], labels[known][order], images[~known]


@pytest.fixture(scope="module")
def vit(digits):
    images, labels, _ = digits
    torch.manual_seed(2)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        image_size=8, patch_size=2, num_channels=1, num_labels=KNOWN,
    )  # fmt: skip
    net = transformers.ViTForImageClassification(config)
    steps = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(200):
        rows = torch.randint(0, 600, (64,))
        steps.zero_grad()
        F.cross_entropy(net(images[rows]).logits, labels[rows]).backward()
        steps.step()
    return net.eval()


def test_the_class_token_tells_unknown_digits_better_than_all_tokens(vit, digits):
    images, labels, unknown = digits
    test = images[800:]
    with torch.no_grad():
        assert (vit(test).logits.argmax(1) == labels[800:]).float().mean() > 0.85
    found = {}
    for layout in (None, "tokens"):
        settings = LayerConfig(steepness=10.0, layout=layout)
        detector = NACDetector(vit, {"vit.layernorm": settings})
        detector.fit([(images[:600], labels[:600])])
        read = detector.locations["vit.layernorm"].layout
        found[read] = auroc(detector.score(test).numpy(), detector.score(unknown).numpy())
    assert set(found) == {"class_token", "tokens"}
    assert found["class_token"] > 0.7 and found["class_token"] > found["tokens"] + 0.1, found
