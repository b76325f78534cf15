"""Which networks count as the same, and which as another one."""

import functools
import importlib.util
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nac_openood.errors import NACError
from nac_openood.network.fingerprint import difference, fingerprint

BUT = "it has the same weights but "


class Own(nn.Module):
    """A network whose `forward` reads attributes of the module."""

    def __init__(self, power=2, act=F.relu):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.power, self.act, self.calls = power, act, 0

    def forward(self, x):
        self.calls += 1  # which is no setting
        self.last = x.shape[0]
        return self.head(self.act(self.body(x)) ** self.power)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Own().eval()


def test_the_same_network(net):
    known = fingerprint(net)
    net(torch.ones(2, 4))
    net.train()
    for same in (net, nn.DataParallel(net), torch.compile(net, backend="eager")):
        assert difference(known, same) == ""
    net.body = torch.compile(net.body, backend="eager")
    assert difference(known, net) == ""


def test_settings_that_change_what_is_computed(small_net):
    known = fingerprint(small_net)
    for module, name, value in (
        (small_net.layer1[1], "eps", 1e-2),
        (small_net.layer2[0], "stride", (1, 1)),
        (small_net.layer1[0], "padding_mode", "reflect"),
        (small_net.avgpool, "output_size", 2),
    ):
        before = getattr(module, name)
        setattr(module, name, value)
        assert difference(known, small_net) == f"{BUT}another {type(module).__name__}.{name}"
        setattr(module, name, before)
    small_net.dropout.p, small_net.layer1[1].momentum = 0.9, 0.5  # nothing in evaluation mode
    small_net.layer1[2].inplace = False
    assert difference(known, small_net) == ""
    small_net.layer1[2] = nn.GELU()
    assert difference(known, small_net) == f"{BUT}other modules"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("power", 3),
        ("act", F.gelu),
        ("act", functools.partial(F.leaky_relu, negative_slope=0.3)),
    ],
)
def test_settings_of_user_modules(net, name, value):
    known = fingerprint(net)
    setattr(net, name, value)
    assert difference(known, net) == f"{BUT}another Own.{name}"


def test_another_forward(net, monkeypatch):
    known = fingerprint(net)

    def forward(self, x):
        return self.head(-(self.act(self.body(x)) ** self.power))

    monkeypatch.setattr(Own, "forward", forward)
    assert difference(known, net) == f"{BUT}another `forward`"
    other_python = {n: text for n, text in known.items() if not n.startswith("forward")}
    assert difference(other_python, net) == ""
    monkeypatch.undo()
    assert difference(known, net) == ""
    net.forward = types.MethodType(forward, net)
    assert difference(known, net) == f"{BUT}another `forward`"


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)
"""


def test_other_folders_and_comments(tmp_path):
    def found(name, code):
        path = tmp_path / f"{name}.py"
        path.write_text(code)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return {k: v for k, v in fingerprint(module.Net()).items() if k != "weights"}

    note = '        """A docstring."""\n        # and a comment\n        return'
    same = found("same", NET)
    assert same == found("moved", f"\n\n{NET}")
    assert same == found("documented", NET.replace("        return", note))
    assert same != found("changed", NET.replace("self.fc(x)", "-self.fc(x)"))


#: Written by version 0.1.0: files with these must load in later versions.
WRITTEN = {
    "structure": "0ef92f340a50ef252fedbd8c394798c8e7a9e799d5b8d9beb06abbda7fa79f22",
    "modules": "9ca9e40c7516d0693f731af6c2a281f631ede934b3009991af440fdd2045f2b1",
    "setting Conv2d.stride": "bb62bfe0a7166e04",
    "setting BatchNorm2d.eps": "3cf4ce5a62888dc1",
    "setting AdaptiveAvgPool2d.output_size": "e94fb39a777b559d",
}


def test_fingerprints_of_earlier_versions(net, small_net):
    assert WRITTEN.items() <= fingerprint(small_net).items()
    known = fingerprint(net)
    code = {"bytecode": "another", "bytecode_of": "another version", "source": "another"}
    forward = next(name for name in known if name.startswith("forward"))
    written = {**{n: text for n, text in known.items() if n != forward}, **code}
    assert difference(written, net) == ""
    assert difference({name: known[name] for name in ("structure", "weights")}, net) == ""
    del written["setting Linear.in_features"]  # which is new in a library
    assert difference(written, net) == ""
    net.power = 3
    assert difference(written, net) == f"{BUT}another Own.power"
    with pytest.raises(NACError, match="no 'structure' and 'weights'"):
        difference({"structure": "x"}, net)
