"""Tables and page of a comparison: numbers, escaping, edge cases."""

import csv
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from conftest import percent
from pages import Seen
from processes import run_code
from report_example import ERROR, METHODS, RUNS, SETS, WORKED, build

from nac_openood import NACError
from nac_openood.benchmark.run.results import (
    FAR,
    METRICS,
    NEAR,
    ConfidentMistakes,
    Mistake,
    Results,
    Row,
    SetInfo,
)
from nac_openood.benchmark.run.significance import Difference, _holm, significant_side
from nac_openood.benchmark.run.store import StoredScores, method_folder, write_scores
from nac_openood.cli import main
from nac_openood.core.metrics import auroc, auroc_intervals
from nac_openood.detector.outcomes import Scores
from nac_openood.report import comparison
from nac_openood.report.comparison import results_csv, summary_table, write_page, write_tables
from nac_openood.report.figures import Picture, svg
from nac_openood.report.formatting import SHOWN, ordinal
from nac_openood.report.methods import Ranked
from nac_openood.report.render import render_markdown, render_page
from nac_openood.report.scores import COMBINED, layer_aurocs, roc_points, run_scores
from nac_openood.tables import Cell

pytestmark = pytest.mark.usefixtures("drawn_once")
FEW = ("msp", "knn", "nac", "gram")
TWO = (SETS[0], SETS[2], SETS[4])  # figures take their time: a near and a far set will do


def few(folder, change=lambda results: results, **options):
    return build(folder, change, **{"methods": FEW, "sets": TWO, **options})


def page(results):
    return render_page(comparison.comparison_document(results))


def markdown(results):
    return render_markdown(comparison.comparison_document(results))


def rows_changed(method=None, run=None, **changes):
    """A change of the rows of a method (or all of them) and run (or all of them)."""

    def changed(row):
        meant = method in (None, row.method) and run in (None, row.run)
        return replace(row, **changes) if meant else row

    return lambda results: replace(results, rows=tuple(map(changed, results.rows)))


def without_metric(name, methods=FEW):
    def change(results):
        rows = []
        for row in results.rows:
            kept = {d: {k: v for k, v in m.items() if k != name} for d, m in row.metrics.items()}
            rows.append(replace(row, metrics=kept) if row.method in methods else row)
        return replace(results, rows=tuple(rows))

    return change


