"""The one recipe: split, read, search, guard, fit."""

import itertools

import numpy as np
import pytest
import torch
from conftest import noise
from torch.utils.data import DataLoader

from nac_openood import LayerConfig, NACConfig, NACDetector, NACError
from nac_openood.detector.batches import fitting_loader
from nac_openood.search.recipe import gather, held_out_of, set_up

CONFIG = NACConfig(
    layers={"avgpool": LayerConfig(n_bins=20), "layer2": LayerConfig(steepness=0.1)},
    n_samples=40,
    search=True,
    sweep={"avgpool": {"full_count": [2, 5], "steepness": [1, 100]}},
)


def unlabeled(n, seed=0):
    return DataLoader(noise(n, seed).dataset.tensors[0], batch_size=16)


def rows_of(found):
    return list(found.dataset.indices)


def test_held_out_samples_are_not_fitted_on():
    train = noise(100)
    fitted = set(rows_of(fitting_loader(train, 40)))
    held = rows_of(held_out_of(train, 40, 20))
    assert len(fitted) == 40 and len(held) == 20 and not fitted & set(held)
    assert set(np.bincount(np.array(held) % 4)) == {5}
    assert len(rows_of(held_out_of(train, 40, 3))) == 3
    assert len(rows_of(held_out_of(train, 40, 1000))) == 60
    assert held_out_of(train, 40, 0) is None
    assert held_out_of(train, None, 20) is None and held_out_of(train, 100, 20) is None
    assert len(rows_of(held_out_of(unlabeled(100), 40, 20))) == 20


def test_every_step_gives_what_doing_it_by_hand_gives(small_net):
    train, inside, outside = noise(100), noise(30, 1), noise(30, 2, scale=2.0)
    detector, found, _ = set_up(small_net, CONFIG, train, inside, outside, n_held_out=20)
    assert found.evaluated == 4 and found.best.guard is not None and not found.surrogate
    by_hand = NACDetector(small_net, found.layers).fit(train, 40)
    images = torch.randn(8, 3, 9, 9)
    assert torch.equal(detector.score(images), by_hand.score(images))
    values = {}
    for tried in itertools.product((2, 5), (1, 100)):
        pool = LayerConfig(20, *tried)
        fitted = NACDetector(small_net, {**CONFIG.layers, "avgpool": pool}).fit(train, 40)
        a, b = (fitted.score_loader(x).score for x in (inside, outside))
        values[pool] = (a[:, None] > b).mean() + (a[:, None] == b).mean() / 2
    assert values[found.layers["avgpool"]] == max(values.values())
    assert found.best.auroc == pytest.approx(max(values.values()), abs=1e-12)


def test_without_a_search_the_settings_are_used_as_they_are(small_net):
    quiet = NACConfig(layers=CONFIG.layers, n_samples=40)
    detector, found, _ = set_up(small_net, quiet, noise(100))
    assert found is None and detector.layers == dict(CONFIG.layers)
    with pytest.raises(NACError, match="a search needs ID validation data: pass `id_val`"):
        set_up(small_net, CONFIG, noise(100))


def test_without_ood_validation_data_surrogates_stand_in(small_net):
    reader = NACDetector(small_net, CONFIG.layers)
    readings = gather(reader, noise(60), noise(30, 1), n_samples=40, names={"id_val": "val_x"})
    assert readings.surrogate and readings.ood_val.n_samples == 30
    assert readings.about["ood_val"]["name"].startswith("surrogates of val_x (rotated, ")
    assert set_up(small_net, CONFIG, noise(60), noise(30, 1))[1].surrogate


def test_unlabeled_validation_data_has_no_accuracy(small_net):
    reader = NACDetector(small_net, CONFIG.layers)
    readings = gather(reader, noise(60), unlabeled(30, 1), n_samples=40)
    assert readings.id_val.accuracy is None and "accuracy" not in readings.about
    assert 0 <= readings.fit.accuracy <= 1


def test_a_fitting_set_that_would_not_fit_in_memory_is_refused(small_net):
    reader = NACDetector(small_net, CONFIG.layers)
    with pytest.raises(NACError, match="300000 samples would need too much memory"):
        gather(reader, noise(60), noise(30), n_samples=300_000)


def test_automatic_layers_are_searched_over_the_papers_space(small_net):
    train, inside, outside = noise(80), noise(40, 1), noise(40, 2, scale=3.0)
    detector, found, _ = set_up(small_net, NACConfig({}, 40, search=True), train, inside, outside)
    assert found is not None and found.strategy == "layerwise"
    assert set(found.layers) == set(detector.layers)
    assert any(used != LayerConfig() for used in detector.layers.values())
    assert set_up(small_net, NACConfig({}, 40), train, inside, outside)[1] is None


@pytest.mark.parametrize("role", ["fit", "id_val"])
def test_labels_are_checked_as_fit_checks_them(small_net, role):
    sets = {"fit": noise(60), "id_val": noise(30, 1)}
    sets[role].dataset.tensors[1][3] = 77
    with pytest.raises(NACError, match="found 77"):
        gather(NACDetector(small_net, CONFIG.layers), sets["fit"], sets["id_val"], n_samples=None)
