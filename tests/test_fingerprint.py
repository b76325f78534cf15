"""Which networks count as the same, and which as another one."""

import functools
import subprocess
import sys
import types

import pytest
import torch
from conftest import SmallNet
from torch import nn
from torch.nn import functional as F

from nac_openood import FileError, NACDetector
from nac_openood.errors import NACError
from nac_openood.network.fingerprint import difference, fingerprint

SCALE = 2.0


def helper(x):
    return x * SCALE


class Own(nn.Module):
    """A network whose `forward` uses a method, a function, a constant and attributes."""

    def __init__(self, power=2, act=F.relu):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.power, self.act, self.calls = power, act, 0

    def squash(self, x):
        return self.act(x) ** self.power

    def forward(self, x):
        self.calls += 1  # which is no setting
        self.last = x.shape[0]
        return self.head(helper(self.squash(self.body(x))))

    def training_step(self, batch):
        return self(batch).sum()


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Own().eval()


def test_the_same_network(net):
    known = fingerprint(net)
    assert difference(known, net) == ""
    net(torch.ones(2, 4))
    net.train()
    assert difference(known, net) == ""
    assert difference(known, nn.DataParallel(net)) == ""
    assert difference(known, torch.compile(net, backend="eager")) == ""
    net.body = torch.compile(net.body, backend="eager")
    assert difference(known, net) == ""


def test_settings_that_change_what_is_computed(small_net):
    known = fingerprint(small_net)
    small_net.layer1[1].eps = 1e-2
    assert difference(known, small_net) == "it has the same weights but another BatchNorm2d.eps"
    small_net.layer1[1].eps = 1e-5
    assert difference(known, small_net) == ""
    for module, name, value in (
        (small_net.layer2[0], "stride", (1, 1)),
        (small_net.layer1[0], "padding_mode", "reflect"),
        (small_net.avgpool, "output_size", 2),
    ):
        before = getattr(module, name)
        setattr(module, name, value)
        assert f".{name}" in difference(known, small_net)
        setattr(module, name, before)
    small_net.dropout.p, small_net.layer1[1].momentum = 0.9, 0.5  # nothing in evaluation mode
    small_net.layer1[2].inplace = False
    assert difference(known, small_net) == ""
    small_net.layer1[2] = nn.GELU()
    assert difference(known, small_net) == "it has the same weights but other modules"


def test_settings_of_ones_own_modules(net):
    known = fingerprint(net)
    net.power = 3
    assert difference(known, net) == "it has the same weights but another Own.power"
    net.power, net.act = 2, F.gelu
    assert difference(known, net) == "it has the same weights but another Own.act"
    net.act = functools.partial(F.leaky_relu, negative_slope=0.3)
    assert "Own.act" in difference(known, net)


class Scaled(Own):
    """A network whose `forward` reads attributes of its classes."""

    factor, version, squeeze = 2.0, "1.0", staticmethod(F.relu)

    def forward(self, x):
        return self.squeeze(super().forward(x)) * self.factor


def test_attributes_of_ones_own_classes(monkeypatch):
    net = Scaled().eval()
    known = fingerprint(net)
    early = {name: value for name, value in known.items() if not name.startswith("class setting")}
    for name, value in (("factor", 3.0), ("squeeze", staticmethod(F.gelu))):
        with monkeypatch.context() as patch:
            patch.setattr(Scaled, name, value)
            assert difference(known, net) == f"it has the same weights but another Scaled.{name}"
            assert difference(early, net) == ""
    net.factor = 2.0  # the same as before, by another way
    assert difference(known, net) == ""
    net.factor = 3.0
    assert difference(known, net) == "it has the same weights but another Scaled.factor"
    del net.factor
    monkeypatch.setattr(Scaled, "version", "2.0")  # which `forward` does not read
    assert difference(known, net) == ""


ANOTHER = "it has the same weights but another `forward`"


def test_another_forward(net, monkeypatch):
    known = fingerprint(net)
    monkeypatch.setattr(Own, "forward", lambda self, x: self.head(self.squash(self.body(x))))
    assert difference(known, net) == ANOTHER
    monkeypatch.undo()
    assert difference(known, net) == ""
    net.forward = types.MethodType(lambda self, x: self.head(self.body(x)), net)
    assert difference(known, net) == ANOTHER


