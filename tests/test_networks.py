"""Networks by description: the user's code, exported programs, timm, Hugging Face."""

import sys

import pytest
import torch
from PIL import Image
from torch import nn

from nac_openood import NACDetector
from nac_openood.errors import NACError
from nac_openood.sources.code import is_code
from nac_openood.sources.networks import kind_of, network_of

X = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(240, 3, 32, 32, generator=torch.Generator().manual_seed(1))
DATA = [(IMAGES, torch.arange(240) % 4)]
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def net(own_project):
    return network_of(f"{own_project / 'net.py'}:make", 4, str(own_project / "net.pt"))


def detector(net, layers="auto", rule="nac"):
    return NACDetector(net, layers, rule=rule).fit(DATA).calibrate(DATA)


# ---- code


@pytest.mark.parametrize("name", ["four", "Net"])
def test_a_factory_in_a_file(own_project, net, name):
    other = network_of(f"{own_project / 'net.py'}:{name}", 4, str(own_project / "net.pt"))
    assert not other.training and torch.equal(other(X), net(X))


def test_a_factory_in_a_module_of_the_current_folder(own_project, monkeypatch):
    monkeypatch.chdir(own_project)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(own_project))])
    monkeypatch.delitem(sys.modules, "net", raising=False)
    assert network_of("net:make", 7)(X).shape == (5, 7)


def test_factories_with_other_names_and_defaults_and_files_with_neighbors(tmp_path):
    (tmp_path / "neighbor_of_mine.py").write_text("from torch import nn\n")
    code = (
        "from neighbor_of_mine import nn\n"
        "def named(width=3, num_classes=2): return nn.Linear(width, num_classes)\n"
        "def single(k): return nn.Linear(3, k)\n"
        "def defaults(width=3): return nn.Linear(width, 2)\n"
        "ready = nn.Linear(3, 9)\n"
    )
    path = tmp_path / "\udcff.py"  # not UTF-8
    path.write_text(code)
    made = [network_of(f"{path}:{n}", 5) for n in ("named", "single", "defaults", "ready")]
    assert [net.out_features for net in made] == [5, 5, 2, 9]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(): return 1 / 0", r"your code .*a.py:f failed in .*a.py, line 1: ZeroDivision"),
        ("def f(:", "failed.*SyntaxError"),
        ("raise SystemExit(3)", "failed.*SystemExit: 3"),
        ("def g(): pass\nh = 3", r"has no 'f'. It has g\."),
        ("def f(): return 3", "makes a int, expected a torch.nn.Module"),
        ("def f(a, b): pass", r"must take `n_classes` or nothing, but its parameters are \(a, b\)"),
        ("def f(*, depth): pass", r"are \(\*, depth\)"),
    ],
)
def test_errors_of_the_users_code(tmp_path, code, message):
    (tmp_path / "a.py").write_text(code)
    with pytest.raises(NACError, match=message) as caught:
        network_of(f"{tmp_path}/a.py:f", 3)
    assert (caught.value.__cause__ is not None) == ("failed" in message)


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("nowhere.py:f", "there is no file .*nowhere.py"),
        ("no_such.module:f", "your code no_such.module:f failed: ModuleNotFoundError: No module"),
        ("resnet0", r"unknown architecture 'resnet0'.*timm:NAME.*hf:NAME.*\.pt2"),
        ("net", r"unknown architecture 'net'.*path/to/file\.py:factory"),
        ("net.py", "net.py is a file: name what makes the network in it, as in net.py:make"),
        ("resnet18", "resnet18 needs a checkpoint file or one of .*torchvision:"),
        ("nowhere.pt2", "there is no program nowhere.pt2"),
    ],
)
def test_networks_that_are_not_there(arch, message):
    with pytest.raises(NACError, match=message):
        network_of(arch, 3)


def test_what_is_code():
    assert is_code("a.b:c") and is_code("x/y.py:c.d") and is_code("net:make")
    assert not any(map(is_code, ("resnet50", "a/b", "a/b.yml", "a:b/c", "x.py", ":f", "a b:c")))


# ---- programs


def export(net, path, **more):
    torch.export.save(torch.export.export(net, (X,), **more), path)
    return str(path)