def check_page(text):
    """What holds for every page, whatever is in it."""
    seen = Seen(text)
    assert len(text) < 3_000_000
    for name, attributes in seen.tags:
        for key in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            link = attributes.get(key)
            assert link is None or link.startswith(("#", "data:")), (name, link)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    ids = [a["id"] for _, a in seen.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert all(a["href"][1:] in ids for a in seen.all("a"))
    assert all(a.get("alt") for a in seen.all("img"))
    assert all(a.get("role") == "img" for a in seen.all("svg"))
    assert len(seen.all("script")) == 1 and len(seen.all("h1")) == 1
    shown = " ".join([seen.text, *(a["aria-label"] for a in seen.all("svg"))])
    assert not re.search(r"\b(nan|inf|None|undefined)\b", shown), "a missing number shows"
    assert not re.search(r'(?:d|x|y|transform)="[^"]*nan', text)
    return seen


def renderings(found):
    """Page, Markdown and terminal as running text."""
    texts = (check_page(page(found)).text, markdown(found), summary_table(found))
    return [" ".join(text.split()) for text in texts]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return build(tmp_path_factory.mktemp("report"))


def test_csv_holds_every_number(results):
    lines = list(csv.DictReader(io.StringIO(results_csv(results))))
    cells = {(r.method, r.run, d): (r, m) for r in results.rows for d, m in r.metrics.items()}
    worked = [line for line in lines if line["status"] == "ok"]
    assert len(worked) == len(cells) == WORKED * 2 * 8
    for line in worked:
        row, metrics = cells[line["method"], line["run"], line["dataset"]]
        assert all(float(line[str(SHOWN.get(m, m))]) == metrics[m] for m in (*METRICS, "FPR@95_IN"))
        assert float(line["ms_per_image"]) == row.ms_per_image
        assert line["implementation"] == row.implementation
    failed = [line for line in lines if line["method"] == "gram"]
    assert [line["error"] for line in failed] == [ERROR, ERROR]
    assert {line["AUROC"] for line in failed} == {""}
    assert {"FPR@95 (OOD found)", "FPR@95 (ID kept)"} < set(lines[0])


def test_markdown_ranks_and_tells_all(results):
    text = markdown(results)
    summary = text.split("## Ranking")[1].split("##")[0]
    lines = [line for line in summary.splitlines() if line.startswith("| ")][2:]
    worked = [m for m in Ranked(results).methods if m.status == "ok"]
    assert len(lines) == len(worked) == WORKED
    for rank, (line, m) in enumerate(zip(lines, worked), 1):
        cells = [c.strip(" *") for c in line.strip("|").split("|")]
        values = [results.value(m.method, g, name) for g in (NEAR, FAR) for name in SHOWN]
        assert cells[:8] == [str(rank), m.title, *(str(Cell.of(value)) for value in values)]
    assert "<script>" not in text and "&lt;script&gt;" in text
    for part in (results.command, "K = 50", "OpenGAN needs a trained GAN", "51.20 %", "84.60"):
        assert part in text


def test_ranks(results):
    methods = Ranked(results).methods
    aurocs = [results.value(m.method, NEAR, "AUROC").mean for m in methods[:WORKED]]
    assert aurocs == sorted(aurocs, reverse=True)
    assert [m.ranks[NEAR] for m in methods[:WORKED]] == list(range(1, WORKED + 1))
    assert [m.method for m in methods[WORKED:]] == ["gram", "opengan"]
    nac = next(m for m in methods if m.method == "nac")
    assert nac.ranks[NEAR] == 2 and nac.ranks[FAR] == 3
    message = f"NAC is 2nd of {WORKED} on near-OOD (AUROC 87.06, 2.21"
    assert comparison.verdict(Ranked(results)).startswith(message)
    twin = [replace(r, method="twin", title="Twin") for r in results.rows if r.method == "nac"]
    more = replace(results, rows=(*results.rows, *twin))
    methods = {m.method: m for m in Ranked(more).methods}
    assert [methods[m].ranks[NEAR] for m in ("nac", "twin", "rmds")] == [2, 2, 4]
    assert f"tied for 2nd of {WORKED + 1} on near-OOD" in comparison.verdict(Ranked(more))


def test_ordinals():
    found = " ".join(ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111))
    assert found == "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 101st 111th"


def test_the_terminal_table_fits(results):
    text = summary_table(results)
    assert re.search(r"^ 2  > NAC +87\.06 ± 0\.73", text, re.M)
    assert "Gram failed (OpenOOD 1.5): RuntimeError" in text
    long = rows_changed(title="A method with a very long name", error="x" * 300)(results)
    for shown in (text, summary_table(long)):
        assert max(map(len, shown.splitlines())) <= 100


def test_the_leaderboard_in_the_terminal(results):
    text = summary_table(results.beside_published("leaderboard"))
    assert max(map(len, text.splitlines())) <= 100
    row = re.search(r"> NAC +near-OOD +AUROC +87\.06 ± 0\.73 +90\.93 ± 0\.23 +-3\.87", text)
    assert row, text
    (listed_text,) = re.findall(r"differ by more than twice the .*?:(.*?)\.\n\n", text, re.S)
    listed = {" ".join(each.split()[:2]) for each in listed_text.split(",")}
    assert "NAC near-OOD" in listed
    noisy = rows_changed(
        metrics={name: {"AUROC": value} for name, value in (("nearood", 90.9), ("farood", 94.5))}
    )(results)
    noisy = replace(noisy, rows=[row for row in noisy.rows if row.method == "nac"])
    assert "None differs by more" in summary_table(noisy.beside_published("leaderboard"))
    other = replace(noisy, id_name="imagenet", arch="resnet50")
    assert "No standard deviations" in summary_table(other.beside_published("leaderboard"))


