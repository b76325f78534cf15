"""Ray Data gives what one process gives."""

import gc
import io
import math
import os
import shutil
import sys
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import same_fit
from PIL import Image
from test_docs import run_page
from torch import nn

from nac_openood import NACDetector, NACError
from nac_openood.sources.fitted import Pipeline, judge_images

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from nac_openood.ray_data import _Fit, _from_bytes, _Score, score_dataset  # noqa: E402

# what Ray does is not ours; its workers have one thread, and rounding may depend on their number
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

N, BATCH = 60, 10
RULES = {"nac": ["pool"], "nac_plus": ["conv"]}


# -- what every actor makes ----------------------------------------------------------------


def network():
    torch.manual_seed(0)
    net = OrderedDict(conv=nn.Conv2d(3, 6, 3), act=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(OrderedDict(**net, flat=nn.Flatten(), head=nn.Linear(6, 4))).eval()


def transform(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def unfitted(rule="nac"):
    return Pipeline(NACDetector(network(), RULES[rule], rule=rule), transform)


def fitted(path):
    return Pipeline(NACDetector.load(path, network()), transform)


# -- data ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty images, and a detector that was fitted on them."""
    root, draw = tmp_path_factory.mktemp("ray"), np.random.RandomState(0)
    (root / "images").mkdir()
    for number in range(N):
        pixels = draw.randint(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number:02d}.png")
    detector = local_fit(root, "nac")
    detector.calibrate(batches(root)).save(root / "detector")
    return root


def paths(folder):
    return sorted(str(path) for path in folder.iterdir())


def batches(root):
    x = torch.stack([transform(Image.open(path)) for path in paths(root / "images")])
    return list(zip(x.split(BATCH), (torch.arange(N) % 4).split(BATCH)))


def local_fit(root, rule):
    return unfitted(rule).detector.fit(batches(root))


def table(root):
    """The images in a table, with labels."""
    content = [Path(path).read_bytes() for path in paths(root / "images")]
    labels = [number % 4 for number in range(N)]
    return pa.table({"path": paths(root / "images"), "image": content, "label": labels})


# -- Ray ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    # the monitor: other jobs may fill the memory
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_memory_monitor_refresh_ms="0")
    ray.init(
        num_cpus=4, object_store_memory=160_000_000, include_dashboard=False, log_to_driver=False
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests
    yield
    ray.shutdown()
    gc.collect()  # what Ray leaves is not for other tests to find


def test_the_page(cluster, folder, tmp_path):
    (tmp_path / "train").mkdir()
    for start in range(0, N, BATCH):
        part = table(folder)[start : start + BATCH]
        pq.write_table(part, tmp_path / "train" / f"{start}.parquet")
    shutil.copytree(folder / "images", tmp_path / "new")
    arguments = {"shared": tmp_path, "network": network, "transform": transform}
    names = run_page("scale.md", "Ray Data", **arguments, val_loader=batches(folder))
    here = NACDetector(network(), "auto", rule="nac_plus").fit(batches(folder))
    assert same_fit(names["det"], here.calibrate(batches(folder)))
    scores = pq.read_table(tmp_path / "scores").to_pylist()
    found = judge_images(Pipeline(here, transform), paths(tmp_path / "new"), batch_size=BATCH)
    assert sorted(scores, key=lambda row: row["path"]) == [judged.fields() for judged in found]
    assert list(scores[0]) == ["path", "class", "confidence", "score", "p_value", "decision"]


# -- the actors, without a cluster ---------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_counts_of_blocks_add_up(folder, rule):
    actor = _Fit(partial(unfitted, rule), "image", BATCH, "label")
    blocks = [
        {name: np.array(column, dtype=object if name == "image" else None)
         for name, column in table(folder)[start : start + 20].to_pydict().items()}
        for start in range(0, N, 20)
    ]  # fmt: skip
    shards = []
    for block in blocks:
        shards.append(_from_bytes(actor(block)["detector"][0], unfitted(rule).detector))
    merged = shards[2].merge(shards[0]).merge(shards[1])
    fitted_here = local_fit(folder, rule)
    calibration = batches(folder)
    assert same_fit(merged.calibrate(calibration), fitted_here.calibrate(calibration))
    assert actor({name: column[:0] for name, column in blocks[0].items()})["detector"] == []


def test_what_cannot_be_read(folder):
    content = io.BytesIO()
    Image.new("RGB", (9, 9)).save(content, "PNG")
    arguments = [b"no image", content.getvalue()]
    block = {"path": np.array(["x", "y"]), "image": np.array(arguments, dtype=object)}
    options = partial(fitted, folder / "detector"), "image", BATCH, "path", 0.05
    bad, good = _Score(*options, True)(block).to_pylist()
    assert bad == {**dict.fromkeys(good), "path": "x"}
    assert good["path"] == "y" and math.isfinite(good["score"])
    with pytest.raises(NACError, match=r"cannot read x \(not an image\).*unreadable='null'"):
        _Score(*options, False)(block)


def test_bad_arguments_are_refused_before_anything_runs():
    with pytest.raises(NACError, match="`unreadable` must be 'raise' or 'null', got 'skip'"):
        score_dataset(None, unfitted, unreadable="skip")
    with pytest.raises(NACError, match="`alpha` must lie between 0 and 1"):
        score_dataset(None, unfitted, alpha=5)
