"""The postprocessor against a stand-in of OpenOOD; see test_plugin.py for the real one."""

import pickle

import openood_standin
import pytest
import torch
from openood_standin import StandInEvaluator
from torch.utils.data import DataLoader, Dataset

from nac_openood import LayerConfig, NACError, NotFittedError

SWEEP = {
    "avgpool": {"full_count": [2, 5], "n_bins": [20], "steepness": [1, 10, 100]},
    "layer2": {"full_count": [2, 3], "n_bins": [10, 50]},
}
LAYERS = {"avgpool": {"n_bins": 20}, "layer2": {"n_bins": 50, "steepness": 0.1}}


class Listed(Dataset):
    """OpenOOD's items: dicts, with labels in `.imglist`."""

    def __init__(self, images, labels, preprocessor=None):
        self.images, self.labels, self.preprocessor = images, labels, preprocessor
        self.imglist = [f"{i}.png {label}\n" for i, label in enumerate(labels.tolist())]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        augmented = image if self.preprocessor is None else torch.full_like(image, float("nan"))
        return {"data": augmented, "data_aux": image, "label": int(self.labels[index])}


def loader(n, seed, scale=1.0, shuffle=False, label=None):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 9, 9, generator=generator) * scale
    labels = torch.arange(n) % 4 if label is None else torch.full((n,), label)
    return DataLoader(Listed(images, labels), batch_size=16, shuffle=shuffle)


@pytest.fixture
def loaders():
    inside = {"train": loader(60, 0), "val": loader(30, 1), "test": loader(30, 2)}
    outside = {"val": loader(30, 3, 2.0, label=-1), "near": {"x": loader(30, 4, 2.0, label=-1)}}
    return inside, outside


@pytest.fixture
def make(monkeypatch):
    cls = openood_standin.install(monkeypatch)

    def make(aps=True, sweep=SWEEP, **args):
        args = {"layers": LAYERS, "n_samples": 40, **args}
        root = {"name": "nac", "APS_mode": aps, "postprocessor_args": args}
        if sweep:
            root["postprocessor_sweep"] = sweep
        return cls({"postprocessor": root, "dataset": {"name": "cifar10"}})

    return make


def test_setup_fits_and_inference_scores(make, small_net, loaders):
    postprocessor = make(aps=False)
    StandInEvaluator(small_net, postprocessor, *loaders)
    prediction, confidence, label = postprocessor.inference(small_net, loaders[0]["test"])
    assert prediction.shape == confidence.shape == label.shape == (30,)
    assert label.tolist() == [i % 4 for i in range(30)]
    assert not postprocessor.hyperparam_search_done
    batch = next(iter(loaders[0]["test"]))["data"]
    predicted, confident = postprocessor.postprocess(small_net, batch)
    assert torch.equal(predicted, torch.from_numpy(prediction[:16]))
    assert torch.equal(confident, torch.from_numpy(confidence[:16]))


def test_the_sweep_runs_without_the_network(make, small_net, loaders, monkeypatch):
    postprocessor = make(search_in="openood")
    postprocessor.setup(small_net, *loaders)
    passes = []
    small_net.register_forward_pre_hook(lambda *_: passes.append(1))
    evaluator = StandInEvaluator.__new__(StandInEvaluator)
    evaluator.net, evaluator.postprocessor = small_net, postprocessor
    evaluator.id_loaders, evaluator.ood_loaders = loaders
    evaluator.search()
    assert not passes
    # and what the sweep saw is what the chosen settings give with the network
    cached = postprocessor.inference(small_net, loaders[0]["val"])
    postprocessor.inference(small_net, loaders[0]["test"])
    assert postprocessor._cache is None
    assert passes
    with_network = postprocessor.inference(small_net, loaders[0]["val"])
    assert all((a == b).all() for a, b in zip(cached, with_network))


def test_pickles_are_small_and_give_the_same_scores(make, small_net, loaders):
    for search_in in ("setup", "openood"):
        postprocessor = make(search_in=search_in)
        StandInEvaluator(small_net, postprocessor, *loaders)
        expected = postprocessor.inference(small_net, loaders[0]["test"])
        content = pickle.dumps(postprocessor)
        assert len(content) < 50_000
        again = pickle.loads(content)
        StandInEvaluator(small_net, again, *loaders)
        assert again.layers == postprocessor.layers
        found = again.inference(small_net, loaders[0]["test"])
        assert all((a == b).all() for a, b in zip(expected, found))


