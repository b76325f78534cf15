"""docs/deploy.md, the service: examples run, tables are true, figures are those measured."""

import importlib
import json
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from service_toy import connected, encoded, picture, running

from nac_openood.cli import build_parser
from nac_openood.serving.app import ERRORS
from nac_openood.serving.limits import Limits
from nac_openood.serving.scoring import WINDOW, ServiceMetrics
from nac_openood.sources.images import MAX_RATIO

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
PAGE = PAGE.split("## HTTP service")[1].split("## ONNX")[0]


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_the_python_example_runs(judge, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = next(block for block in blocks if "urllib" in block)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.jpg").write_bytes(encoded(picture(1), "JPEG"))
    with running(judge) as ((host, port), _):
        names: dict = {}
        exec(code.replace("127.0.0.1:8000", f"{host}:{port}"), names)
    assert names["result"]["path"] == "photo.jpg" and names["result"]["decision"] in ("in", "out")


def test_options_and_statuses_exist():
    known = set(build_parser()[1]["serve"]._option_string_actions)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known | {"--data-binary"}
    rows = re.search(r"\| status \|.*?\n\n", PAGE, re.DOTALL)[0]
    assert set(map(int, re.findall(r"\b[45]\d\d\b", rows))) == set(ERRORS)
    assert f"more than {MAX_RATIO} times" in rows and Limits().max_pixels == 25_000_000


def test_metrics_exist(judge):
    documented = set(re.findall(r"\bnac_[a-z_0-9]+", PAGE)) - {"nac_openood", "nac_plus"}
    text = generate_latest(ServiceMetrics(judge, lambda: 0).registry).decode()
    found = set(re.findall(r"^# TYPE (nac_[a-z_0-9]+) ", text, re.MULTILINE))
    known = {name for name in found if not name.endswith("_created")}
    assert documented == known, "documented and found"
    assert f"last {WINDOW:,} images" in PAGE


def test_paths_exist(judge):
    rows = re.search(r"\| path \|.*?\n\n", PAGE, re.DOTALL)[0]
    with running(judge) as (address, _):
        for path in re.findall(r"`GET (/\S*)`", rows):
            with connected(address) as connection:
                connection.request("GET", path)
                assert connection.getresponse().status == 200, path


def test_figures_are_the_benchmarks(benchmark):
    written = benchmark("service_page")
    found = json.loads((ROOT / "benchmarks" / "service.json").read_text())
    assert written.PAGE.read_text(encoding="utf-8") == written.page(found)
    ours, plain = found["load"]["nac"], found["load"]["plain"]
    rates = f"get {ours['images_per_s']:.0f} images of 32 x 32 pixels per second with NAC+"
    assert rates in PAGE and f"and {plain['images_per_s']:.0f} without" in PAGE
    assert f"{ours['cpu_ms_per_image'] - plain['cpu_ms_per_image']:.1f} ms of processor" in PAGE
    assert found["load"]["nac"]["requests"] == found["load"]["plain"]["requests"] == 10_000
    assert not any(row["lost"] or row["mixed_up"] for row in found["load"].values())
    assert all(row["as_expected"] for row in found["hostile"].values())