def test_the_page_shows_everything(results):
    whole_page = page(results)
    seen = check_page(whole_page)
    assert all(title in seen.text for title, _, _ in METHODS.values())
    for key in ("ranking", "bars", "datasets", "scores", "roc", "times", "layers", "gallery",
                "settings", "paper", "about"):  # fmt: skip
        assert f'<section id="{key}"' in whole_page
    assert len(seen.all("svg")) == 6 + 6 + 6 + 2 + 1
    assert len(seen.all("img")) == 12
    assert results.command in seen.text
    assert "51.20 %, within 50 ± 5 %" in seen.text
    assert comparison.verdict(Ranked(results)) in seen.text and "uncertain" not in seen.text
    # what comes from data is escaped
    assert "<script>alert" not in whole_page and ERROR in seen.text
    assert "<img src=x>" not in whole_page and "cifar10/<img src=x>&0.png" in seen.text
    table = whole_page.split('<section id="ranking"')[1].split("</table>")[0]
    for m in Ranked(results).methods[:WORKED]:
        row = table.split(f'data-value="{m.title}"')[1].split("</tr>")[0]
        found = re.findall(r'data-value="([^"]*)"', row)
        values = [results.value(m.method, g, name) for g in (NEAR, FAR) for name in SHOWN]
        assert [float(v) for v in found[:6]] == [value.mean for value in values]
        assert m.implementation in row
    assert re.findall(r'medal m\d">(\w+)<', table) == ["1st", "1st", "2nd", "3rd", "3rd", "2nd"]


@pytest.mark.parametrize("evil", ["<b>&\"'", "$x_1^", "</script><svg onload=x>", "a|b"])
def test_names_of_any_kind(tmp_path, evil):
    def change(r):
        r = rows_changed(title=evil, implementation=evil, hyperparameters={evil: evil})(r)
        return replace(r, command=evil, arch=evil, notes=(evil,), versions={evil: evil})

    found = few(tmp_path, change)
    seen = check_page(page(found))
    assert evil in seen.text
    outside_the_code_block = "".join(markdown(found).split("```")[::2])
    assert "<b>" not in outside_the_code_block and "<svg" not in outside_the_code_block


@pytest.mark.parametrize("files", [("gallery/00.png",), ("none.png",), ()])
def test_confident_mistakes_of_any_name(tmp_path, files):
    evil = "<b>&|"
    mistakes = [
        Mistake("tin", evil, evil, sure, p, files[0] if files else None)
        for sure, p in ((0.99996, 0.004), (1.0, 0.2))
    ]
    sets = {"tin": (220, 30, 21), evil: (1000, 10, 9)}
    story = ConfidentMistakes("NAC", 10, 300, sets, mistakes, 0.9, 0.05, files, {"tin": files})
    found = few(tmp_path, lambda r: replace(r, confident=story))
    html = page(found)
    seen = check_page(html).text
    told = "catches 30 of these 40 confident mistakes (75 %)", "1,220 samples", "9 caught"
    for text in (seen, *((markdown(found), summary_table(found)))):
        assert all(part in " ".join(text.split()) for part in told[:2])
    assert told[2] in seen and f"class {evil}" in seen and "99.996 % sure" in seen
    assert "100.0 % sure" in seen and seen.count("no alarm") == 1
    assert html.index("Sure of its answer") < html.rindex("how NAC compares")


def test_the_same_results_give_the_same_bytes(tmp_path):
    found = few(tmp_path / "a")
    written = [*write_tables(found), write_page(found)]
    tables = ["results.csv", "results.md", "summary.csv", "scores.npz"]
    assert [p.name for p in written] == [*tables, "report.html"]
    first = [p.read_bytes() for p in written]
    code = "import sys; from nac_openood.cli import main; sys.exit(main(['report', sys.argv[1]]))"
    assert run_code(code, found.folder).returncode == 0
    assert [p.read_bytes() for p in written] == first


