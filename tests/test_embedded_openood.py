"""The embedded benchmark inside the real OpenOOD."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from openood_tiny import need_openood, write_configs

import nac_openood
from nac_openood.demo.embedded import embedded_sets
from nac_openood.demo.embedded_files import write_openood
from nac_openood.demo.trained import trained
from nac_openood.errors import FileError, NACError

pytestmark = [
    pytest.mark.openood,
    *(
        pytest.mark.filterwarnings(f"ignore::{category}")  # of OpenOOD and its dependencies
        for category in ("DeprecationWarning", "FutureWarning", "SyntaxWarning", "UserWarning")
    ),
]


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
def registered(data_root):
    nac_openood.register(compat=True)
    from nac_openood.demo.openood import register_embedded, unregister_embedded

    register_embedded(data_root)
    yield
    unregister_embedded()
    nac_openood.unregister()


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


def test_registration_is_undone_and_never_overwrites(data_root, tmp_path):
    nac_openood.register(compat=True)
    try:
        from openood.evaluation_api import datasets, preprocessor

        from nac_openood.demo.openood import register_embedded, unregister_embedded

        tables = (datasets.DATA_INFO, datasets.benchmarks_dict)
        with pytest.raises(FileError, match="Write it first"):
            register_embedded(tmp_path)
        assert register_embedded(data_root) == register_embedded(data_root) == data_root
        assert all("embedded" in table for table in tables)
        unregister_embedded()
        preprocessor.default_preprocessing_dict["embedded"] = "own"
        with pytest.raises(NACError, match="already has a benchmark 'embedded'"):
            register_embedded(data_root)
        assert preprocessor.default_preprocessing_dict.pop("embedded") == "own"
        assert not any("embedded" in table for table in tables)
    finally:
        nac_openood.unregister()
