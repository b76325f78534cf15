"""A network that changed after `fit`: its counts are of other weights, so nothing goes on."""

import copy
import types

import pytest
import torch
from torch import nn

from nac_openood import LayerConfig, NACDetector, NACError
from nac_openood.network.fingerprint import Watch

CHANGED = "the network has changed since this detector was fitted"
LABELS = torch.arange(8) % 4


def trained(net, images):
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    net(images).square().sum().backward()
    optimizer.step()


def written(net, images):
    for parameter in net.parameters():
        parameter.data.mul_(0.9)


def normalized(net, images):
    net.train()(images)
    net.eval()


def replaced(net, images):
    net.layer1[2] = nn.GELU()


def reweighted(net, images):
    net.layer1[0].weight = nn.Parameter(net.layer1[0].weight.detach() * 2)


def another_forward(net, images):
    net.forward = types.MethodType(lambda self, x: type(self).forward(self, 2 * x), net)


CHANGES = {
    "a training step": trained,
    "weights written through .data": written,
    "statistics of BatchNorm": normalized,
    "another submodule": replaced,
    "another parameter": reweighted,
    "a forward of its own": another_forward,
    "a setting": lambda net, images: setattr(net.layer1[1], "eps", 0.5),
    "half precision": lambda net, images: net.half(),
    "double precision": lambda net, images: net.double(),
    "weights of another checkpoint": lambda net, images: net.load_state_dict(
        {name: tensor + 1 for name, tensor in net.state_dict().items()}
    ),
}
USES = {
    "score": lambda det, x, path: det.score(x),
    "score_loader": lambda det, x, path: det.score_loader([x]),
    "judge": lambda det, x, path: det.judge(x),
    "explain": lambda det, x, path: det.explain(x),
    "calibrate": lambda det, x, path: det.calibrate([x]),
    "partial_fit": lambda det, x, path: det.partial_fit((x, LABELS)),
    "save": lambda det, x, path: det.save(path / "x"),
}


@pytest.fixture
def fitted(small_net, images):
    net, images = copy.deepcopy(small_net), images[:8]
    det = NACDetector(net, ["avgpool", "layer1"], rule="nac").fit([(images, LABELS)])
    return det.calibrate([images] * 4), images


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_noticed(fitted, name):
    det, images = fitted
    det.score(images)
    CHANGES[name](det.net, images)
    with pytest.raises(NACError, match=f"{CHANGED}.*fit again"):
        det.score(images)
    images = images.to(next(det.net.parameters()).dtype)
    det.fit([(images, LABELS)]).score(images)


@pytest.mark.parametrize("name", USES)
def test_every_use_notices_it(fitted, name, tmp_path):
    det, images = fitted
    trained(det.net, images)
    with pytest.raises(NACError, match=CHANGED):
        USES[name](det, images, tmp_path)
    assert det.fit_summary_.n_samples == 8 and not list(tmp_path.iterdir())


def test_what_is_not_a_change(fitted, tmp_path):
    det, images = fitted
    scores = det.score(images)
    det.net.train()
    det.net.load_state_dict(copy.deepcopy(det.net.state_dict()))
    det.net.note = "which no forward uses"
    for parameter in det.net.parameters():  # as a network that was moved and moved back
        parameter.data = parameter.data.clone()
    det.net.layer1[2] = nn.ReLU(inplace=True)
    assert torch.equal(det.score(images), scores)
    twin = copy.deepcopy(det)
    assert torch.equal(twin.score(images), scores)
    twin.save(tmp_path / "x")
    assert torch.equal(NACDetector.load(tmp_path / "x", det.net).score(images), scores)


def test_a_network_that_changes_while_it_is_fitted_or_scored(small_net, images):
    net = copy.deepcopy(small_net)

    def loader():
        yield images
        trained(net, images)
        yield images

    with pytest.raises(NACError, match=CHANGED):
        NACDetector(net, ["avgpool"], rule="nac").fit(loader())
    det = NACDetector(net, ["avgpool"], rule="nac").fit([images])
    with pytest.raises(NACError, match=CHANGED):
        det.score_loader(loader())
    det = NACDetector(net, ["avgpool"], rule="nac")
    det.partial_fit(images)
    trained(net, images)
    with pytest.raises(NACError, match=CHANGED):
        det.partial_fit(images)


def test_readings_of_the_changed_network(fitted):
    det, images = fitted
    old = det.read_loader([images])
    assert torch.equal(det.score_readings(old), det.score(images))
    trained(det.net, images)
    for use in (det.score_readings, det.fit_readings):
        with pytest.raises(NACError, match="readings are of another network"):
            use(old)
    with pytest.raises(NACError, match=CHANGED):
        det.score_readings(det.read_loader([images]))


def test_only_a_certain_comparison_sees_every_value(small_net):
    net = copy.deepcopy(small_net)
    watch = Watch(net)
    net.layer1[0].weight.data[0, 0, 0, 0] += 1  # not the sample that is kept
    assert not watch.change() and "other weights" in watch.change(certain=True)


def test_weights_made_in_inference_mode(small_net, images):
    with torch.inference_mode():
        net = copy.deepcopy(small_net)
    det = NACDetector(net, {"avgpool": LayerConfig(state="output")}).fit([images])
    det.score(images)
    with torch.inference_mode():
        for parameter in net.parameters():
            parameter.mul_(0.9)
    with pytest.raises(NACError, match=CHANGED):
        det.score(images)
