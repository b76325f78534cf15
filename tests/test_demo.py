"""`nac-openood demo`: whole, again, in part, stopped, and where something is missing."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compare_toy import plain
from openood_tiny import need_openood, real_openood

from nac_openood.benchmark.methods.table import METHODS, NAC, PYTORCH_OOD
from nac_openood.benchmark.run.results import Results
from nac_openood.cli import main, output
from nac_openood.demo.trained import trained
from nac_openood.errors import NACError
from nac_openood.report import figures
from nac_openood.tensor_files import TensorWriter

pytestmark = pytest.mark.usefixtures("drawn_once")
BASELINES = [name for name, method in METHODS.items() if PYTORCH_OOD in method.backends]
OURS = [name for name, method in METHODS.items() if method.rule is not None]
SLOW = [name for name, method in METHODS.items() if method.slow]
DEMO = ("demo", "--backend", "pytorch-ood")
WRITTEN = ("results.json", "results.csv", "results.md", "report.html")


@pytest.fixture(scope="module", autouse=True)
def cached(embedded_cache):
    """Networks are trained once a session, and results name one command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAC_CACHE", str(embedded_cache))
        patch.setattr(sys, "argv", ["nac-openood", "demo"])
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cached):
    """A demo that nothing disturbed: its folder, which is not to be written to."""
    out = tmp_path_factory.mktemp("demo") / "whole"
    assert demo(out) == 0
    return out


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of it to play with, and what the original found."""
    return Path(shutil.copytree(whole, tmp_path / "copy")), Results.load(whole)


def demo(out, *more, base=DEMO):
    return main([*base, "--out", str(out), *more])


def tables(out, *more, base=DEMO):
    """The demo without its page, whose drawing would take most of the time."""

    def refuse():
        raise NACError("matplotlib is not used in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "check_matplotlib", refuse)
        return demo(out, *more, base=base)


def found(out):
    """Everything but times, memory and the folder."""
    return plain(Results.load(out))


def cell_times(out):
    return {p.relative_to(out): p.stat().st_mtime_ns for p in out.glob("runs/*/*/*.safetensors")}


def no_leftovers(out):
    return not [p for p in out.rglob(".*") if p.is_file() and p.name != ".lock"]


def test_it_does_the_whole_job(whole):
    for name in WRITTEN:
        assert (whole / name).stat().st_size > 1000
    results = Results.load(whole)
    status = {r.method: r.status for r in results.rows}
    assert list(status) == list(METHODS)
    assert {m for m, s in status.items() if s == "ok"} == {*BASELINES, *OURS}
    assert status["opengan"] == "absent"
    assert results.runs[0].accuracy > 95
    assert results.value(NAC, "farood", "AUROC").mean > 95
    nac = next(r for r in results.rows if r.method == NAC)
    assert nac.search["points"] > 1 and nac.search["auroc"] > 0.9
    assert len((whole / "results.csv").read_text().splitlines()) > 20
    assert "NAC" in (whole / "results.md").read_text() and no_leftovers(whole)


def test_it_opens_with_confident_mistakes(whole):
    results = Results.load(whole)
    found, run = results.confident, results.runs[0].name
    known = results.scores(run, "nac_plus", "test").score
    assert (found.method, found.n_known, len(found.examples)) == ("NAC+", len(known), 3)

    def judged(name):
        plus, msp = (results.scores(run, method, name).score for method in ("nac_plus", "msp"))
        return msp, (1 + (known[None] <= plus[:, None]).sum(axis=1)) / (len(known) + 1)

    for name, counts in found.sets.items():
        confidence, p = judged(name)
        sure = confidence >= 0.9
        assert counts == (len(p), sure.sum(), (sure & (p <= 0.05)).sum()), name
    for example in found.examples:
        confidence, p = judged(example.dataset)
        surest = confidence.argsort()[::-1][:10].tolist()
        assert (example.confidence, example.p_value) in {(confidence[i], p[i]) for i in surest}
        assert int(example.answer) in range(8) and (whole / example.file).is_file()
    page = (whole / "report.html").read_text().split("<body>")[1]
    total = sum(sure for _, sure, _ in found.sets.values())
    assert page.index(f"for {total} of them") < page.index("how NAC compares")
    assert f"{total} confident mistakes" in (whole / "results.md").read_text()
    gallery = page.split('<section id="gallery"')[1].split("</section>")[0]
    assert 0 < gallery.index("<h3>NAC+</h3>") < gallery.index("<h3>NAC</h3>")


def test_it_says_where_the_network_is_from_and_where_to_look(tmp_path, capsys):
    told = []
    for _ in range(2):
        trained("resnet_embedded", cache=tmp_path, seed=5, say=told.append)
    assert told[0].startswith("training a small network") and told[1].startswith("loaded the net")
    output.open_page(tmp_path / "report.html", wanted=False)
    assert f"Open {(tmp_path / 'report.html').as_uri()}" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("code", [0, 1])
def test_make_says_what_it_installs_and_whether_that_failed(tmp_path, code):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f"#!/bin/sh\necho '  Downloading torch.whl (900 MB)'; echo Noise; exit {code}\n"
    )
    python.chmod(0o755)
    ready = tmp_path / ".demo-ready"
    done = subprocess.run(
        ["make", "-C", str(Path(__file__).parents[1]), f"VENV={tmp_path}", str(ready)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Installing nac-openood[demo]" in done.stdout and "Downloading torch" in done.stdout
    assert "Noise" not in done.stdout
    assert (done.returncode == 0, ready.is_file()) == (code == 0, code == 0)


def test_a_second_time_everything_is_there(copy, capsys):
    out, _ = copy
    before, documents = cell_times(out), [(out / name).read_text() for name in WRITTEN]
    assert demo(out) == 0
    assert cell_times(out) == before
    assert [(out / name).read_text() for name in WRITTEN] == documents
    text = capsys.readouterr().out
    assert text.count("done before") == len(METHODS) - 1 and "Written to" in text


def test_the_quick_ones(copy, capsys):
    out, results = copy
    before = cell_times(out)
    assert tables(out, "--quick") == 0
    assert cell_times(out) == before
    quick = Results.load(out)
    assert [r.method for r in quick.rows] == [m for m in METHODS if m not in SLOW]
    kept = {r.method: r.metrics for r in results.rows}
    assert all(r.metrics == kept[r.method] for r in quick.rows)
    assert "ODIN" not in capsys.readouterr().out


@real_openood
def test_openoods_own_baselines(copy):
    need_openood()
    out, pytorch = copy
    assert tables(out, "--quick", base=("demo", "--backend", "openood")) == 0
    results = Results.load(out)
    quick = [method for method in METHODS if method not in SLOW]
    assert [(r.method, r.status) for r in results.rows] == [(method, "ok") for method in quick]
    assert {r.implementation for r in results.rows[:5]} == {"OpenOOD 1.5"}
    for method in ("msp", "ebo", "mls", "react", "gen"):  # where both do the same
        first, second = (r.value(method, "farood", "AUROC").mean for r in (results, pytorch))
        assert first == pytest.approx(second, abs=0.05), method


# ---- stopped by a full disk, or by Ctrl-C


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "runs/resnet-s0/knn"),
        (KeyboardInterrupt(), 130, "run the same command again to continue"),
    ],
    ids=["full disk", "ctrl-c"],
)
def test_a_stop_leaves_nothing_half_written(copy, whole, capsys, monkeypatch, error, code, message):
    out, _ = copy
    for method in ("msp", "knn", NAC):
        shutil.rmtree(out / "runs" / "resnet-s0" / method)
    (out / "results.json").unlink()
    real, files = TensorWriter._append, set()

    def stop(writer, *rows):
        files.add(writer.path)
        if len(files) > 10:  # in the middle of knn
            raise error
        return real(writer, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(TensorWriter, "_append", stop)
        assert demo(out) == code
    text = capsys.readouterr()
    assert message in text.err and str(out) in text.err
    assert ("No space left on device" in text.err) == (code == 1)
    assert ("#  Method" in text.out) == (code == 130), "what is finished is shown"
    assert len(text.err.splitlines()) == 1 and no_leftovers(out)
    status = {r.method: r.status for r in Results.load(out).rows}
    assert status["msp"] == "ok" and status["knn"] == status[NAC] == "failed"
    assert tables(out) == 0
    assert found(out) == found(whole)


# ---- what is not installed


def test_without_any_baselines_there_is_nac(copy, capsys, monkeypatch):
    out, results = copy
    monkeypatch.setitem(sys.modules, "pytorch_ood", None)
    monkeypatch.delitem(sys.modules, "pytorch_ood.detector", raising=False)
    monkeypatch.setattr("nac_openood.plugin.source.has_openood", lambda: False)
    assert demo(out / "other") == 1  # which asks for a backend
    assert "pip install 'nac-openood[baselines]'" in capsys.readouterr().err
    assert tables(out, base=("demo",)) == 0
    text = capsys.readouterr().out
    hint = next(line for line in text.splitlines() if "no baselines" in line)
    assert "pip install 'nac-openood[baselines]'" in hint
    assert text.index(hint) < text.index(f"[1/{len(METHODS)}]")
    alone = Results.load(out)
    assert {r.method for r in alone.rows if r.status == "ok"} == {*OURS}
    assert {r.status for r in alone.rows} == {"ok", "absent"}
    assert alone.rows[0].error.startswith("needs pytorch-ood: pip install")
    before = {r.method: r.metrics for r in results.rows}
    assert all(r.metrics == before[r.method] for r in alone.rows if r.method in OURS)
