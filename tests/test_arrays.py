"""NAC+ of stored arrays scores as on the network itself; files that cannot be read are refused."""

import numpy as np
import pytest
import torch

from nac_openood import ArrayDetector, FileError, NACDetector, NACError, read_arrays

LAYERS = ["block.act", "second"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = torch.nn.Sequential()
        self.block.add_module("conv", torch.nn.Conv2d(3, 6, 3))
        self.block.add_module("act", torch.nn.ReLU())
        self.second = torch.nn.Conv2d(6, 8, 3)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x, arrays=None):
        maps = self.block(x)
        second = self.second(maps)
        logits = self.head(second.relu().mean((2, 3)))
        if arrays is not None:
            arrays.update({"block.act": maps, "second": second, "logits": logits})
        return logits


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def images(n, seed):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def stored(net, x):
    arrays = {}
    with torch.no_grad():
        net(x, arrays)
    return {name: array.numpy() for name, array in arrays.items()}


def test_the_input_of_the_head_is_set_against_the_logits(net):
    train, val, new = (stored(net, images(n, seed)) for n, seed in ((400, 0), (100, 1), (20, 2)))
    arrays = ArrayDetector(LAYERS, head_input="second").fit(train).calibrate(val)
    assert arrays.detector_.rule_.settings()["version"] == 4
    assert np.isfinite(arrays.score(new)).all()
    assert repr(arrays).startswith("ArrayDetector: NAC+ on stored arrays\n")
    with pytest.raises(NACError, match="head_input must be one of"):
        ArrayDetector(LAYERS, head_input="third")
    with pytest.raises(NACError, match="needs gradients, which arrays do not have: use 'nac_plus'"):
        ArrayDetector(LAYERS, rule="nac")
    with pytest.raises(NACError, match=r"got <U1 of shape \[400\] in 'label'"):
        ArrayDetector(LAYERS).fit(train, ["a"] * 400)
    new["second"][3] = np.nan
    with pytest.raises(NACError, match=r"1 of 20 .* `score\(..., nonfinite='nan'\)`"):
        arrays.score(new)
    with pytest.warns(RuntimeWarning, match="1 of 20 samples"):
        assert np.isnan(arrays.score(new, nonfinite="nan")).sum() == 1


def test_scores_are_those_of_the_network(net, tmp_path):
    train, val, new = images(1500, 0), images(200, 1), 2 * images(30, 2)
    labels = torch.arange(1500) % 4
    det = NACDetector(net, LAYERS).fit([(train, labels)]).calibrate([val])
    arrays = ArrayDetector(LAYERS).fit(stored(net, train), labels.numpy())
    arrays.calibrate(stored(net, val))
    inputs = stored(net, new)
    assert arrays.p_value(inputs) == pytest.approx(det.p_value(new).numpy())
    assert arrays.score(inputs) == pytest.approx(det.score(new).numpy(), abs=1e-6)
    assert np.array_equal(arrays.predict(inputs), det.predict(new).numpy())
    assert arrays.detector_.fit_summary_.class_counts == det.fit_summary_.class_counts
    assert arrays.detector_.fit_summary_.n_samples == 1500
    arrays.save(tmp_path / "arrays.nac")
    again = ArrayDetector.load(tmp_path / "arrays.nac", LAYERS)
    assert np.array_equal(again.score(inputs), arrays.score(inputs))


def test_a_parquet_file_is_read_as_an_npz_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    arrays = {"features": np.random.rand(5, 3), "logits": np.random.rand(5, 2), "y": np.arange(5)}
    np.savez(tmp_path / "x.npz", **arrays)
    table = pyarrow.table({name: array.tolist() for name, array in arrays.items()})
    parquet.write_table(table, tmp_path / "x.parquet")
    ragged = pyarrow.table({**table.to_pydict(), "boxes": [[1], [], None, [1, 2], [3]]})
    parquet.write_table(ragged, tmp_path / "ragged.parquet")  # this column may not be needed
    with pytest.raises(NACError, match=r"got object of shape \[5\] in 'boxes'"):
        ArrayDetector(["boxes"]).fit(read_arrays(tmp_path / "ragged.parquet"))
    for name in ("x.npz", "x.parquet"):
        found = read_arrays(tmp_path / name)
        assert found.keys() == arrays.keys()
        assert all(np.array_equal(found[each], arrays[each]) for each in arrays)


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 and no more")
    np.savez(tmp_path / "pickled.npz", features=np.array([{}], dtype=object))
    for name in ("damaged.npz", "pickled.npz", "missing.npz"):
        with pytest.raises(FileError, match=rf"{name} cannot be read"):
            read_arrays(tmp_path / name)
    pytest.importorskip("pyarrow")
    with pytest.raises(FileError, match=r"missing\.parquet cannot be read"):
        read_arrays(tmp_path / "missing.parquet")
    with pytest.raises(NACError, match="expected arrays by name, .*, got list"):
        ArrayDetector(LAYERS).fit([1])
    with pytest.raises(NACError, match="a layer cannot have the name 'forward'"):
        ArrayDetector(["forward"])
    with pytest.raises(NACError, match=r"\.npz or \.parquet, got .*features\.csv"):
        read_arrays(tmp_path / "features.csv")


NO_LOGITS = r"there are no arrays \['logits'\]: expected"
OBJECTS = "expected arrays of numbers .* got object of shape .* in 'second'"


@pytest.mark.parametrize(
    ("names", "change", "error"),
    [
        (["logits"], lambda array: None, NO_LOGITS),
        (["second"], lambda array: array[:7], "the same number of samples, got .*'second': 7"),
        (["second"], lambda array: array.astype(object), OBJECTS),
        (["second"], lambda array: np.float32(1), r"shape \[\] in 'second'"),
        (["second"], lambda array: array[:, :3], "'second' has 3 neurons here, and had"),
        (["logits"], lambda array: array[:, :2], "expected 4 logits, as in"),
        ([*LAYERS, "logits"], lambda array: array[:0], "no samples"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(net, names, change, error):
    arrays = stored(net, images(60, 0))
    det = ArrayDetector(LAYERS, head_input="second").fit(arrays)
    det.calibrate(stored(net, images(60, 1)))
    changed = {name: change(a) if name in names else a for name, a in arrays.items()}
    with pytest.raises(NACError, match=error):
        det.score({name: array for name, array in changed.items() if array is not None})
