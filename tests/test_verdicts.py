"""What a detector says about samples in one pass, and what its file keeps beside the rule."""

import pytest
import torch
from test_plus_detector import data

from nac_openood import NACDetector


@pytest.fixture
def detector(small_net):
    return NACDetector(small_net, "auto", rule="nac_plus").fit(data(200)).calibrate(data(120, 1))


def test_one_pass_says_what_separate_calls_say(detector, small_net, images):
    found = detector.judge(images)
    probabilities = small_net.eval()(images).detach().double().softmax(dim=1)
    assert torch.equal(found.prediction, probabilities.argmax(dim=1))
    torch.testing.assert_close(found.confidence, probabilities.max(dim=1).values)
    assert torch.equal(found.score, detector.score(images))
    assert torch.equal(found.p_value, detector.p_value(images))
    middle = float(found.p_value.median())  # at the level itself a sample is out
    assert found.out(middle).tolist() == (found.p_value <= middle).tolist()


def test_what_cannot_be_judged_is_out(detector, images):
    broken = images.clone()
    broken[1] = float("nan")
    found = detector.judge(broken)
    assert found.p_value.isnan().tolist() == [i == 1 for i in range(len(images))]
    assert bool(found.out(1e-9)[1]) and not found.out(1e-9)[0]


def test_the_file_keeps_classes_and_notes(detector, small_net, tmp_path):
    detector.save(tmp_path / "plain")
    assert NACDetector.load(tmp_path / "plain", small_net).classes_ == ()
    detector.classes_, detector.notes_ = ("cat", "dog", "owl", "eel"), {"transform": "resize: 32"}
    detector.save(tmp_path / "told")
    again = NACDetector.load(tmp_path / "told", small_net)
    assert (again.classes_, again.notes_) == (detector.classes_, detector.notes_)
