"""NAC inside the real OpenOOD; see test_contract.py for what is tested without it."""

import pickle

import numpy as np
import pytest
import torch
import yaml
from openood_tiny import REAL_OPENOOD, evaluator, make_net, need_openood, write_benchmark

import nac_openood
from nac_openood.core.metrics import auroc as auroc_of
from nac_openood.detector.config import CONFIG_ROOT
from nac_openood.plugin import compat

pytestmark = REAL_OPENOOD


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    need_openood()
    return write_benchmark(tmp_path_factory.mktemp("plugin") / "data")


@pytest.fixture
def registered():
    need_openood()
    assert nac_openood.register(compat=True)
    yield
    nac_openood.unregister()
    assert not compat.applied


@pytest.fixture
def net(registered, data_root):
    return make_net(data_root)


#: A nac.yml of the user's own: few samples, a small sweep.
OWN = """
postprocessor:
  name: nac
  APS_mode: True
  postprocessor_args:
    n_samples: 100
    search_in: {search_in}
    layers:
      avgpool: {{n_bins: 50, full_count: 5, steepness: 10}}
      layer2: {{n_bins: 20, full_count: 5, steepness: 0.01}}
  postprocessor_sweep:
    avgpool: {{full_count: [5, 10], steepness: [1, 10, 100]}}
    layer2: {{n_bins: [20, 50], steepness: [0.001, 0.1]}}
"""


def write_config(folder, text):
    """A folder of configs, with this nac.yml."""
    (folder / "postprocessors").mkdir(parents=True)
    (folder / "postprocessors" / "nac.yml").write_text(text)
    return folder


