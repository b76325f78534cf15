"""NAC+ where people meet it: the detector with automatic layers, and OpenOOD's contract."""

import pickle

import openood_standin
import pytest
import torch
from openood_standin import StandInEvaluator
from test_contract import loader, loaders  # noqa: F401
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import NACDetector, NotFittedError


def data(n, seed=0, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 9, 9, generator=draw) * scale
    return DataLoader(TensorDataset(images, torch.arange(n) % 4), batch_size=32)


@pytest.fixture
def detector(small_net):
    return NACDetector(small_net, layers="auto", rule="nac_plus").fit(data(200))


def test_from_a_network_to_a_p_value(detector, small_net, images, tmp_path):
    assert detector.layers and "avgpool" not in detector.layers
    detector.calibrate(data(120, 1))
    p = detector.p_value(images)
    assert p.shape == (24,) and ((p > 0) & (p <= 1)).all()
    assert (detector.p_value(images * 4).mean() < p.mean()).all()
    assert detector.predict(images).float().mean() > 0.7
    detector.save(tmp_path / "x")
    again = NACDetector.load(tmp_path / "x", small_net)
    assert torch.equal(again.p_value(images), p) and again.layers == detector.layers
    found = detector.explain(images[:2])[0]
    assert set(found.contributions) == {*detector.layers, "logits"}
    assert sum(found.contributions.values()) == pytest.approx(found.score)


def test_about_a_share_p_of_new_data_falls_at_or_below_p(detector):
    detector.calibrate(data(400, 1))
    images = torch.cat([x for x, _ in data(400, 2)])
    share = float((detector.p_value(images) <= 0.1).float().mean())
    assert 0.04 < share < 0.17


def test_it_is_forward_only(detector, small_net, images):
    small_net.fc.register_full_backward_hook(lambda *_: pytest.fail("there was a backward pass"))
    detector.calibrate(data(120, 1)).score(images)


def test_shards_merge(small_net, detector, images):
    half = list(data(200))
    first = NACDetector(small_net, "auto", rule="nac_plus").fit(half[:3])
    second = NACDetector(small_net, "auto", rule="nac_plus").fit(half[3:])
    merged = first.merge(second).calibrate(data(120, 1))
    assert torch.equal(merged.score(images), detector.calibrate(data(120, 1)).score(images))


def test_automatic_layers_need_a_batch(small_net):
    with pytest.raises(NotFittedError, match="finds layers by running the network: call fit"):
        NACDetector(small_net, "auto").fit_readings({})
    reference = NACDetector(small_net, "auto").fit(data(60))
    assert next(iter(reference.layers)) == "avgpool" and len(reference.layers) > 1


def test_inside_openood(monkeypatch, small_net, loaders):  # noqa: F811
    cls = openood_standin.install(monkeypatch)
    args = {"layers": "auto", "n_samples": 40}
    postprocessor = cls({"postprocessor": {"name": "nac_plus", "postprocessor_args": args}})
    inside, outside = loaders
    with pytest.warns(UserWarning, match="calibrated on 30 samples only"):
        StandInEvaluator(small_net, postprocessor, inside, outside)
    again = pickle.loads(pickle.dumps(postprocessor))
    expected = postprocessor.inference(small_net, outside["near"]["x"])[1]
    assert again.inference(small_net, outside["near"]["x"])[1].tolist() == expected.tolist()
    assert not postprocessor.hyperparam_search_done and postprocessor.layers