def test_means_and_sample_deviations_of_every_metric(results):
    write_tables(results)
    with (results.folder / "summary.csv").open(newline="") as file:
        lines = {(line["method"], line["dataset"]): line for line in csv.DictReader(file)}
    rows = results.methods()["knn"]
    for dataset, metric in product(("tin", NEAR), METRICS):
        each, line = [row.metrics[dataset][metric] for row in rows], lines["knn", dataset]
        title = str(SHOWN.get(metric, metric))
        assert float(line[title]) == pytest.approx(np.mean(each))
        assert float(line[f"{title} std"]) == pytest.approx(np.std(each, ddof=1))
        assert line["runs"] == "2"
    assert lines["gram", ""]["AUROC"] == "" and lines["gram", ""]["runs"] == "0"
    text = markdown(results)
    assert "sample standard deviation over 2 checkpoints" in text
    for metric in ("AUPR_IN", "AUPR_OUT"):
        value = results.value("knn", "tin", metric)
        assert f"{value.mean:.2f} ± {value.std:.2f}" in text


def test_differences_are_those_of_delong_and_of_the_bootstrap(results):
    rows = [results.scores("s0", method, "tin").score for method in ("knn", "msp")]
    known = [results.scores("s0", method, "cifar10").score for method in ("knn", "msp")]
    inside, outside = (torch.tensor(np.stack(each)) for each in (known, rows))
    (expected,) = auroc_intervals(inside, outside)[1][1:]
    one = replace(results, rows=[row for row in results.rows if row.run == "s0"])
    (found,) = [d for d in one.differences("knn", "tin") if d.method == "msp"]
    assert [found.points, found.low, found.high] == pytest.approx([100 * x for x in expected])
    # the mean over sets and networks: resample what they share, the samples
    (found,) = [d for d in results.differences("knn", NEAR) if d.method == "msp"]
    assert found.points == pytest.approx(
        results.value("msp", NEAR, "AUROC").mean - results.value("knn", NEAR, "AUROC").mean
    )
    assert (found.ahead, found.runs) == (0, 2) and significant_side(found) == "behind"
    draw, gaps = np.random.default_rng(0), []
    sizes = {s.name: s for s in SETS[:3]}
    names = tuple(sizes)
    scores = {
        (run.name, method, name): results.scores(run.name, method, name).score
        for run, method, name in product(RUNS, ("knn", "msp"), names)
    }
    for _ in range(200):
        rows = {n: draw.integers(0, s.images, s.images) for n, s in sizes.items()}
        drawn = {at: score[rows[at[2]]] for at, score in scores.items()}
        aurocs = [
            sum(
                sign * float(auroc(drawn[r, m, "cifar10"], drawn[r, m, n]))
                for m, sign in (("msp", 1), ("knn", -1))
            )
            for r, n in product(("s0", "s1"), names[1:])
        ]
        gaps.append(100 * np.mean(aurocs))
    assert (found.high - found.low) / (2 * 2.5758) == pytest.approx(np.std(gaps), rel=0.2)


def test_p_values_are_corrected_for_the_number_of_methods():
    many = [Difference(str(p), 1.0, 0.0, 2.0, p, 1, 1) for p in (0.04, 0.001, 0.03, 0.5)]
    assert [d.p for d in _holm(many)] == pytest.approx([0.09, 0.004, 0.09, 0.5])
    assert [significant_side(d) for d in _holm(many)] == [None, "ahead", None, None]


