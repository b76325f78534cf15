"""NAC+ on a real network and real images: worth its claims, and the grid costs nothing."""

from dataclasses import replace

import minibench
import pytest
import torch
from conftest import BENCH_EVERY, percent
from test_plus import oracle_coverage

from nac_openood import NACDetector, Reading
from nac_openood.core.fusion import LOGITS, Fusion
from nac_openood.core.plus import distance_of
from nac_openood.core.pvalues import PValues
from nac_openood.detector.decisions import false_alarm_rates

pytestmark = pytest.mark.bench
SETS = {"test_cifar10": 2, "test_cifar100": 4, "test_texture": 4, "test_mnist": 4}
#: Positions in the feature maps. NAC+ averages over them what NAC sums.
POSITIONS = {"layer1": 32 * 32, "layer2": 16 * 16, "layer3": 8 * 8, "avgpool": 1}


def averaged(readings):
    """Readings of NAC+ from those of NAC."""
    layers = {n: Reading(readings[n].activation / POSITIONS[n], None) for n in POSITIONS}
    return replace(readings, by_layer=layers)


@pytest.fixture(scope="module")
def measured(bench, bench_readings):
    """The detector and the readings of every set, thinned."""
    folder, root = bench
    det = NACDetector(minibench.trained(folder), layers="auto", rule="nac_plus")
    lists = {"train": minibench.FITTING, "val": "val_cifar10"}
    found = {name: averaged(bench_readings(listed)) for name, listed in lists.items()}
    for name, step in SETS.items():
        found[name] = averaged(bench_readings(name))
        found[name] = found[name].rows(range(0, found[name].n_samples, max(1, step // BENCH_EVERY)))
    # its own pass finds the layers, and reads the same
    first = det.read_loader(minibench.first(root, minibench.FITTING, 100))
    for name in POSITIONS:
        torch.testing.assert_close(first[name].activation, found["train"][name].activation[:100])
    torch.testing.assert_close(first.logits, found["train"].logits[:100])
    det.fit_readings(found["train"])
    det.pvalues_ = PValues(det.rule_.calibrate(map(det.rule_.parts, found["val"].batches())))
    return det, found


def test_its_layers_are_the_early_stages_and_the_input_of_the_head(measured):
    assert list(measured[0].layers) == ["layer1", "layer2", "layer3", "avgpool"]
    assert measured[0].rule_.early == ["layer1", "layer2", "layer3"]


def test_it_keeps_the_logits_near_and_gains_far(measured):
    det, found = measured
    parts = {name: det.rule_.parts(found[name]) for name in SETS}
    score = {name: det.rule_.combine(part) for name, part in parts.items()}
    gain = {
        name: percent(score["test_cifar10"], score[name])
        - percent(parts["test_cifar10"][LOGITS], parts[name][LOGITS])
        for name in SETS
    }
    # -0.3 on all images; thinned sets add noise of about 0.2
    assert gain["test_cifar100"] > -0.8
    assert gain["test_texture"] > 3 and gain["test_mnist"] > 3


def test_the_grid_is_worth_exact_quantiles(measured):
    """AUROC of near and far within 0.1 points of the formula on the activations themselves."""
    det, found = measured
    early = det.rule_.early
    train = {n: found["train"][n].activation.double().numpy() for n in early}

    def exact(readings):
        parts = dict(det.rule_.parts(readings))
        for name in early:
            z = readings[name].activation.double().numpy()
            parts[name] = torch.from_numpy(oracle_coverage(train[name], z))
        return parts

    shaping = found["val"].rows(range(1, found["val"].n_samples, 2))
    fusion = Fusion(exact(shaping), logit_weight=2.0, softness=0.2)
    wanted = {name: fusion.score(exact(found[name])) for name in SETS}
    score = {name: det.score_readings(found[name]) for name in SETS}
    for name in list(SETS)[1:]:
        ours = percent(score["test_cifar10"], score[name])
        assert ours == pytest.approx(percent(wanted["test_cifar10"], wanted[name]), abs=0.1)
    assert distance_of("layer1") in fusion.calibration


def test_false_alarms_are_about_what_the_p_value_says(measured):
    det, found = measured
    score = det.score_readings(found["test_cifar10"])
    (alarms,) = false_alarm_rates(det.pvalues_(score), [0.05], det.pvalues_)
    low, high = alarms.expected
    assert low <= alarms.rate <= high and score.isfinite().all()