def test_a_plain_name_finds_settings_and_searches_them(net, data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = evaluator(net, data_root)
    assert not list(tmp_path.iterdir()), "no file and no download in the caller's folders"
    assert found.postprocessor.hyperparam_search_done
    assert found.postprocessor.search_result.evaluated == 256
    assert list(found.postprocessor.layers) == ["avgpool", "layer3", "layer2", "layer1"]
    metrics = found.eval_ood(progress=False)
    assert metrics.loc["farood", "AUROC"] > 50
    assert metrics.loc["farood", "ACC"] == 100.0


def test_nac_plus_by_name_is_the_detector_calibrated_on_validation_data(net, data_root):
    found = evaluator(net, data_root, postprocessor_name="nac_plus")
    ours, loaders = found.postprocessor, found.dataloader_dict
    assert not ours.APS_mode and not ours.hyperparam_search_done and ours.setup_flag
    detector = nac_openood.NACDetector(net, "auto", rule="nac_plus")
    detector.fit(loaders["id"]["train"], 1000).calibrate(loaders["id"]["val"])
    again = pickle.loads(pickle.dumps(ours))
    again.setup(net, loaders["id"], loaders["ood"])  # nothing to do
    for loader in (loaders["id"]["test"], loaders["ood"]["far"]["mnist"]):
        expected = detector.score_loader(loader, progress=False)
        for each in (ours, again):
            prediction, score, _ = each.inference(net, loader, progress=False)
            assert score.tolist() == expected.score.tolist()
            assert prediction.tolist() == expected.prediction.tolist()
            calibrated = each.detector(net).calibrate(loaders["id"]["val"])
            p_value = calibrated.pvalues_(torch.from_numpy(score))
            assert p_value.tolist() == detector.pvalues_(torch.from_numpy(score)).tolist()
    assert found.eval_ood(progress=False).loc["farood", "AUROC"] > 50


@pytest.mark.parametrize("shuffle", [False, True])
def test_openoods_own_sweep_and_ours_choose_equal_settings(net, data_root, tmp_path, shuffle):
    from openood.evaluators.metrics import compute_all_metrics

    chosen = {}
    for search_in in ("setup", "openood"):
        config = write_config(tmp_path / search_in, OWN.format(search_in=search_in))
        found = evaluator(net, data_root, config, shuffle=shuffle)
        assert found.postprocessor.hyperparam_search_done
        inside, outside = (
            found.postprocessor.inference(net, found.dataloader_dict[kind]["val"], progress=False)
            for kind in ("id", "ood")
        )
        parts = [np.concatenate(pair) for pair in zip(inside, outside)]
        parts[2][len(inside[0]) :] = -1
        prediction, confidence, label = parts
        auroc = compute_all_metrics(confidence, label, prediction)[1]
        chosen[search_in] = found.postprocessor.get_hyperparam(), auroc
    assert chosen["setup"] == chosen["openood"]


def test_registration_is_idempotent_and_undone(registered, monkeypatch):
    import openood.evaluation_api.evaluator as evaluator_module
    import openood.evaluation_api.postprocessor as api
    import openood.postprocessors as postprocessors

    inside = (evaluator_module.get_postprocessor, postprocessors.get_postprocessor)
    assert not nac_openood.register(compat=True)
    assert issubclass(nac_openood.NACPostprocessor, postprocessors.BasePostprocessor)
    assert api.postprocessors["nac"] is nac_openood.NACPostprocessor
    assert api.get_postprocessor is inside[0]
    for _ in range(2):
        nac_openood.unregister()
        assert "nac" not in api.postprocessors
        assert evaluator_module.get_postprocessor is api.get_postprocessor is not inside[0]
        assert postprocessors.get_postprocessor is not inside[1]
    own = object()  # an entry of OpenOOD's own is never overwritten
    monkeypatch.setitem(api.postprocessors, "nac", own)
    with pytest.warns(UserWarning, match="OpenOOD has a postprocessor 'nac' of its own"):
        nac_openood.register(compat=True)
    assert api.postprocessors["nac"] is own
    nac_openood.unregister()
    assert api.postprocessors["nac"] is own


SLIPS = {
    "postprocessor: {name: nac, postprocessor_args: {n_samples: 50}}": "the config has no layers",
    "postprocessor: {name: nac_plus}": "expected 'name: nac' under 'postprocessor:'",
    "postprocessor:": "expected 'name: nac' under 'postprocessor:'",
    "postprocessor: {name: !!python/name:os.system }": "not valid YAML",
    "": "expected a YAML mapping",
}


@pytest.mark.parametrize("text", SLIPS)
def test_slips_in_a_config_are_noticed_before_openood_reads_it(registered, tmp_path, text):
    from openood.evaluation_api.postprocessor import get_postprocessor

    with pytest.raises(nac_openood.NACError, match=SLIPS[text]):
        get_postprocessor(str(write_config(tmp_path, text)), "nac", "cifar10")


def test_the_shipped_config_works_as_ones_own(net, data_root, tmp_path):
    own = write_config(tmp_path, (CONFIG_ROOT / "postprocessors" / "nac.yml").read_text())
    found, shipped = (evaluator(net, data_root, root) for root in (own, "nowhere"))
    assert found.postprocessor.layers == shipped.postprocessor.layers != {}


@pytest.mark.parametrize("kind", ["ConfBranchNet", "RotNet", "GodinNet"])
def test_the_papers_plug_in_networks(net, data_root, kind):
    import openood.networks.utils as networks

    torch.manual_seed(0)
    backbone = networks.ResNet18_32x32(num_blocks=[1] * 4, num_classes=10)
    sizes = (512, 10) if kind == "GodinNet" else (10,)
    found = evaluator(getattr(networks, kind)(backbone, *sizes).eval(), data_root)
    assert list(found.postprocessor.layers) == ["avgpool", "layer3", "layer2", "layer1"]
    _, confidence, _ = found.postprocessor.inference(
        found.net, found.dataloader_dict["id"]["test"], progress=False
    )
    assert np.isfinite(confidence).all()


@pytest.mark.bench
def test_the_authors_scores_in_the_real_evaluator(registered, bench, authors, tmp_path):
    from openood.networks.resnet18_32x32 import ResNet18_32x32

    folder, root = bench
    net = ResNet18_32x32(num_classes=10)
    checkpoint = folder / "checkpoints" / "cifar10_resnet18_32x32_base" / "s0" / "best.ckpt"
    net.load_state_dict(torch.load(checkpoint, map_location="cpu"))
    shipped = nac_openood.detector.config.preset("cifar10", "resnet").to_dict()
    shipped["postprocessor"]["APS_mode"] = False
    config = write_config(tmp_path, yaml.safe_dump(shipped))
    found = evaluator(net.eval(), root, config, batch_size=100)
    table = found.eval_ood(progress=False)
    inside = np.array(authors["scores"]["cifar10"])
    assert np.abs(found.scores["id"]["test"][1] - inside).max() <= 2e-3
    if "accuracy" in authors:
        assert table.loc["nearood", "ACC"] == pytest.approx(authors["accuracy"], abs=0.001)
    ours = {**found.scores["ood"]["near"], **found.scores["ood"]["far"]}
    assert {"cifar10", *ours} == set(authors["scores"])
    close = 0.02 if "metrics" in authors else 0.05  # fewer images, as in test_bench.py
    for name, (_, scores, _) in ours.items():
        outside = np.array(authors["scores"][name])
        assert np.abs(scores - outside).max() <= 2e-3, name
        auroc = 100 * float(auroc_of(inside, outside))  # of the authors' scores
        assert table.loc[name, "AUROC"] == pytest.approx(auroc, abs=close), name
