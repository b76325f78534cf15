"""The code in the docs runs as it stands, and what they say about results and errors is so."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import torchvision
from conftest import noise
from test_monitor import lightnings_own
from torch.utils.data import DataLoader, TensorDataset

import nac_openood
from nac_openood import NACDetector
from nac_openood.benchmark.methods import table

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page):
    """The Python blocks with empty lines above each, so that an error names the page's line."""
    for match in re.finditer(r"```python\n(.*?)```", page, re.DOTALL):
        yield "\n" * page[: match.start(1)].count("\n") + match.group(1)


def run_page(page, section="", before="", **names):
    """Run the Python blocks of a page in docs/, or of one of its sections, or before one.

    Returns:
        `names` and those that the page has defined.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    text = text.partition(f"\n## {before}\n")[0] if before else text
    if section:
        before, _, rest = text.partition(f"\n## {section}\n")
        text = "\n" * (before.count("\n") + 2) + rest.partition("\n## ")[0]
    names["__name__"] = page
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks(text):
            exec(compile(block, str(DOCS / page), "exec"), names)
    return names


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_model_runs_from_top_to_bottom_and_its_errors_are_the_real_ones(here):
    names = run_page("own_model.md")
    assert names["scores"].shape == names["trusted"].shape == (50,)
    assert names["trusted"].dtype == torch.bool
    assert names["det"].threshold_ is not None and names["found"].best.auroc > 0.5
    assert set(names["result"].by_layer) >= {"logits", "layer1"}
    page = (DOCS / "own_model.md").read_text(encoding="utf-8")
    code = page.split("## The ten lines")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    documented = re.findall(r"^\| `([^|]+?)` \|", page, re.MULTILINE)
    assert len(documented) == len(names["messages"])
    for text, message in zip(documented, names["messages"]):
        assert text in message


@lightnings_own
def test_interfaces(here):
    names = run_page("libraries.md")
    assert list(names["outliers"].predict(names["new"])[5:]) == [-1] * 5
    assert names["found"]["AUROC"] > 0.9 and names["outlier_scores"].shape == (5,)
    assert names["detector"].calibrated_ and names["auroc"] > 0.9
    assert names["arrays_det"].p_value(names["unseen"]).shape == (9,) and len(names["why"]) == 9


def test_the_answers(here):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    sizes["num_attention_heads"] = 2
    vision, text = {**sizes, "image_size": 32, "patch_size": 8}, {**sizes, "vocab_size": 50_000}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    features = torch.randn(100, 8)
    names = run_page(
        "faq.md", NACDetector=NACDetector, clip=transformers.CLIPModel(config),
        prompts=torch.randn(5, 16), train_box_features=features, new_box_features=features[:7],
        loader_of_your_classes=DataLoader(TensorDataset(torch.randn(200, 3, 32, 32)), 50),
        val_loader=DataLoader(TensorDataset(torch.randn(80, 3, 32, 32)), 40),
    )  # fmt: skip
    assert len(names["det"].layers) == 4 and len(names["p"]) == 7


def test_guarantees(small_net, here, capsys):
    det = NACDetector(small_net, "auto", rule="nac_plus").fit(noise(200))
    stream = [x for x, _ in noise(64, 2)]
    names = run_page("guarantees.md", det=det, val_loader=noise(400, 1), stream=stream)
    assert sum(names["rates"]) / len(names["rates"]) <= 0.05 and not names["monitor"].alarm
    assert "`predict` calls at most 5 % out-of-distribution" in capsys.readouterr().out


def test_export(here):
    names = run_page("deploy.md", "ONNX and torch.export")
    outputs = names["outputs"]
    assert set(outputs) == {"logits", "score", "p_value", "decision"}
    assert outputs["score"].numpy() == pytest.approx(names["score"], abs=1e-4)
    assert names["about"]["classes"] == list("abcdefghij") and names["about"]["alpha"] == 0.05


def test_nac_me_runs_and_its_costs_are_those_of_the_benchmark(here, capsys):
    names = run_page("checkpoints.md")
    assert sorted(names["saved"]) == [row.step for row in names["log"]] == [10, 20, 30]
    assert "(10, " in capsys.readouterr().out
    assert names["ranking"].chosen().name in names["networks"]
    assert (here / "ranking" / "ranking.json").is_file() and (here / "best.pt").is_file()
    assert names["monitor"].history
    page = (DOCS / "checkpoints.md").read_text(encoding="utf-8")
    measured = json.loads((DOCS.parent / "benchmarks" / "nac_me.json").read_text())
    ratios = dict(re.findall(r"^\| ([\w/-]+, \d+ x \d+) \| ([\d.]+) \|$", page, re.MULTILINE))
    assert {k.replace(" x ", "x"): float(v) for k, v in ratios.items()} == {
        title: pytest.approx(ratio, abs=0.005) for title, ratio in measured["passes"].items()
    }
    assert max(measured["passes"].values()) <= 1.5
    seconds = float(re.search(r"24 settings for PACS take ([\d.]+) seconds", page)[1])
    assert seconds == pytest.approx(measured["search_seconds"]["24 settings"], abs=0.05)


def test_the_tutorial_on_images(here):
    names = run_page("tutorials/images.md")
    assert names["verdicts"].out().tolist() == [False, True, True]
    ours, msp = names["aurocs"]["photographs"]
    assert ours > 0.999 and msp < 0.95  # "NAC+ finds all of them"
    ours, msp = names["aurocs"]["8 and 9"]
    assert ours == pytest.approx(msp, abs=0.05)  # "about as good as MSP"
    assert (here / "digits.safetensors").is_file()


def test_the_tutorial_on_tables(here):
    names = run_page("tutorials/tables_and_text.md", "Tables")
    assert list(names["det"].layers) == ["1", "3"] and names["accuracy"] > 0.9
    good, units, shifted, small = names["rejected"].values()
    assert good[0] < 0.13
    for ours, msp in (units, shifted):
        assert ours == 1 and msp < good[1] < 0.2  # MSP is more confident in them than in good rows
    assert small[0] < 0.2


def test_the_tutorial_on_texts(here):
    names = run_page("tutorials/tables_and_text.md", "Text")
    assert list(names["det"].layers) == ["blocks.0", "blocks.1"] and names["accuracy"] > 0.6
    assert 0.5 < names["ours"] < 0.9 and 0.5 < names["theirs"] < 0.9  # "neither is good"


@pytest.mark.filterwarnings("ignore:the fitting set is uneven")
def test_the_examples_of_compare_run(here, monkeypatch):
    def dataset(n, shift):
        draw = torch.Generator().manual_seed(n)
        images = torch.randn(n, 3, 32, 32, generator=draw) + shift
        return TensorDataset(images, torch.arange(n) % 10)

    # what the examples take for granted
    sizes = {"train_set": 60, "val_set": 41, "test_set": 42, "tin": 31, "svhn": 32, "cifar100": 33}
    offered = {name: dataset(n, name in ("tin", "svhn", "cifar100")) for name, n in sizes.items()}
    offered["net"] = torchvision.models.resnet18(num_classes=10)
    monkeypatch.setattr("tempfile.tempdir", str(here))
    with_pytorch_ood = partial(nac_openood.compare, backend="pytorch-ood")
    monkeypatch.setattr(nac_openood, "compare", with_pytorch_ood)
    monkeypatch.setattr(table, "METHODS", dict(table.METHODS))
    arguments = "{n_samples: 60, layers: {avgpool: {n_bins: 50}}}"
    Path("nac.yml").write_text(f"postprocessor: {{postprocessor_args: {arguments}}}")
    names = run_page("compare.md", before="Rules of your own", **offered)
    rows = names["results"].rows
    assert names["missed"].shape == (32,) and names["missed"].dtype == bool
    assert {row.method: row.status for row in rows} == {"msp": "ok", "knn": "ok", "nac": "ok"}
    sets = {"train": "train_set", "id_val": "val_set", "test": "test_set"}
    data = {role: offered[name] for role, name in sets.items()}
    far = {"svhn": offered["svhn"]}
    own = nac_openood.compare(offered["net"], **data, far=far, search=False, methods=["norm"])
    assert [(row.title, row.status) for row in own.rows] == [("Norm", "ok")]


PAGES = [
    *sorted(DOCS.parent.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((DOCS.parent / "benchmarks").rglob("*.md")),
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), target
