"""NAC+ where people meet it: the detector with automatic layers."""

import re

import pytest
import torch
from conftest import noise

from nac_openood import NACDetector, NACError, NotFittedError
from nac_openood.detector.decisions import false_alarm_rates


@pytest.fixture
def detector(small_net):
    return NACDetector(small_net, layers="auto", rule="nac_plus").fit(noise(200))


def test_from_a_network_to_a_p_value(detector, small_net, images):
    small_net.fc.register_full_backward_hook(lambda *_: pytest.fail("there was a backward pass"))
    assert [n for n, config in detector.layers.items() if config.head_input] == ["avgpool"]
    detector.calibrate(noise(120, 1))
    p = detector.p_value(images)
    assert p.shape == (24,) and ((p > 0) & (p <= 1)).all()
    assert (detector.p_value(images * 4).mean() < p.mean()).all()
    assert detector.predict(images).float().mean() > 0.7
    assert set(detector.explain(images[:2])[0].contributions) == {*detector.layers, "logits"}


def test_false_alarms_are_reported_with_their_interval(detector):
    detector.calibrate(noise(400, 1))
    found = detector.false_alarms(noise(400, 2))
    assert [alarms.level for alarms in found] == [0.01, 0.05, 0.10]
    for alarms in found:
        assert alarms.low <= alarms.rate <= alarms.high and alarms.n_samples == 400
        low, high = alarms.expected
        assert low <= alarms.level < high
    images = torch.cat([x for x, _ in noise(400, 2)])
    assert found[2].rate == float((detector.p_value(images) <= 0.1).double().mean())
    text = str(found[2])
    assert re.match(r"p <= 0\.1: .* of 400 samples \(data like the calibration data: ", text)


def test_intervals_of_false_alarms_are_clopper_and_pearsons():
    # 1 of 20: the textbook interval of 0.1 % to 24.9 %
    (alarms,) = false_alarm_rates([0.01] + [0.5] * 19, [0.05])
    assert alarms.rate == 0.05
    assert (alarms.low, alarms.high) == pytest.approx((0.00127, 0.24873), abs=1e-5)
    (none,) = false_alarm_rates([0.5] * 20, [0.05])
    assert (none.low, none.high) == pytest.approx((0.0, 0.16843), abs=1e-5)
    (broken,) = false_alarm_rates([float("nan")], [0.05])
    assert broken.rate == 1.0
    with pytest.raises(NACError, match="`levels` must lie between 0 and 1"):
        false_alarm_rates([0.5], [1])


def test_without_calibration_data_p_values_are_marked(small_net, images):
    det = NACDetector(small_net, layers="auto", rule="nac_plus").fit(noise(400))
    with pytest.warns(UserWarning, match="NAC\\+ was not calibrated"):
        p = det.p_value(images)
    assert not det.calibrated_ and ((p > 0) & (p <= 1)).all()
    assert 0.5 < det.predict(images).float().mean() <= 1
    assert det.calibrate(noise(120, 1)).calibrated_
    reference = NACDetector(small_net, ["avgpool"], rule="nac").fit(noise(60))
    for unfit in ("p_value", "predict", "judge"):
        with pytest.raises(NotFittedError, match="not calibrated: call calibrate"):
            getattr(reference, unfit)(images)


def test_automatic_layers_need_a_batch(small_net):
    with pytest.raises(NotFittedError, match="finds layers by running the network: call fit"):
        NACDetector(small_net, "auto", rule="nac").fit_readings({})
    reference = NACDetector(small_net, "auto", rule="nac").fit(noise(60))
    assert next(iter(reference.layers)) == "avgpool" and len(reference.layers) > 1


def test_a_preset_of_a_rule_without_settings_means_automatic_layers(small_net, images, tmp_path):
    named = NACDetector(small_net, "cifar10", rule="nac_plus").fit(noise(200))
    automatic = NACDetector(small_net, "auto", rule="nac_plus").fit(noise(200))
    assert named.layers == automatic.layers
    named.calibrate(noise(120, 1)).save(tmp_path / "x")
    for layers in ("cifar10", "auto"):
        again = NACDetector.load(tmp_path / "x", small_net, layers=layers)
        assert torch.equal(again.score(images), named.score(images))
    with pytest.raises(NACError, match="there is no preset 'cifar11' for rule"):
        NACDetector.load(tmp_path / "x", small_net, layers="cifar11")


# -- what it says about samples in one pass, and what its file keeps beside the rule ---------


@pytest.fixture
def calibrated(detector):
    return detector.calibrate(noise(120, 1))


def test_one_pass_says_what_separate_calls_say(calibrated, small_net, images):
    found = calibrated.judge(images)
    probabilities = small_net.eval()(images).detach().double().softmax(dim=1)
    assert torch.equal(found.prediction, probabilities.argmax(dim=1))
    torch.testing.assert_close(found.confidence, probabilities.max(dim=1).values)
    assert torch.equal(found.score, calibrated.score(images))
    assert torch.equal(found.p_value, calibrated.p_value(images))
    middle = float(found.p_value.median())  # at the level itself a sample is out
    assert found.out(middle).tolist() == (found.p_value <= middle).tolist()
