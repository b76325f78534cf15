"""Slips of people who use the package for the first time: each error says what to do."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet18, vit_b_16

from nac_openood import LayerConfig, NACDetector
from nac_openood.errors import NACError


@pytest.fixture
def detector(small_net, images, labels):
    return NACDetector(small_net, ["avgpool"]).fit([(images, labels)])


ONE_IMAGE = r"leading dimension, x\[None\]"


def test_an_unbatched_image(detector, small_net, images):
    with pytest.raises(NACError, match=r"batch has shape \[3, 9, 9\].*" + ONE_IMAGE):
        detector.score(images[0])
    with pytest.raises(NACError, match=r"batch has shape \[3, 9, 9\].*" + ONE_IMAGE):
        NACDetector(small_net, ["avgpool"]).fit([images[0]])
    with pytest.raises(NACError, match=ONE_IMAGE):
        NACDetector(small_net, "auto", rule="nac_plus").fit([images[0]])


@pytest.mark.parametrize("build", [resnet18, lambda: vit_b_16(image_size=32)])
def test_an_unbatched_image_in_other_networks(build):
    with pytest.raises(NACError, match=r"\[3, 32, 32\].*" + ONE_IMAGE):
        NACDetector(build(), "auto").fit([torch.rand(3, 32, 32)])


def test_uint8_images(detector, small_net, images):
    raw = (images * 20).clamp(0, 255).to(torch.uint8)
    with pytest.raises(NACError, match="dtype torch.uint8. Networks take images as floating-point"):
        detector.score(raw)
    with pytest.raises(NACError, match=r"pass x.float\(\) / 255, normalized as in training"):
        NACDetector(small_net, ["avgpool"]).fit([raw])


def test_a_network_that_takes_uint8_is_let(small_net, images, labels):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net

        def forward(self, x):
            return self.net(x.float() / 255)

    raw = (images * 20).clamp(0, 255).to(torch.uint8)
    assert NACDetector(Normalized(), ["net.avgpool"]).fit([(raw, labels)]).score(raw).shape == (24,)


def test_a_list_of_images(detector, images):
    with pytest.raises(NACError, match=r"joined with torch.stack\(x\)"):
        detector.score([images[0], images[1]])


@pytest.mark.parametrize("use", ["fit", "score_loader", "calibrate", "read_loader"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x, y: TensorDataset(x, y),
            r"got TensorDataset. Pass a list of batches, \[\(x, y\)\], or .*DataLoader\(data",
        ),
        (lambda x, y: x, "got Tensor. Pass a list"),
        (lambda x, y: x.numpy(), "got ndarray. Pass a list"),
        (lambda x, y: {"data": x, "label": y}, "got dict. Pass a list"),
        (lambda x, y: "images/train", "got str. Pass a list"),
        (lambda x, y: None, "got NoneType. Pass a list"),
    ],
)
def test_what_is_no_loader(detector, images, labels, use, make, message):
    with pytest.raises(NACError, match="expected a loader that yields batches, " + message):
        getattr(detector, use)(make(images, labels))


@pytest.mark.parametrize("rule", ["nac", "nac_plus"])
def test_misspelt_presets(small_net, rule):
    with pytest.raises(NACError, match="no preset 'imagnet'.*Did you mean 'imagenet'"):
        NACDetector(small_net, layers="imagnet", rule=rule)
    with pytest.raises(NACError, match=r"read the layer 'layer3', pass a list: `layers=\['layer3'"):
        NACDetector(small_net, layers="layer3", rule=rule)
    with pytest.raises(NACError, match="Did you mean 'auto'"):
        NACDetector(small_net, layers="Auto", rule=rule)


@pytest.mark.parametrize("n", [20.5, float("nan"), float("inf"), "20", True])
def test_sizes_that_are_no_whole_numbers(small_net, images, labels, n):
    with pytest.raises(NACError, match="n_samples must be a whole number, got"):
        NACDetector(small_net, ["avgpool"]).fit([(images, labels)], n_samples=n)


@pytest.mark.parametrize("layers", [None, 5, b"auto", {1: LayerConfig()}, [1]])
def test_what_names_no_layers(small_net, layers):
    with pytest.raises(NACError, match="`layers` must be a preset, a list of .*'1', not 1"):
        NACDetector(small_net, layers)


def test_what_is_no_network(detector, tmp_path):
    for layers in ("auto", ["avgpool"]):
        with pytest.raises(
            NACError, match=r"expected a network, a torch\.nn\.Module, got NoneType"
        ):
            NACDetector(None, layers)
    detector.save(tmp_path / "x")
    with pytest.raises(NACError, match=r"expected a network, a torch\.nn\.Module, got NoneType"):
        NACDetector.load(tmp_path / "x", None)


@pytest.mark.parametrize("labels", [["cat"] * 24, np.array(["cat"] * 24), [None] * 24])
def test_what_is_no_label(small_net, images, labels):
    told = "expected one whole-number label for each of 24 samples, got (list of|ndarray)"
    with pytest.raises(NACError, match=told):
        NACDetector(small_net, ["avgpool"]).fit([(images, labels)])


def test_numbers_of_another_type(detector, images):
    with pytest.raises(NACError, match="tpr must be above 0 and at most 1, got '0.9'"):
        detector.calibrate([images], tpr="0.9")
    detector.calibrate([images])
    for alpha in ("0.1", None):
        with pytest.raises(NACError, match=f"`alpha` must lie between 0 and 1, got {alpha!r}"):
            detector.judge(images).out(alpha)
    with pytest.raises(NACError, match=r"`levels` must lie between 0 and 1, got \['0.1'\]"):
        detector.false_alarms([images], ["0.1"])
    for top, told in ((-1, "at least 0"), ("2", "a whole number")):
        with pytest.raises(NACError, match=f"top must be {told}, got {top!r}"):
            detector.explain(images, top=top)


def test_other_settings(small_net, images):
    with pytest.raises(NACError, match="n_samples must be at most 2,147,483,647, got 10{30}"):
        NACDetector(small_net, ["avgpool"]).fit([images], n_samples=10**30)
    with pytest.raises(NACError, match="fast must be true or false, without quotes, got 'no'"):
        NACDetector(small_net, ["avgpool"], fast="no")


@pytest.mark.parametrize("n", [20, 20.0, np.int64(20), np.float32(20)])
def test_sizes_that_are(small_net, images, labels, n):
    found = NACDetector(small_net, ["avgpool"]).fit([(images, labels)], n_samples=n)
    assert found.fit_summary_.n_samples == 20


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3, 9, 9)), r"got ndarray. Convert it: torch.from_numpy\(x\).float\(\)"),
        ("cat.png", "got str. Load and transform the file"),
        (torch.zeros(0, 3, 9, 9), r"at least one sample, got shape \[0, 3, 9, 9\]"),
        (torch.tensor(1.0), r"at least one sample, got shape \[\]"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_batch(detector, small_net, x, message):
    with pytest.raises(NACError, match=message):
        detector.score(x)
    with pytest.raises(NACError, match=message):
        NACDetector(small_net, ["avgpool"]).fit([x])


def test_slips_in_named_inputs(detector, images):
    with pytest.raises(NACError, match=r"shapes {image: \[3, 9, 9\]}.*" + ONE_IMAGE):
        detector.score({"image": images[0]})


def test_other_failures_of_the_network_are_its_own(detector, images):
    with pytest.raises(RuntimeError, match="channels"):
        detector.score(images[:, :2])


def test_a_loader_of_unbatched_images(small_net, images, labels):
    with pytest.raises(NACError, match=ONE_IMAGE):
        NACDetector(small_net, ["avgpool"]).fit(DataLoader(list(images), batch_size=None))