@quiet
def test_an_exported_program_is_read_like_its_network(own_project, net, tmp_path):
    dynamic = ({0: torch.export.Dim("batch")},)
    path = export(net, tmp_path / "net.pt2", dynamic_shapes=dynamic)
    program = network_of(path, 4)
    for rule in ("nac", "nac_plus"):
        here, there = (detector(n, ["stem", "middle", "pool"], rule) for n in (program, net))
        torch.testing.assert_close(here.score(X), there.score(X))
        assert detector(program, rule=rule).score(X[:1]).shape == (1,)
    here.save(tmp_path / "det")
    again = NACDetector.load(tmp_path / "det", network_of(path, 4))
    torch.testing.assert_close(again.score(X), here.score(X))
    with pytest.raises(NACError, match="has its weights in it: leave out the checkpoint"):
        network_of(path, 4, str(own_project / "net.pt"))


@quiet
def test_programs_that_cannot_be_used(own_project, net, tmp_path):
    with pytest.raises(NACError, match="was exported for batches of 5 only. Export the network"):
        network_of(export(net, tmp_path / "fixed.pt2"), 4)
    (tmp_path / "bad.pt2").write_bytes(b"no program")
    with pytest.raises(NACError, match=r"bad.pt2 is damaged or not a program"):
        network_of(str(tmp_path / "bad.pt2"), 4)
    with pytest.raises(NACError, match="holds weights, not a network. Pass it as the checkpoint"):
        network_of(str(own_project / "net.pt"), 4)


@quiet
@pytest.mark.parametrize("make", [torch.jit.script, lambda net: torch.jit.trace(net, X)])
@pytest.mark.parametrize("rule", ["nac", "nac_plus"])
def test_the_operations_of_torchscript_can_be_read(net, tmp_path, make, rule):
    path = str(tmp_path / "script.pt")
    torch.jit.save(make(net), path)
    loaded = network_of(path, 4)
    torch.testing.assert_close(loaded(X[:3]), net(X[:3]))
    here, there = detector(net, rule=rule), detector(loaded, rule=rule)
    assert len(there.layers) >= len(here.layers) > 0
    if rule == "nac":  # the head's input is the first layer of both
        alone = [
            NACDetector(d.net, [next(iter(d.layers))], rule="nac").fit(DATA) for d in (here, there)
        ]
        torch.testing.assert_close(alone[1].score(X), alone[0].score(X))
    there.save(tmp_path / "det")
    again = NACDetector.load(tmp_path / "det", network_of(path, 4))
    assert torch.equal(again.score(IMAGES), there.score(IMAGES))


class _Recurrent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while bool(x.sum() > 1):
            x = x / 2
        return x.mean(dim=(2, 3))


@quiet
@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Linear(5, 3), "does not take images of a usual size. Export the network"),
        (_Recurrent(), "PyTorch cannot turn .* into a graph of operations"),
    ],
)
def test_torchscript_that_cannot_be_read(tmp_path, net, message):
    torch.jit.save(torch.jit.script(net), str(tmp_path / "x.pt"))
    with pytest.raises(NACError, match=message):
        network_of(str(tmp_path / "x.pt"), 3)


# ---- libraries


def test_timm_with_a_checkpoint_and_its_transform(tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=3).eval()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    x = kind_of("timm:test_resnet").transform()(Image.new("RGB", (99, 80)))
    loaded = network_of("timm:test_resnet", 3, str(tmp_path / "net.pt"))
    assert x.shape == net.default_cfg["input_size"]
    assert torch.equal(loaded(x[None]), net(x[None]))
    with pytest.raises(NACError, match="timm has no model 'resnet0'"):
        network_of("timm:resnet0", 3)


def test_hugging_face_from_a_folder(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
        intermediate_size=64, id2label=dict(enumerate(("cat", "bird", "ant", "cow"))),
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(
        size={"height": 32, "width": 32}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.2, 0.2]
    ).save_pretrained(tmp_path / "vit")
    arch = f"hf:{tmp_path / 'vit'}"
    kind, net = kind_of(arch), network_of(arch, 4)
    assert kind.classes() == ("cat", "bird", "ant", "cow")
    x = kind.transform()(Image.new("RGB", (64, 64), (255, 0, 51)))
    expected = [(1 - 0.4) / 0.2, -0.5 / 0.2, (0.2 - 0.6) / 0.2]
    torch.testing.assert_close(x.mean((1, 2)), torch.tensor(expected), atol=1e-4, rtol=0)
    assert net(x[None]).logits.shape == (1, 4)
    assert detector(net, rule="nac_plus").score(X).shape == (5,)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NACError, match=r"cannot load .*Expected a folder written by"):
        network_of(f"hf:{tmp_path}", 3)


def test_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # import then fails
    message = r"'hf:some/net' needs transformers: pip install 'nac-openood\[hf\]'"
    with pytest.raises(NACError, match=message):
        network_of("hf:some/net", 3)
