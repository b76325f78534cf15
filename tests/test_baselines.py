"""OpenOOD's postprocessors through our comparison: its own evaluator's numbers, no trace left."""

import dataclasses
import functools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from compare_toy import study
from openood_tiny import (
    BASELINES,
    ON_NETWORKS,
    REAL_OPENOOD,
    evaluator,
    make_net,
    need_openood,
    write_benchmark,
    write_configs,
)
from test_probe import equal, snapshot
from torch import nn
from torchvision.models import VisionTransformer

from nac_openood.benchmark.methods import OWN, PYTORCH_OOD
from nac_openood.benchmark.methods.backends import scorers
from nac_openood.benchmark.methods.openood import NetworkView, OpenOODScorer
from nac_openood.benchmark.methods.scorer import MethodInputs
from nac_openood.benchmark.methods.table import LATER_METHODS, METHODS, OPENOOD
from nac_openood.benchmark.run.compare import run_study
from nac_openood.plugin.source import openood_code, openood_ready
from nac_openood.sources.checkpoints import Checkpoint
from nac_openood.sources.networks import CifarResNet18
from nac_openood.sources.sets import BENCHMARKS

pytestmark = REAL_OPENOOD
BATCH = 16
ROWS = {**METHODS, **LATER_METHODS}
NETWORK = ("odin", "mds_ensemble", "gram", "rankfeat")
THEIR_METRICS = ["FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    need_openood()
    return write_benchmark(tmp_path_factory.mktemp("baselines") / "data")


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    return write_configs(tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="module")
def net(data):
    with openood_ready():
        return make_net(data)


def asked_of(data, out, configs, methods, net, **more):
    make = {m: functools.partial(OpenOODScorer, ROWS[m], configs) for m in methods}
    whole = BENCHMARKS["cifar10"]  # what OpenOOD's evaluator runs on
    asked = study(data, out, make, network=lambda run: net, benchmark=whole, **more)
    return dataclasses.replace(asked, batch_size=BATCH)


def tables():
    """Where OpenOOD's postprocessors look a data set up."""
    from openood.postprocessors.info import num_classes_dict
    from openood.preprocessors.transform import normalization_dict

    return dict(num_classes_dict), dict(normalization_dict)


@pytest.fixture(scope="module")
def ours(data, configs, net, tmp_path_factory):
    """All methods in one comparison: near/far, then the same cells as full-spectrum detection."""
    out = tmp_path_factory.mktemp("ours")
    with openood_ready():
        known = tables()
    before = snapshot(net)
    found = [
        run_study(asked_of(data, out, configs, (*BASELINES, *ON_NETWORKS), net, full_spectrum=full))
        for full in (False, True)
    ]
    assert equal(before, snapshot(net))
    with openood_ready():
        assert tables() == known and known[0]["cifar10"] == 10
    return found


def seeded_evaluator(net, data, configs, method):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    return evaluator(net, data, configs, postprocessor_name=method, batch_size=BATCH)


def table(results, method):
    (row,) = results.methods()[method]
    assert row.status == "ok", row.error
    return {name: [line[metric] for metric in THEIR_METRICS] for name, line in row.metrics.items()}


def row_of(results, method):
    return results.methods()[method][0]


@pytest.mark.parametrize("method", (*BASELINES, *ON_NETWORKS))
def test_the_evaluators_numbers(method, ours, net, data, configs):
    with openood_ready():
        reference = seeded_evaluator(net, data, configs, method)
        frames = [reference.eval_ood(fsood=full, progress=False) for full in (False, True)]
        chosen = getattr(reference.postprocessor, "get_hyperparam", lambda: None)()
        searched = reference.postprocessor.APS_mode
        conf = reference.scores["ood"]["far"]["texture"][1]
    assert np.isfinite(conf).all() and len(np.unique(conf)) > 1
    # the scores themselves, not only their ranks
    found = ours[0].scores("s0", method, "texture").score
    np.testing.assert_array_equal(found, conf.reshape(-1).astype(np.float64))
    for results, frame in zip(ours, frames):
        mine = table(results, method)
        assert set(mine) == set(frame.index)
        for name, line in frame.iterrows():
            assert mine[name] == pytest.approx(line[THEIR_METRICS].tolist(), abs=1e-9), name
    used = list(row_of(ours[0], method).hyperparameters.values())
    if searched:
        assert used == (chosen if len(used) > 1 else [chosen])


@pytest.mark.parametrize("method", ON_NETWORKS)
def test_our_own_agree(method, ours, data, net, tmp_path):
    row = ROWS[method]._replace(backends=(OWN,))
    sweep = {"percentile": ((60, 65), (75, 85))} if "adascale" in method else {"noise": (0.0014,)}
    row = row._replace(sweep={**row.sweep, **sweep})
    make = scorers([row], PYTORCH_OOD)
    asked = asked_of(data, tmp_path, None, [method], net)
    found = run_study(dataclasses.replace(asked, make=lambda _, run: make(row, run)))
    first, second = (row_of(each, method).hyperparameters for each in (found, ours[0]))
    assert next(iter(first.values())) == next(iter(second.values()))
    for name in ("test", "tin", "texture"):
        first, second = (each.scores("s0", method, name).score for each in (found, ours[0]))
        np.testing.assert_allclose(first, second, rtol=1e-4)


def test_nothing_is_printed(data, configs, net, tmp_path, capfd):
    run_study(asked_of(data, tmp_path, configs, ("knn", "gram", "vim"), net))
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def write_config(folder, method, search, arguments, sweep):
    config = {"name": method, "APS_mode": search, "postprocessor_args": arguments}
    config["postprocessor_sweep"] = sweep
    (folder / "postprocessors").mkdir(parents=True, exist_ok=True)
    path = folder / "postprocessors" / f"{method}.yml"
    path.write_text(yaml.safe_dump({"postprocessor": config}))
    return folder


def test_the_settings_are_used_where_nothing_is_searched(data, net, tmp_path):
    """The sweep of a method that is not searched says nothing, however short it is."""
    for search in (False, True):
        sweep = {"percentile_list": [85]}
        folder = write_config(tmp_path / "configs", "react", search, {"percentile": 90}, sweep)
        with openood_ready():
            reference = seeded_evaluator(net, data, folder, "react").postprocessor.percentile
        asked = asked_of(data, tmp_path / str(search), folder, ("react",), net)
        assert row_of(run_study(asked), "react").hyperparameters == {"percentile_list": reference}
    asked = dataclasses.replace(asked, search=False, out=tmp_path / "no_search")
    assert row_of(run_study(asked), "react").hyperparameters == {"percentile_list": 90}


def test_what_cannot_be_used_with_the_data_is_left_out_or_refused(data, net, tmp_path):
    folder = write_config(tmp_path, "knn", True, {"K": 500}, {"K_list": [3, 500, 100]})
    asked = asked_of(data, tmp_path / "search", folder, ("knn",), net)
    search = row_of(run_study(asked), "knn").search
    assert search["points"] == 2 and search["left_out"] == 1
    asked = dataclasses.replace(asked, out=tmp_path / "no_search", search=False)
    knn = row_of(run_study(asked), "knn")
    assert knn.status == "failed" and "K=500 exceeds the 100 training samples" in knn.error


def test_our_resnet_gives_what_openoods_does(data, configs, net, ours, tmp_path):
    """The same weights in our class, which `NetworkView` gives the methods OpenOOD calls."""
    mine = CifarResNet18()
    for name in ("layer1", "layer2", "layer3", "layer4"):  # half the depth, as `make_net`
        setattr(mine, name, getattr(mine, name)[:1])
    mine.load_state_dict(net.state_dict())
    methods = (*NETWORK, "react", "vim")
    found = run_study(asked_of(data, tmp_path, configs, methods, mine.eval()))
    for method in methods:
        assert table(found, method) == table(ours[0], method)
        for name in ("test", "tin", "texture"):
            first, second = (each.scores("s0", method, name).score for each in (found, ours[0]))
            np.testing.assert_array_equal(first, second)


def test_a_stage_is_read_before_somebody_rewrites_it(small_net):
    """The next stage's in-place ReLU must not reach what is handed out."""
    x = torch.randn(2, 3, 9, 9)
    stage = small_net.layer3(small_net.layer2(small_net.layer1(x))).clone()
    assert (stage < 0).any()
    view = NetworkView(small_net, x)
    assert torch.equal(view.intermediate_forward(x, 3), stage)
    assert torch.equal(view(x, return_feature_list=True)[1][3], stage)


def test_a_vit_has_features_and_no_maps(data, configs, tmp_path):
    torch.manual_seed(0)
    vit = VisionTransformer(32, 16, 2, 2, 24, 48, num_classes=10).eval()
    methods = ("msp", "knn", "vim", "odin", "rankfeat", "mds_ensemble")
    results = run_study(asked_of(data, tmp_path, configs, methods, vit))
    assert [r.status for r in results.rows] == ["ok"] * 4 + ["absent"] * 2
    for row in results.rows[4:]:
        assert "VisionTransformer has no such stage" in row.error
        assert "Leave it out of `methods`" in row.error


# ---- no trace


def batches(n=20, classes=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 32, 32, generator=generator)
    label = torch.arange(n) % classes
    return [{"data": x, "label": y} for x, y in zip(images.split(10), label.split(10))]


@pytest.mark.parametrize("method", NETWORK)
def test_no_trace_where_a_method_raises(method, configs, net):
    broken = [*batches(), {"data": torch.zeros(2, 5, 32, 32), "label": torch.zeros(2).long()}]
    net.fc.weight.grad = torch.ones_like(net.fc.weight)
    net.layer2.train()  # half of it in training mode, as fine-tuned nets may be
    with openood_ready():
        known = tables()
    before = snapshot(net)
    try:
        sets = (batches(), batches(), batches())
        inputs = MethodInputs(net, "unheard_of", 10, *sets, std=(1.0, 1.0, 1.0), progress=False)
        scorer = OpenOODScorer(METHODS[method], configs)
        if method in ("mds_ensemble", "gram"):  # the others look at nothing beforehand
            with pytest.raises((RuntimeError, ValueError)):
                scorer.setup(dataclasses.replace(inputs, train=broken))
            assert equal(before, snapshot(net))
        scorer.setup(inputs)
        assert equal(before, snapshot(net))
        with pytest.raises((RuntimeError, ValueError)):
            scorer.score(broken)
        assert equal(before, snapshot(net))
    finally:
        net.eval()
        net.fc.weight.grad = None
    with openood_ready():
        assert tables() == known


# ---- OpenGAN


@pytest.fixture
def discriminator(tmp_path):
    need_openood()
    with openood_ready():
        from openood.networks.opengan import Discriminator

        torch.manual_seed(3)
        net = Discriminator(512)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
    folder = tmp_path / "s0"
    folder.mkdir()
    torch.save(net.state_dict(), folder / "best_DNet.ckpt")
    return net.eval(), folder


def opengan_study(data, out, net, path):
    make = scorers([METHODS["opengan"]], OPENOOD)
    asked = study(data, out, {"opengan": None}, network=lambda run: net)
    return dataclasses.replace(
        asked, batch_size=BATCH, make=make, runs=(Checkpoint("s0", str(path)),)
    )


def test_opengans_discriminator_lies_beside_the_checkpoint(data, net, discriminator, tmp_path):
    reference, folder = discriminator
    results = run_study(opengan_study(data, tmp_path / "out", net, folder / "best.ckpt"))
    assert results.rows[0].status == "ok", results.rows[0].error
    with openood_ready():
        from openood.evaluation_api.datasets import get_id_ood_dataloader
        from openood.evaluation_api.preprocessor import get_default_preprocessor
        from openood.postprocessors import OpenGanPostprocessor

        processor = OpenGanPostprocessor(None)
        loaders = get_id_ood_dataloader(
            "cifar10", str(data), get_default_preprocessor("cifar10"),
            batch_size=BATCH, shuffle=False, num_workers=0,
        )  # fmt: skip
        both = {"backbone": net, "netD": reference}
        test, tin = (
            processor.inference(both, loader, progress=False)
            for loader in (loaders["id"]["test"], loaders["ood"]["near"]["tin"])
        )
        inside, outside = results.scores("s0", "opengan", "test"), tin[1].astype(np.float64)
        np.testing.assert_array_equal(results.scores("s0", "opengan", "tin").score, outside)
        np.testing.assert_array_equal(inside.score, test[1].astype(np.float64))
        np.testing.assert_array_equal(inside.prediction, test[0])


def test_opengan_is_absent_without_one_and_fails_with_a_wrong_one(data, net, tmp_path):
    results = run_study(opengan_study(data, tmp_path / "out", net, tmp_path / "best.ckpt"))
    (row,) = results.rows
    assert row.status == "absent"
    assert "best_DNet.ckpt" in row.error and "pass it as `opengan`" in row.error
    torch.save({"weight": torch.zeros(2)}, tmp_path / "best_DNet.ckpt")
    results = run_study(opengan_study(data, tmp_path / "out", net, tmp_path / "best.ckpt"))
    assert results.rows[0].status == "failed" and "does not fit" in results.rows[0].error


def test_a_config_that_is_missing_is_not_downloaded(tmp_path):
    need_openood()
    with pytest.raises(ValueError, match="there is no .*msp.yml: set OPENOOD_SRC"):
        OpenOODScorer(METHODS["msp"], Path(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setup", "title"),
    [("version='1.5',", "OpenOOD 1.5"), ('setup(version="1.6.1")', "OpenOOD 1.6.1")],
)
def test_the_implementation_is_the_version_of_the_tree(tmp_path, setup, title):
    (tmp_path / "setup.py").write_text(setup)
    assert openood_code(tmp_path)[0] == title
