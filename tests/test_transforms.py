"""How images become a network's input: the network's own configuration, YAML, or code."""

import pytest
import torch
from PIL import Image

from nac_openood.errors import NACError
from nac_openood.sources.sets import BENCHMARKS
from nac_openood.sources.transforms import (
    ImageSettings,
    chosen_transform,
    read_settings,
    restored_transform,
)

IMAGE = Image.new("RGB", (60, 40), (255, 51, 0))
ARCH = "resnet18_32x32"


def test_yaml_says_what_happens(tmp_path):
    (tmp_path / "t.yml").write_text("resize: 32\ncrop: 28\nmean: [0.5, 0.5, 0.5]\nstd: [1, 2, 1]\n")
    made = chosen_transform(str(tmp_path / "t.yml"), ARCH)
    x = made.transform(IMAGE)
    assert x.shape == (3, 28, 28)
    torch.testing.assert_close(x[:, 3, 3], torch.tensor([0.5, (0.2 - 0.5) / 2, -0.5]))
    again = restored_transform(made.text)
    assert again.text == made.text and again.identity == made.identity
    assert str(again) == "resize: 32, crop: 28, mean: [0.5, 0.5, 0.5], std: [1.0, 2.0, 1.0]"
    assert str(made) == f"{again} (of the file {tmp_path / 't.yml'})"


def test_gray_and_other_sizes():
    settings = ImageSettings(gray=True, resize=(20, 30), mean=0.5, std=0.5, interpolation="bicubic")
    x = settings.transform()(IMAGE)
    assert x.shape == (1, 20, 30) and settings.mean == (0.5,)
    assert ImageSettings.from_yaml(settings.to_yaml(), "here") == settings
    assert ImageSettings(mean=0.5, std=0.5).mean == (0.5,) * 3
    assert ImageSettings(crop=8).transform()(IMAGE).max() == 1  # no mean: pixels from 0 to 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resise: 32", "'resise' is unknown"),
        ("", "expected a mapping with at least one key"),
        ("resize: 3.5", "'resize' must be a list of 2, got 3.5"),
        ("mean: [1, 2]\nstd: [1, 2]", "'mean' must be 3 numbers, one per channel"),
        ("mean: [0, 0, 0]", "expected both 'mean' and 'std' or neither"),
        ("resize: 3\ninterpolation: cubic", "must be one of nearest, bilinear, bicubic, lanczos"),
        ("gray: 1", "'gray' must be true or false"),
        ("resize: -5", "'resize' must be at least 1 pixel, got -5"),
        ("crop: [32, 0]", "'crop' must be at least 1 pixel"),
        ("mean: 0.5\nstd: 0", "'std' must be positive"),
    ],
)
def test_wrong_yaml_is_refused_with_an_example(tmp_path, text, message):
    (tmp_path / "t.yml").write_text(text)
    with pytest.raises(NACError, match=message) as caught:
        read_settings(tmp_path / "t.yml")
    assert "t.yml: " in str(caught.value) and "crop: 224" in str(caught.value)


def test_a_mean_of_pixels_up_to_255(tmp_path):
    (tmp_path / "t.yml").write_text("mean: [123.7, 116.3, 103.5]\nstd: [58.4, 57.1, 57.4]")
    with pytest.raises(NACError, match="divide both by 255. The mean is \\[123.7, 116.3, 103.5"):
        read_settings(tmp_path / "t.yml")


def test_the_networks_own_configuration():
    torchvision = chosen_transform(None, "vit_b_16", "torchvision:IMAGENET1K_SWAG_E2E_V1")
    assert torchvision.transform(IMAGE).shape == (3, 384, 384) and torchvision.text == "auto"
    assert chosen_transform("auto", "resnet18", "net.pt").transform(IMAGE).shape == (3, 224, 224)
    small = chosen_transform("auto", "resnet_embedded", "net.pt")
    assert small.transform(IMAGE).shape == (3, 32, 32)
    assert torchvision.identity != small.identity
    assert str(torchvision).startswith("ImageClassification( crop_size=[384]")


def test_it_is_said_whose_transform_it_is():
    published = "torchvision's for the published weights of resnet18"
    for weights, origin in (
        ("torchvision:IMAGENET1K_V1", published),
        ("runs/net.pt", f"{published}; if net.pt was trained with another, pass `transform`"),
    ):
        assert chosen_transform("auto", "resnet18", weights).origin == origin
    assert chosen_transform("auto", "resnet_embedded", "net.pt").origin == "the network's own"
    cifar = chosen_transform(None, "resnet18", "net.pt", benchmark=BENCHMARKS["cifar10"])
    assert cifar.origin == "OpenOOD's for cifar10"


def test_nothing_is_guessed():
    with pytest.raises(NACError, match="no transform is known for") as caught:
        chosen_transform(None, ARCH, "net.pt")
    assert "resize: 256" in str(caught.value) and "`transform`" in str(caught.value)
    listed = chosen_transform(None, ARCH, "x", benchmark=BENCHMARKS["cifar10"])
    assert listed.text.startswith("resize: 32\ncrop: 32\nmean: [0.4914")
    assert repr(listed.transform) == repr(BENCHMARKS["cifar10"].transform())


CODE = """
from torchvision.transforms import Compose, ToTensor
def factory(): return ToTensor()
def itself(image): return ToTensor()(image) * 2
ready = Compose([ToTensor()])
Kind = ToTensor
def wrong(image): return 3
def failing(image): return image.nothing
def nothing(): return 3
"""


def test_code_makes_a_transform_or_is_one(tmp_path):
    (tmp_path / "t.py").write_text(CODE)
    names = ("factory", "itself", "ready", "Kind")
    made = {name: chosen_transform(f"{tmp_path}/t.py:{name}", ARCH) for name in names}
    largest = {name: float(m.transform(IMAGE).max()) for name, m in made.items()}
    assert largest == {"factory": 1, "itself": 2, "ready": 1, "Kind": 1}
    assert made["itself"].identity != made["ready"].identity


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("t.py:wrong", "returned a int, expected a tensor"),
        ("t.py:failing", r"your code t.py:failing failed in .*t.py, line 8: AttributeError"),
        ("t.py:nothing", "makes a int, not a transform"),
        ("imagenet", "`transform`: expected 'auto', a YAML file or code"),
        ("nowhere.yml", "cannot read the transform nowhere.yml"),
    ],
)
def test_what_is_not_a_transform(tmp_path, monkeypatch, choice, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(CODE)
    with pytest.raises(NACError, match=message):
        chosen_transform(choice, ARCH).transform(IMAGE)


def test_a_file_does_not_make_code_run(tmp_path):
    (tmp_path / "t.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(NACError, match="which is run only if you pass `transform="):
        restored_transform(f"{tmp_path}/t.py:f")
