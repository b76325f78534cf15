"""The embedded benchmark inside the real OpenOOD."""

import numpy as np
import pytest
import torch
from openood_tiny import REAL_OPENOOD, need_openood, write_configs

import nac_openood
from nac_openood.demo.embedded import embedded_sets, write_openood
from nac_openood.demo.trained import trained
from nac_openood.sources.sets import benchmark_named

pytestmark = REAL_OPENOOD


@pytest.fixture(scope="module")
def sets():
    need_openood()
    return embedded_sets()


@pytest.fixture(scope="module")
def data_root(sets, tmp_path_factory):
    return write_openood(tmp_path_factory.mktemp("embedded") / "data", sets)


@pytest.fixture(scope="module")
def net(sets, embedded_cache):
    return trained("resnet_embedded", cache=embedded_cache, progress=False)


@pytest.fixture
def registered(sets, monkeypatch):
    nac_openood.register(compat=True)
    enter_embedded(sets, monkeypatch)
    yield
    nac_openood.unregister()


def enter_embedded(sets, monkeypatch):
    """The rows of the embedded benchmark in OpenOOD's tables, which then needs no download."""
    from openood.evaluation_api import datasets, preprocessor
    from openood.postprocessors.info import num_classes_dict
    from openood.preprocessors.transform import normalization_dict

    row = benchmark_named("embedded")

    def place(part):
        path = f"benchmark_imglist/embedded/{part}.txt"
        return {"data_dir": f"{row.folder}/", "imglist_path": path}

    def group(names):
        return {"datasets": list(names), **{name: place(f"test_{name}") for name in names}}

    info = {
        "num_classes": row.n_classes,
        "id": {part: place(f"{part}_embedded") for part in ("train", "val", "test")},
        "csid": group(sets.shifted),
        "ood": {
            "val": place(f"val_{row.ood_val}"),
            "near": group(sets.near),
            "far": group(sets.far),
        },
    }
    colors = [list(row.settings.mean), list(row.settings.std)]
    sizes = {"pre_size": 32, "img_size": 32, "normalization": colors}
    monkeypatch.setitem(datasets.DATA_INFO, "embedded", info)
    monkeypatch.setitem(datasets.benchmarks_dict, "embedded", [])  # what would be downloaded
    monkeypatch.setitem(preprocessor.default_preprocessing_dict, "embedded", sizes)
    monkeypatch.setitem(num_classes_dict, "embedded", row.n_classes)
    monkeypatch.setitem(normalization_dict, "embedded", colors)


def evaluator(net, data_root, config_root, name):
    from openood.evaluation_api import Evaluator

    return Evaluator(
        net, "embedded", data_root=str(data_root), config_root=str(config_root),
        postprocessor_name=name, batch_size=100, num_workers=0,
    )  # fmt: skip


def test_it_sees_the_same_images(registered, net, sets, data_root, tmp_path):
    found = evaluator(net, data_root, write_configs(tmp_path), "msp").dataloader_dict
    assert list(found["ood"]["near"]) == list(sets.near)
    assert list(found["csid"]) == list(sets.shifted)
    pairs = [(found["id"]["test"], sets.test), (found["ood"]["val"], sets.ood_val)]
    pairs += [(found["ood"]["far"][name], images) for name, images in sets.far.items()]
    for loader, images in pairs:
        batches = list(loader)
        assert torch.equal(torch.cat([b["data"] for b in batches]), images.tensors)
        assert torch.cat([b["label"] for b in batches]).tolist() == images.labels.tolist()


@pytest.mark.parametrize("name", ["msp", "nac"])
def test_methods_run_on_it(registered, net, sets, data_root, tmp_path, name):
    found = evaluator(net, data_root, write_configs(tmp_path), name)
    metrics = found.eval_ood(progress=False)
    assert list(metrics.index) == [*sets.near, "nearood", *sets.far, "farood"]
    assert metrics.loc["farood", "AUROC"] > (90 if name == "msp" else 98)
    assert metrics.loc["nearood", "ACC"] >= 97
    if name == "nac":
        assert list(found.postprocessor.layers) == ["avgpool", "layer3", "layer2", "layer1"]
        assert found.postprocessor.search_result.evaluated == 256
        full = found.eval_ood(fsood=True, progress=False)
        assert np.isfinite(full["AUROC"].to_numpy()).all()