def test_tables_for_latex(tmp_path, capsys):
    evil = r"50 % & $x_1^{2}$ \end{tabular} ~ #"
    found = few(tmp_path, rows_changed("knn", title=evil))
    found.save()
    assert main(["report", str(tmp_path), "--latex"]) == 0
    assert "results.tex" in capsys.readouterr().out
    text = (tmp_path / "results.tex").read_text()
    bare = re.sub(r"\\[&%$#_{}]", "", text)  # escaped characters
    assert bare.count("{") == bare.count("}") and not set("#_^~") & set(bare)
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.S)
    assert len(tables) == 1 + 5  # the ranking, and a table per metric
    for table in tables:
        layout = re.search(r"\\begin\{tabular\}\{(l+r+)\}", table).group(1)
        body = table.split(r"\toprule")[1].split(r"\bottomrule")[0]
        lines = [re.sub(r"\\&", "", line) for line in body.splitlines() if line.endswith(r"\\")]
        heads, *rows = lines[1:]
        assert {line.count("&") for line in (heads, *rows)} == {len(layout) - 1}
        assert len(rows) == 3 and "NAC &" in table.split(r"\midrule")[1]
        assert lines[0].count(r"\multicolumn") <= len(layout)
    best = found.value("knn", NEAR, "AUROC")
    assert rf"\textbf{{{best.mean:.2f}}} {{\scriptsize $\pm${best.std:.2f}}}" in tables[0]
    # six columns with deviations fit a page
    assert r"\shortstack[r]{FPR@95\\(ID kept)}" in tables[0] and r"\footnotesize" in tables[0]
    assert r"50 \% \& \$x\_1\textasciicircum{}\{2\}\$ \textbackslash{}end" in tables[0]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_prints_the_tables(tmp_path):
    write_tables(few(tmp_path, rows_changed("knn", title=r"$%&_^{}~")), latex=True)
    head, body = r"\documentclass{article}\usepackage{booktabs}", r"\input{results}"
    (tmp_path / "a.tex").write_text(rf"{head}\begin{{document}}{body}\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "a.tex"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout
    if "booktabs.sty' not found" in out:
        pytest.skip("needs LaTeX's package booktabs")
    assert "Output written" in out and "\n! " not in out and "Overfull" not in out


NO_NUMBERS = {s: dict.fromkeys(METRICS, float("nan")) for s in ("tin", "mnist", NEAR, FAR)}
SEARCHES = [{"points": 3, "left_out": 2}, {"guard": 0.6, "guard_threshold": 0.05}, {"guard": None}]


def drop(*names):
    return lambda r: replace(r, **dict.fromkeys(names, ()))


def only_row(r):
    """A row as short as it may be."""
    row = Row("knn", "KNN", "s0", "mine", "ok", metrics={NEAR: {"AUROC": 50.0}})
    return replace(r, rows=(row,), gallery=())


def searches(r):
    rows = [replace(row, search=SEARCHES[i % 3]) for i, row in enumerate(r.rows)]
    return replace(r, rows=tuple(rows))


def failed(*where, error):
    return rows_changed(*where, status="failed", error=error, metrics={})


NO_TIMES = {"metrics": NO_NUMBERS, "ms_per_image": float("nan")}
SHIFTED = (SETS[0], SetInfo("imagenet_c", "csid", 100), *TWO[1:])
#: What the page says, and options of `few`; `loaded` changes what no file of a comparison holds.
EDGES = {
    "1 checkpoint ": {"runs": RUNS[:1]},
    "on far-OOD": {"sets": (SETS[0], SETS[4])},
    "on near-OOD": {"sets": SETS[:2]},
    "in-distribution, covariate shift": {"sets": SHIFTED},
    "NAC is not among them": {"methods": ("msp", "knn", "gram")},
    "NAC is 1st of 1 on near-OOD": {"methods": ("nac",)},
    "No method has a result": {"change": failed(error="broken")},
    "NAC has no result (no <gpu>).": {"change": failed("nac", error="no <gpu>")},
    "KNN: 1 of 2 runs succeeded (s1: too hot)": {"change": failed("knn", "s1", error="too hot")},
    "; the ranking lists the reasons": {"loaded": drop("rows")},
    "1 method compared; NAC is not among them.": {"change": only_row, "scores": False},
    "NAC is": {"change": drop("gallery", "paper", "notes")},
    "The scores are not in this folder": {"scores": False},
    "NAC is 1st of 2 on near-OOD": {"loaded": rows_changed("knn", **NO_TIMES)},
    "on near-OOD (AUROC": {"loaded": drop("sets")},
    "60.00 %, outside 50 ± 5 %": {"change": searches},
    "3 points, 2 points left out that this data does not allow": {"change": searches},
}


@pytest.mark.parametrize("message", EDGES)
def test_edges(tmp_path, message):
    options = dict(EDGES[message])
    loaded = options.pop("loaded", lambda r: r)
    found = loaded(few(tmp_path, **options))
    assert message in " ".join(check_page(page(found)).text.split())
    for text in (markdown(found), results_csv(found), summary_table(found)):
        assert not re.search(r"\b(nan|None)\b", text)


@pytest.mark.parametrize("value", [0.0, -3e8, 1e-30, np.nan, np.inf])
def test_constant_scores_and_scores_that_are_no_numbers(tmp_path, value):
    found = few(tmp_path)
    for info in TWO if np.isfinite(value) else TWO[1:]:
        same = np.full(info.images, value)
        scored = Scores(same, np.zeros(len(same)), np.zeros(len(same)), {"avgpool": same.copy()})
        path = method_folder(tmp_path, "s0", "nac") / f"{info.name}.safetensors"
        write_scores(path, StoredScores(scored))
    check_page(page(found))


def test_a_picture_that_is_missing_damaged_or_foreign_is_left_out(tmp_path):
    def change(r):
        first, second, third, fourth, *rest = r.gallery
        (tmp_path / third.file).write_bytes(b"<svg onload=x>")
        first, second = replace(first, file="../outside.png"), replace(second, file="none.png")
        return replace(r, gallery=(first, second, third, replace(fourth, file=None), *rest))

    (tmp_path.parent / "outside.png").write_bytes(b"\x89PNG secret")
    found = few(tmp_path, change)
    seen = check_page(page(found))
    assert len(seen.all("img")) == 8
    for example in found.gallery:
        assert example.name in seen.text and f"{example.score:.3f}" in seen.text


def test_layers_alone_and_together(results):
    sample = run_scores(results, next(m for m in Ranked(results).methods if m.method == "nac"))
    aurocs = layer_aurocs(sample)
    assert set(aurocs) == {"avgpool", "layer1", "layer2", "layer3", COMBINED}
    for dataset, value in aurocs[COMBINED].items():
        assert value == pytest.approx(sample.row.metrics[dataset]["AUROC"], abs=1e-9)


def test_damaged_scores_are_named(tmp_path):
    found = few(tmp_path)
    for name in ("tin", "svhn"):
        (method_folder(tmp_path, "s0", "nac") / f"{name}.safetensors").write_bytes(b"damaged")
        (method_folder(tmp_path, "s1", "nac") / f"{name}.safetensors").write_bytes(b"damaged")
    for text in (check_page(page(found)).text, markdown(found)):
        section = text.split("What each layer contributes")[-1]
        assert "NAC: the scores are missing or damaged." in section


@pytest.mark.parametrize("size", [1, 30, 5000])
def test_roc_points_are_few_and_true(size):
    draw = np.random.default_rng(0)
    inside, outside = draw.normal(1, 1, size), draw.normal(0, 1, size + 3)
    false, true = roc_points(inside, outside)
    assert len(false) <= 2001
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 100, 100)
    assert (np.diff(false) >= 0).all() and (np.diff(true) >= 0).all()
    area = ((true[1:] + true[:-1]) / 2 * np.diff(false)).sum() / 1e4
    assert 100 * area == pytest.approx(percent(inside, outside), abs=0.1)


