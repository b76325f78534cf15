"""Detectors to export, and exported programs as their users run them, without this package."""

import onnxruntime
import torch
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import NACDetector

FORMATS = (".pt2", ".onnx")


def data(n, seed, size):
    draw = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(torch.randn(n, *size, generator=draw), torch.arange(n) % 4), 32)


def fitted(net, size=(3, 32, 32), **options):
    options = {"layers": "auto", "rule": "nac_plus", **options}
    detector = NACDetector(net.eval(), **options).fit(data(128, 0, size))
    return detector.calibrate(data(112, 1, size))


def opened(path):
    """An exported program: from a batch to its outputs by name."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(x):
        found = session.run(None, {"image": x.numpy()})
        return {name: torch.from_numpy(array) for name, array in zip(names, found)}

    return run


def check_equal(found, detector, x, most_apart):
    """Equal to 1e-5, except for `most_apart` samples at most.

    Another runtime rounds a float32 network differently, which moves a few samples across an edge
    of a bin, or from one step of a p-value to the next.
    """
    expected = detector.judge(x)
    broken = expected.score.isnan()
    assert torch.equal(found["score"].isnan(), broken)
    assert torch.equal(found["p_value"].isnan(), broken) and found["decision"][broken].all()
    with torch.no_grad():
        assert torch.allclose(found["logits"], detector.net(x), atol=1e-5, equal_nan=True)
    apart = torch.zeros(len(x), dtype=torch.bool)
    for name in ("score", "p_value"):
        wanted = getattr(expected, name)
        apart |= (found[name] - wanted).abs() > 1e-5 * wanted.abs().clamp(min=1)
    assert apart.sum() <= most_apart
    same = found["decision"] == expected.out()
    assert same[~apart].all()