def test_what_forward_calls(net, monkeypatch):
    known = fingerprint(net)
    for where, name, value in (
        (Own, "squash", lambda self, x: x),
        (sys.modules[__name__], "helper", lambda x: -x),
        (sys.modules[__name__], "SCALE", 3.0),
    ):
        monkeypatch.setattr(where, name, value)
        assert difference(known, net) == ANOTHER, name
        monkeypatch.undo()
    monkeypatch.setattr(Own, "training_step", lambda self, batch: None)
    assert difference(known, net) == ""  # it is not called


def test_a_function_in_a_module_of_torch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=F.relu).eval()
    known = fingerprint(layer)
    layer.activation = F.gelu
    assert "TransformerEncoderLayer.activation" in difference(known, layer)
    layer.activation, layer.self_attn.num_heads = F.relu, 4
    assert "MultiheadAttention.num_heads" in difference(known, layer)


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.kinds = {"b", "a", "c"}

    def forward(self, x):
        return self.fc(x) if "a" in {"a", "b", "c"} else x
"""
PRINTED = """
import importlib.util, sys
from nac_openood.network.fingerprint import fingerprint

for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("net", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = fingerprint(module.Net())
    print(found["source"], found["bytecode"], found["modules"])
"""


def test_other_processes_folders_and_comments(tmp_path):
    said = '        """A docstring."""\n        # and a comment\n        return'
    codes = {
        "plain/net.py": NET,
        "moved/other.py": f"\n\n{NET}",
        "told/net.py": NET.replace("        return", said),
        "changed/net.py": NET.replace("self.fc(x)", "-self.fc(x)"),
    }
    for name, code in codes.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(code)
    path = ":".join(filter(None, sys.path))
    runs = [
        subprocess.run(
            [sys.executable, "-c", PRINTED, *(tmp_path / name for name in codes)], text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True,
        ).stdout
        for seed in "12"
    ]  # fmt: skip
    assert runs[0] == runs[1]
    plain, moved, told, changed = (line.split() for line in runs[0].splitlines())
    assert plain == moved
    assert plain[0] == told[0] and plain[2] == told[2]
    assert plain[0] != changed[0] and plain[1] != changed[1] and plain[2] == changed[2]


def test_what_cannot_be_compared_is_no_alarm(net, monkeypatch):
    known = fingerprint(net)
    monkeypatch.setattr(Own, "forward", lambda self, x: x)
    other_python = {**known, "bytecode_of": "another version", "source": ""}
    assert difference(other_python, net) == ""
    assert difference({**other_python, "source": known["source"]}, net) == ANOTHER
    early = {name: known[name] for name in ("structure", "weights")}
    assert difference(early, net) == ""
    new_in_a_library = {k: v for k, v in known.items() if k != "setting Linear.in_features"}
    monkeypatch.undo()
    assert difference(new_in_a_library, net) == ""


def test_a_damaged_fingerprint(net):
    with pytest.raises(NACError, match="no 'structure' and 'weights'"):
        difference({"structure": "x"}, net)


def test_a_detector_refuses_another_eps(tmp_path, small_net, images):
    NACDetector(small_net, ["avgpool"]).fit([images]).save(tmp_path / "x")
    small_net.layer3[1].eps = 0.1
    with pytest.raises(FileError, match=r"another network: .* another BatchNorm2d.eps. Load the"):
        NACDetector.load(tmp_path / "x", small_net)


def test_readings_of_another_network(tmp_path, small_net, images):
    detector = NACDetector(small_net, ["avgpool"])
    detector.read_loader([images], save_to=tmp_path / "x")
    readings = detector.read_loader([images])
    torch.manual_seed(5)
    other = NACDetector(SmallNet().eval(), ["avgpool"])
    with pytest.raises(NACError, match="readings are of another network"):
        other.fit_readings(readings)
    detector.fit_readings(type(readings).load(tmp_path / "x"))
    other.fit([images])
    with pytest.raises(NACError, match="readings are of another network"):
        other.score_readings(readings)