def test_early_pickles_hold_the_rule_itself(make, small_net, loaders):
    postprocessor = make()
    StandInEvaluator(small_net, postprocessor, *loaders)
    expected = postprocessor.inference(small_net, loaders[0]["test"])
    again = object.__new__(type(postprocessor))
    again.__setstate__({**postprocessor.__getstate__(), "_rule": postprocessor._rule})
    found = again.inference(small_net, loaders[0]["test"])
    assert all((a == b).all() for a, b in zip(expected, found))


def test_a_stale_pickle_is_reported_and_not_used(make, small_net, loaders, tmp_path):
    import yaml

    postprocessor = make()
    path = tmp_path / "nac.yml"
    path.write_text(yaml.safe_dump(postprocessor.config))
    postprocessor.config_file = str(path)
    postprocessor.setup(small_net, *loaders)
    pickle.loads(pickle.dumps(postprocessor)).setup(small_net, *loaders)  # as it was: no word
    changed = {"avgpool": {"n_bins": 20, "full_count": 7}}
    root = {"postprocessor_args": {"layers": changed, "n_samples": 40}}
    path.write_text(yaml.safe_dump({"postprocessor": root}))
    again = pickle.loads(pickle.dumps(postprocessor))
    with pytest.warns(UserWarning, match="its settings differ from the config: it is fitted again"):
        again.setup(small_net, *loaders)
    assert again.layers == {"avgpool": LayerConfig(n_bins=20, full_count=7)}


def test_a_pickle_of_another_network_is_reported_and_not_used(make, small_net, loaders):
    postprocessor = make(aps=False)
    postprocessor.setup(small_net, *loaders)
    with torch.no_grad():
        small_net.fc.weight.mul_(2)
    again = pickle.loads(pickle.dumps(postprocessor))
    with pytest.warns(UserWarning, match="other weights.*fitted again"):
        again.setup(small_net, *loaders)


def test_augmented_training_data_are_read_under_the_test_transform(make, small_net, loaders):
    inside, outside = loaders
    plain = inside["train"].dataset
    expected = make(aps=False)
    expected.setup(small_net, inside, outside)
    augmented = Listed(plain.images, plain.labels, openood_standin.BasePreprocessor())
    inside = {**inside, "train": DataLoader(augmented, batch_size=16, shuffle=True)}
    postprocessor = make(aps=False)
    postprocessor.setup(small_net, inside, outside)  # NaN in `data` would have been refused
    for name, histogram in expected._rule.histograms.items():
        assert torch.equal(histogram.counts, postprocessor._rule.histograms[name].counts)


def test_errors_say_what_to_do(make, small_net, loaders):
    postprocessor = make()
    with pytest.raises(NotFittedError, match="call setup first"):
        postprocessor.inference(small_net, loaders[0]["test"])
    with pytest.raises(NotFittedError, match="call setup first"):
        postprocessor.set_hyperparam([2, 20, 1, 2, 10])
    with pytest.raises(NACError, match="NAC needs an ID 'val' loader.*APS_mode: False"):
        postprocessor.setup(small_net, {"train": loaders[0]["train"]}, loaders[1])
    unknown = {"postprocessor": {"name": "nac"}, "dataset": {"name": "aircraft"}}
    with pytest.raises(NACError, match="no preset 'aircraft' for rule 'nac'"):
        type(postprocessor)(unknown).setup(small_net, *loaders)
    with pytest.raises(NACError, match="unknown key"):
        make(bins=3)


@pytest.mark.parametrize("search_in", ["setup", "openood"])
def test_broken_validation_images_are_named(make, small_net, loaders, search_in):
    loaders[1]["val"].dataset.images[3] = float("nan")
    with pytest.raises(NACError, match="1 of 30 .*validation samples have NaN"):
        make(search_in=search_in).setup(small_net, *loaders)


def test_without_ood_validation_data_surrogates_are_used_and_said(make, small_net, loaders):
    inside, outside = loaders
    postprocessor = make()
    with pytest.warns(UserWarning, match="searched against surrogate OOD, not real OOD"):
        postprocessor.setup(small_net, inside, {"near": outside["near"]})
    assert postprocessor.search_result.surrogate
    assert postprocessor.hyperparam_search_done
