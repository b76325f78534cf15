"""The code in the docs runs as it stands, and what they say about errors is so."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import nac_openood
from nac_openood.benchmark.methods import table

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "own_model.md").read_text(encoding="utf-8")


def blocks(page):
    """The Python blocks with empty lines above each, so that an error names the page's line."""
    for match in re.finditer(r"```python\n(.*?)```", page, re.DOTALL):
        yield "\n" * page[: match.start(1)].count("\n") + match.group(1)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    pytest.importorskip("timm", reason="the page shows a timm model")
    names = {"__name__": "own_model"}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.chdir(tmp_path_factory.mktemp("own_model"))
        torch.manual_seed(0)
        for block in blocks(PAGE):
            exec(compile(block, str(DOCS / "own_model.md"), "exec"), names)
    return names


def test_own_model_runs_from_top_to_bottom_and_its_errors_are_the_real_ones(names):
    assert names["scores"].shape == names["trusted"].shape == (50,)
    assert names["trusted"].dtype == torch.bool
    assert names["det"].threshold_ is not None and names["found"].best.auroc > 0.5
    assert set(names["result"].by_layer) == {"avgpool", "layer3", "layer2", "layer1"}
    code = PAGE.split("## The ten lines")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    told = re.findall(r"^\| `([^|]+?)` \|", PAGE, re.MULTILINE)
    assert len(told) == len(names["messages"])
    for text, message in zip(told, names["messages"]):
        assert text in message


@pytest.fixture(scope="module")
def compared():
    """What the examples of `nac_openood.compare` take for granted."""
    pytest.importorskip("pytorch_ood", reason="the examples run its baselines")
    torchvision = pytest.importorskip("torchvision")

    def dataset(n, shift):
        draw = torch.Generator().manual_seed(n)
        images = torch.randn(n, 3, 32, 32, generator=draw) + shift
        return TensorDataset(images, torch.arange(n) % 10)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = torchvision.models.resnet18(weights=None, num_classes=10)
    sizes = {"train_set": 60, "val_set": 41, "test_set": 42, "tin": 31, "svhn": 32, "cifar100": 33}
    outside = ("tin", "svhn", "cifar100")
    return {"net": net, **{name: dataset(n, name in outside) for name, n in sizes.items()}}


@pytest.mark.filterwarnings("ignore:the fitting set is uneven")
def test_the_examples_of_compare_run(compared, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the examples write a page")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with_pytorch_ood = partial(nac_openood.compare, backend="pytorch-ood")
    monkeypatch.setattr(nac_openood, "compare", with_pytorch_ood)
    monkeypatch.setattr(table, "METHODS", dict(table.METHODS))
    arguments = "{n_samples: 60, layers: {avgpool: {n_bins: 50}}}"
    Path("nac.yml").write_text(f"postprocessor: {{postprocessor_args: {arguments}}}")
    for block in blocks((DOCS / "compare.md").read_text(encoding="utf-8")):
        exec(compile(block, "compare.md", "exec"), compared)
    rows = compared["results"].rows
    assert {row.method: row.status for row in rows} == {"msp": "ok", "knn": "ok", "nac": "ok"}
    sets = {"train": "train_set", "id_val": "val_set", "test": "test_set"}
    data = {role: compared[name] for role, name in sets.items()}
    far = {"svhn": compared["svhn"]}
    own = nac_openood.compare(compared["net"], **data, far=far, search=False, methods=["norm"])
    assert [(row.title, row.status) for row in own.rows] == [("Norm", "ok")]


PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
