"""NAC where pytorch-ood expects its own detectors."""

import pytest
import torch
from conftest import noise
from pytorch_ood.api import (
    Detector,
    FeaturesDetector,
    ModelNotSetException,
    RequiresFittingException,
    StructuredDetector,
)
from pytorch_ood.metrics import OODMetrics
from pytorch_ood.utils import extract_features

from nac_openood import NACDetector, PyTorchOODFeatures, PyTorchOODNetwork


def measured(detector):
    """As in pytorch-ood's own examples, where OOD samples have the label -1."""
    metrics = OODMetrics()
    for x, y in noise(96, 2):
        metrics.update(detector(x), y)
    for x, y in noise(96, 3, scale=3.0):
        metrics.update(detector(x), -torch.ones_like(y))
    return metrics.compute()


@pytest.fixture
def nac(small_net):
    detector = NACDetector(small_net, "auto", rule="nac_plus")
    return PyTorchOODNetwork(detector, noise(120, 1))


def test_a_network(nac):
    assert isinstance(nac, Detector) and isinstance(nac, StructuredDetector) and nac.requires_fit
    assert nac.fit(noise(160, 0)) is nac and nac.detector.calibrated_
    found = measured(nac)
    assert found["AUROC"] > 0.95 and found["FPR95TPR"] < 0.3
    x = next(iter(noise(8, 5)))[0]
    assert torch.equal(nac.predict(x), -nac.detector.score(x))


def test_readings_instead_of_a_network(nac):
    train, test = (nac.detector.read_loader(noise(100, seed)) for seed in (0, 5))
    nac.fit_structured(train)
    x = torch.cat([x for x, _ in noise(100, 5)])
    assert torch.allclose(nac.predict_structured(test), nac.predict(x))


def test_it_moves_with_its_network(nac):
    assert nac.fit(noise(160, 0)).to("cpu") is nac and nac.device == torch.device("cpu")
    nac.to(torch.device("meta"))
    assert {p.device.type for p in nac.detector.net.parameters()} == {"meta"}


def test_features(small_net):
    def encoder(x):
        return small_net.layer2(small_net.layer1(x)).mean(dim=(2, 3))

    nac = PyTorchOODFeatures(encoder)
    assert isinstance(nac, FeaturesDetector)
    z, y = extract_features(noise(200, 0), encoder, "cpu")
    outliers = torch.full((20, z.shape[1]), 99.0)  # marked as such, so not fitted on
    marked = torch.cat([y, -torch.ones(20, dtype=y.dtype)])
    nac.fit_features(torch.cat([z, outliers]), marked)
    assert measured(nac)["AUROC"] > 0.95
    x = next(iter(noise(8, 5)))[0]
    scores = nac.predict(x)
    assert torch.equal(nac.predict_features(encoder(x).detach()), scores)
    assert torch.equal(PyTorchOODFeatures(encoder).fit(noise(200, 0)).predict(x), scores)


def test_what_is_missing_is_said_as_pytorch_ood_says_it(nac):
    x = next(iter(noise(8, 5)))[0]
    with pytest.raises(RequiresFittingException):
        nac.predict(x)
    with pytest.raises(RequiresFittingException):
        PyTorchOODFeatures().predict_features(torch.zeros(2, 3))
    with pytest.raises(ModelNotSetException, match="no `encoder`"):
        PyTorchOODFeatures().predict(x)