def test_without_matplotlib_the_tables_are_written(tmp_path, monkeypatch, capsys):
    found = few(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NACError, match=r"pip install 'nac-openood\[plot\]'"):
        write_page(found)
    assert main(["report", str(tmp_path)]) == 1
    assert (tmp_path / "results.csv").is_file() and (tmp_path / "results.md").is_file()
    message = capsys.readouterr()
    assert "results.csv, results.md" in message.out and "no figures" in message.err


def test_the_command(tmp_path, capsys, monkeypatch):
    assert main(["report", str(tmp_path)]) == 1
    assert "expected the folder of a comparison" in capsys.readouterr().err
    few(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert main(["report", str(tmp_path), "--open"]) == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
    message = capsys.readouterr().out
    assert "> NAC" in message and "summary.csv, scores.npz, report.html" in message
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert main(["report", str(tmp_path), "--open"]) == 0
    assert "no browser found" in capsys.readouterr().err


def test_both_conventions_of_fpr_are_named(tmp_path):
    conventions = "FPR@95 (OOD found) is the share of ID", "FPR@95 (ID kept) is the share of OOD"
    for text in renderings(few(tmp_path)):
        assert all(message in text for message in conventions)
    text = markdown(Results.load(tmp_path))
    head = text.split("| # |")[1].splitlines()[0]
    assert "Near-OOD FPR@95 (OOD found) | Near-OOD FPR@95 (ID kept)" in head
    assert "FPR@95 (OOD found) 34.00 %, validation FPR@95 (ID kept) 27.00 %" in text
    # older results have one convention
    old = rows_changed(search={"fpr95": 0.34})(without_metric("FPR@95_IN")(Results.load(tmp_path)))
    for text in renderings(old):
        assert conventions[0] in text and conventions[1] not in text


def test_a_method_without_a_metric_has_a_dash(tmp_path):
    found = few(tmp_path, without_metric("FPR@95_IN", ("knn",)))
    row = next(line for line in markdown(found).splitlines() if "| KNN |" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [cells[i] for i in (4, 7)] == ["\u2013", "\u2013"] and "\u2013" not in cells[2]


def test_notes_come_first_and_uncertain_times_are_marked(tmp_path):
    note = "OOD validation: surrogates <made> of ID images"
    change = rows_changed("knn", disturbed=True)
    found = few(tmp_path, lambda r: replace(change(r), notes=(note,)))
    html = page(found)
    assert "surrogates &lt;made&gt;" in html.split("<nav")[0]
    assert "surrogates &lt;made&gt;" in markdown(found).split("## Ranking")[0]
    assert f"Note: {note}" in summary_table(found)
    message = "Times marked ~ are uncertain: the machine was busy"
    for text in renderings(found):
        assert message in text and re.search(r"KNN .*~2\.92 ", text)
        assert not re.search(r"(MSP|NAC)[^~]* ~", text.split("KNN")[0])
    for key in ("ranking", "times"):
        section = html.split(f'<section id="{key}"')[1].split("</section>")[0]
        assert message in section and section.count("~") == 2


def test_every_method_of_ours_is_highlighted(tmp_path, monkeypatch):
    monkeypatch.setattr("nac_openood.report.methods.OURS", {"nac", "knn"})
    found = few(tmp_path)
    html = page(found)
    table = html.split('<section id="ranking"')[1].split("</section>")[0]
    assert table.count('<tr class="ours">') == 2
    verdict = comparison.verdict(Ranked(found))
    assert re.search(r"KNN is .* of 3 on .*NAC is .* of 3 on ", verdict)
    head = check_page(html).text.split("Ranking")[0]
    assert verdict in head and len(re.findall(r"Near-OOD rank", head)) == 2
    assert re.search(r"^1  > KNN .*^2  > NAC ", summary_table(found), re.M | re.S)
    assert "**KNN**" in markdown(found) and "**NAC**" in markdown(found)


def test_numbers_in_pictures_are_not_cut():
    drawn = svg(Picture("t", "t", (100, 100), lambda c: c.text(0.123456, 0.5, "0.4975")), "key")
    assert ">0.4975<" in drawn.replace("\n", "")
    assert not re.search(r'="[^"]*\d\.\d{3}', drawn), "coordinates need no thousandths"
