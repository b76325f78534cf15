# ruff: noqa: F811 (the fixture of another file)
"""`nac-openood analyze` as people use it."""

import pytest
from test_compare_cli import ARCH, project  # noqa: F401

from nac_openood.cli import main


def listed(project, out, *kinds):
    return [
        "analyze", *kinds, "--id-data", "cifar10", "--data-root", str(project / "data"),
        "--arch", ARCH, "--checkpoint", str(project / "results/s0/best.ckpt"),
        "--nac-config", str(project / "nac.yml"), "--device", "cpu", "--out", str(out),
    ]  # fmt: skip


def test_tables_figures_and_one_page(project, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(listed(project, out, "layers")) == 0
    message = capsys.readouterr().out
    assert "Which layers to combine: From the deepest layer alone" in message
    assert "reading test set mnist" in message
    assert main([*listed(project, out, "params", "weighted"), "--steepness", "10", "100"]) == 0
    assert "reading test set" not in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert {f"{k}.{e}" for k in ("layers", "params", "weighted") for e in ("csv", "json")} <= names
    assert {"layers-auroc.svg", "params-bound.svg", "weighted-fpr95.svg"} <= names
    page = (out / "report.html").read_text()
    for section in ("layers", "params", "weighted", "about"):
        assert f'<section id="{section}"' in page
    svg = (out / "layers-auroc.svg").read_text()
    assert svg.startswith("<?xml") and "var(--" not in svg


def test_a_kind_that_fails_leaves_the_others(project, tmp_path, capsys):
    assert main([*listed(project, tmp_path, "layers", "samples"), "--shares", "2"]) == 2
    caught = capsys.readouterr()
    assert "samples: --shares must be above 0 and at most 1" in caught.err
    assert (tmp_path / "layers.json").is_file() and not (tmp_path / "samples.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layerz", "--embedded"], "unknown kind of analysis ['layerz']; expected some of states"),
        (["layers", "--arch", ARCH], "expected either --train (your images)"),
        (["layers", "--embedded", "--id-data", "cifar10"], "--embedded has networks and images"),
        (["layers", "--embedded", "--checkpoint", "a.pt"], "--embedded has networks and images"),
        (["layers", "--id-data", "cifar10"], "expected --arch, the network"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(tmp_path, arguments, message, capsys):
    assert main(["analyze", *arguments, "--out", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err
