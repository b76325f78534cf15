"""The same p-values, however a calibrated detector is used."""

import numpy as np
import onnxruntime
import pytest
import torch
from fastapi.testclient import TestClient
from service_toy import TRANSFORM, encoded, picture, toy_detector

from nac_openood import NACDetector, PyTorchOODNetwork
from nac_openood.detector.decisions import false_alarm_rates
from nac_openood.serving.app import service
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Limits
from nac_openood.sources.fitted import Pipeline, judge_images

SEEDS = range(900, 960)


@pytest.fixture(scope="module")
def images():
    return torch.stack([TRANSFORM(picture(seed)) for seed in SEEDS])


@pytest.fixture(scope="module")
def detector():
    held_out = torch.stack([TRANSFORM(picture(seed)) for seed in range(400, 900)])
    return toy_detector().calibrate([held_out])


def by_http(detector, *_):
    app = service(Judge(Pipeline(detector, TRANSFORM)), limits=Limits(max_images=len(SEEDS)))
    with TestClient(app, base_url="http://localhost") as client:
        files = [("image", encoded(picture(seed))) for seed in SEEDS]
        return [r["p_value"] for r in client.post("/score", files=files).json()["results"]]


def by_onnx(detector, images, folder):
    detector.export(folder / "x.onnx", images)
    session = onnxruntime.InferenceSession(folder / "x.onnx", providers=["CPUExecutionProvider"])
    return session.run(["p_value"], {"image": images.numpy()})[0]


def by_pt2(detector, images, folder):
    detector.export(folder / "x.pt2", images)
    return torch.export.load(folder / "x.pt2").module()(images)["p_value"]


def by_file(detector, images, folder):
    detector.save(folder / "x.nac")
    return NACDetector.load(folder / "x.nac", detector.net).p_value(images)


def by_command(detector, _, folder):
    paths = [folder / f"{seed}.png" for seed in SEEDS]
    for path, seed in zip(paths, SEEDS):
        path.write_bytes(encoded(picture(seed)))
    return [p.p_value for p in judge_images(Pipeline(detector, TRANSFORM), list(map(str, paths)))]


WAYS = {
    "HTTP": by_http,
    "ONNX Runtime": by_onnx,
    "torch.export": by_pt2,
    "a loaded file": by_file,
    "nac-openood score": by_command,
    "judge": lambda detector, x, _: detector.judge(x).p_value,
    "select": lambda detector, x, _: detector.select(x).p_value,
    "drift": lambda detector, x, _: detector.drift(x).p_values,
    "explain": lambda detector, x, _: [each.p_value for each in detector.explain(x)],
    "pytorch-ood": lambda detector, x, _: PyTorchOODNetwork(detector).detector.p_value(x),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_p_values(detector, images, tmp_path, way):
    expected, step = detector.p_value(images).numpy(), 1 / (1 + len(detector.pvalues_.scores))
    assert len(np.unique(expected)) > 20
    found = np.asarray(WAYS[way](detector, images, tmp_path))
    # another runtime or batch rounds scores differently, which may move a sample by one rank
    assert (found == expected).mean() >= 0.95 and np.abs(found - expected).max() < 1.1 * step


def test_false_alarms_are_those_of_the_p_values(detector, images):
    p = detector.p_value(images).numpy()
    found = detector.false_alarms([images], [0.1, 0.5])
    assert [each.rate for each in found] == [each.rate for each in false_alarm_rates(p, [0.1, 0.5])]
    assert found[1].rate > 0
