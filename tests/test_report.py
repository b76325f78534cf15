"""Tables and page of a comparison: numbers, escaping, edge cases."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from processes import run_code
from report_example import ERROR, METHODS, RUNS, SETS, build, without_rows
from sklearn.metrics import roc_auc_score

from nac_openood import NACError
from nac_openood.benchmark.run.results import FAR, METRICS, NEAR, Results, Row, SetInfo
from nac_openood.benchmark.run.store import method_folder, write_scores
from nac_openood.cli import main
from nac_openood.detector.outcomes import Scores
from nac_openood.report.blocks import Picture
from nac_openood.report.comparison import comparison_document, results_csv, summary_table, verdict
from nac_openood.report.drawing import svg
from nac_openood.report.formatting import SHOWN, metric, ordinal
from nac_openood.report.methods import RankedMethod, ranked_methods
from nac_openood.report.render import render_markdown, render_page
from nac_openood.report.scores import COMBINED, layer_aurocs, roc_points, run_scores
from nac_openood.report.write import write_page, write_tables
from nac_openood.tables import Cell

pytestmark = pytest.mark.usefixtures("drawn_once")
FEW = ("msp", "knn", "nac", "gram")
TWO = (SETS[0], SETS[2], SETS[4])  # pictures take their time: a near and a far set will do
VOID = {"meta", "link", "img", "br", "hr", "input"}


def page(results: Results) -> str:
    return render_page(comparison_document(results))


def markdown(results: Results) -> str:
    return render_markdown(comparison_document(results))


class Seen(HTMLParser):
    """Tags, ids, links, text and whether elements close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Optional[str]]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data + " "

    def all(self, name: str) -> list[dict[str, Optional[str]]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def check_page(text: str) -> Seen:
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
    targets = [a["href"] for a in seen.all("a")]
    assert all(t and t[1:] in ids for t in targets)
    assert all(a.get("alt") for a in seen.all("img"))
    assert all(a.get("aria-label") and a.get("role") == "img" for a in seen.all("svg"))
    assert len(seen.all("script")) == 1 and len(seen.all("h1")) == 1
    assert not re.search(r"\b(nan|inf|None|undefined)\b", seen.text), "a missing number shows"
    for attributes in seen.all("svg"):
        assert not re.search(r"\b(nan|inf|None)\b", attributes["aria-label"] or "")
    assert not re.search(r'(?:d|x|y|transform)="[^"]*nan', text)
    return seen


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return build(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def whole_page(results: Results) -> str:
    return page(results)


def test_csv_holds_every_number(results: Results) -> None:
    lines = list(csv.DictReader(io.StringIO(results_csv(results))))
    cells = {(r.method, r.run, d): (r, m) for r in results.rows for d, m in r.metrics.items()}
    worked = [line for line in lines if line["status"] == "ok"]
    assert len(worked) == len(cells) == 20 * 2 * 8
    for line in worked:
        row, metrics = cells[line["method"], line["run"], line["dataset"]]
        assert all(float(line[str(metric(m))]) == metrics[m] for m in (*METRICS, "FPR@95_IN"))
        assert float(line["ms_per_image"]) == row.ms_per_image
        assert line["implementation"] == row.implementation
    failed = [line for line in lines if line["method"] == "gram"]
    assert [line["error"] for line in failed] == [ERROR, ERROR]
    assert {line["AUROC"] for line in failed} == {""}
    assert {"FPR@95 (OOD found)", "FPR@95 (ID kept)"} < set(lines[0])


def test_markdown_ranks_and_tells_all(results: Results) -> None:
    text = markdown(results)
    summary = text.split("## Ranking")[1].split("##")[0]
    order = [s for s in ranked_methods(results) if s.status == "ok"]
    lines = [line for line in summary.splitlines() if line.startswith("| ")][2:]
    assert len(lines) == len(order) == 20
    for place, (line, s) in enumerate(zip(lines, order), 1):
        cells = [c.strip(" *") for c in line.strip("|").split("|")]
        wanted = [str(Cell.of(results.value(s.method, g, m))) for g in (NEAR, FAR) for m in SHOWN]
        assert cells[:8] == [str(place), s.title, *wanted]
    assert "<script>" not in text and "&lt;script&gt;" in text
    for part in (results.command, "K = 50", "OpenGAN needs a trained GAN", "51.20 %", "84.60"):
        assert part in text


def find(order: list[RankedMethod], method: str) -> RankedMethod:
    return next(s for s in order if s.method == method)


def test_ranked_methods(results: Results) -> None:
    order = ranked_methods(results)
    aurocs = [results.value(s.method, NEAR, "AUROC") for s in order if s.status == "ok"]
    means = [v.mean for v in aurocs if v is not None]
    assert means == sorted(means, reverse=True)
    assert [s.ranks[NEAR] for s in order[:20]] == list(range(1, 21))
    assert [s.method for s in order[20:]] == ["gram", "opengan"]
    nac = find(order, "nac")
    assert nac.ranks[NEAR] == 2 and nac.ranks[FAR] == 3
    assert verdict(results, order).startswith("NAC is 2nd of 20 on near-OOD (AUROC 87.06, 2.21")


def test_equal_values_share_a_place(results: Results) -> None:
    twin = [replace(r, method="twin", title="Twin") for r in results.rows if r.method == "nac"]
    more = replace(results, rows=(*results.rows, *twin))
    order = ranked_methods(more)
    assert [find(order, m).ranks[NEAR] for m in ("nac", "twin", "rmds")] == [2, 2, 4]
    assert "NAC is tied for 2nd of 21 on near-OOD" in verdict(more, order)


def test_ordinals() -> None:
    found = [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111)]
    assert found == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "101st", "111th"]  # fmt: skip


def test_the_terminal_table_fits(results: Results) -> None:
    text = summary_table(results)
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"^ 2  > NAC +87\.06 ± 0\.52", text, re.M)
    assert "Gram failed (OpenOOD 1.5): RuntimeError" in text
    long = build_rows(results, title="A method with a very long name", error="x" * 300)
    assert max(map(len, summary_table(long).splitlines())) <= 100


def build_rows(results: Results, **changes: Any) -> Results:
    return replace(results, rows=tuple(replace(r, **changes) for r in results.rows))


def test_the_page_shows_everything(whole_page: str, results: Results) -> None:
    seen = check_page(whole_page)
    for title, _, _ in METHODS.values():
        assert title in seen.text
    for key in ("ranking", "bars", "datasets", "scores", "roc", "times", "layers", "gallery",
                "settings", "paper", "about"):  # fmt: skip
        assert f'<section id="{key}"' in whole_page
    assert len(seen.all("svg")) == 6 + 6 + 6 + 2 + 1 + 4
    assert len(seen.all("img")) == 12
    assert results.command in seen.text
    assert "51.20 %, within 50 ± 5 %" in seen.text
    assert verdict(results, ranked_methods(results)) in seen.text


def test_numbers_of_the_page_are_those_of_the_results(whole_page: str, results: Results) -> None:
    table = whole_page.split('<section id="ranking"')[1].split("</table>")[0]
    for s in ranked_methods(results)[:20]:
        row = table.split(f'data-value="{s.title}"')[1].split("</tr>")[0]
        found = re.findall(r'data-value="([^"]*)"', row)
        wanted = [results.value(s.method, g, m) for g in (NEAR, FAR) for m in SHOWN]
        assert [float(v) for v in found[:6]] == [w.mean for w in wanted if w is not None]
        assert s.implementation in row
    assert re.findall(r'medal m\d">(\w+)<', table) == ["1st", "1st", "2nd", "3rd", "3rd", "2nd"]


def test_text_from_data_is_escaped(whole_page: str) -> None:
    seen = check_page(whole_page)
    assert "<script>alert" not in whole_page and ERROR in seen.text
    assert "<img src=x>" not in whole_page and "cifar10/<img src=x>&0.png" in seen.text


@pytest.mark.parametrize("evil", ["<b>&\"'", "$x_1^", "</script><svg onload=x>", "_hidden", "a|b"])
def test_names_of_any_kind(tmp_path: Path, evil: str) -> None:
    def change(r: Results) -> Results:
        rows = tuple(replace(x, title=evil, implementation=evil, hyperparameters={evil: evil}) for x in r.rows)  # fmt: skip
        return replace(r, rows=rows, command=evil, arch=evil, notes=(evil,), versions={evil: evil})

    found = build(tmp_path, change, methods=FEW, sets=TWO)
    seen = check_page(page(found))
    assert evil in seen.text
    assert not [a for tag, a in seen.tags if tag == "svg" and "onload" in a]
    outside_the_code_block = "".join(markdown(found).split("```")[::2])
    assert "<b>" not in outside_the_code_block and "<svg" not in outside_the_code_block


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    found = build(tmp_path / "a", methods=FEW, sets=TWO)
    written = [*write_tables(found), write_page(found)]
    assert [p.name for p in written] == ["results.csv", "results.md", "report.html"]
    first = [p.read_bytes() for p in written]
    code = (
        "import sys; from nac_openood.benchmark.run.results import Results;"
        "from nac_openood.report.write import write_page, write_tables;"
        "results = Results.load(sys.argv[1]); write_tables(results); write_page(results)"
    )
    assert run_code(code, found.folder).returncode == 0
    assert [p.read_bytes() for p in written] == first
    assert {p.name for p in found.folder.iterdir() if p.is_file()} == {
        "results.json", "results.csv", "results.md", "report.html",
    }  # fmt: skip


def drop(*names: str) -> Any:
    return lambda r: replace(r, **dict.fromkeys(names, ()))


def failed(r: Results) -> Results:
    return build_rows(r, status="failed", error="broken", metrics={})


def not_numbers(r: Results) -> Results:
    bad = {s: dict.fromkeys(METRICS, float("nan")) for s in ("tin", "mnist", NEAR, FAR)}
    rows = [replace(x, metrics=bad, ms_per_image=float("nan")) if x.method == "knn" else x for x in r.rows]  # fmt: skip
    return replace(r, rows=tuple(rows))


EDGES: dict[str, tuple[dict[str, Any], str]] = {
    "one run": ({"runs": RUNS[:1]}, "1 checkpoint "),
    "no near sets": ({"sets": (SETS[0], SETS[4])}, "on far-OOD"),
    "no far sets": ({"sets": SETS[:2]}, "on near-OOD"),
    "covariate shift": (
        {"sets": (SETS[0], SetInfo("imagenet_c", "csid", 100), *TWO[1:])},
        "ID under covariate shift",
    ),
    "no NAC": ({"change": lambda r: without_rows(r, "nac")}, "NAC is not among them"),
    "only NAC": ({"methods": ("nac",)}, "It is the only method with a result"),
    "all failed": ({"change": failed}, "No method produced a result"),
    "no rows": ({"loaded": drop("rows")}, "No method produced a result"),
    "no gallery": ({"change": drop("gallery", "paper", "notes")}, "NAC is"),
    "missing scores": ({"scores": False}, "The scores are not in this folder"),
    "not a number": ({"loaded": not_numbers}, "NAC is"),
    "no sets": ({"loaded": drop("sets")}, "NAC is"),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(tmp_path: Path, name: str) -> None:
    arguments, said = EDGES[name]
    arguments = {"methods": FEW, "sets": TWO, **arguments}
    change = arguments.pop("loaded", lambda r: r)  # to what no file of a comparison holds
    found = change(build(tmp_path, **arguments))
    seen = check_page(page(found))
    assert said in " ".join(seen.text.split())
    for text in (markdown(found), results_csv(found), summary_table(found)):
        assert not re.search(r"\b(nan|None)\b", text)


def test_nac_failed_is_said(tmp_path: Path) -> None:
    def change(r: Results) -> Results:
        rows = [replace(x, status="failed", error="no <gpu>", metrics={}) if x.method == "nac" else x for x in r.rows]  # fmt: skip
        return replace(r, rows=tuple(rows))

    found = build(tmp_path, change, methods=FEW, sets=TWO)
    assert "NAC has no result (no <gpu>); 2 methods do." in check_page(page(found)).text


def test_a_run_that_failed_is_told(tmp_path: Path) -> None:
    def change(r: Results) -> Results:
        rows = [replace(x, status="failed", error="too hot", metrics={}) if (x.method, x.run) == ("knn", "s1") else x for x in r.rows]  # fmt: skip
        return replace(r, rows=tuple(rows))

    found = build(tmp_path, change, methods=FEW, sets=TWO)
    told = "KNN: 1 of 2 runs succeeded (s1: too hot)"
    assert told in check_page(page(found)).text
    assert f"- {told}" in markdown(found)


@pytest.mark.parametrize("value", [0.0, 1.0, -3e8, 1e-30])
def test_constant_scores(tmp_path: Path, value: float) -> None:
    found = build(tmp_path, methods=FEW, sets=TWO)
    for info in TWO:
        same = np.full(info.images, value)
        scored = Scores(same, same.astype(int), same.astype(int), {"avgpool": same.copy()})
        write_scores(method_folder(tmp_path, "s0", "nac") / f"{info.name}.safetensors", scored, {})
    check_page(page(found))


def test_scores_that_are_no_numbers(tmp_path: Path) -> None:
    found = build(tmp_path, methods=FEW, sets=TWO)
    for name, value in (("tin", np.nan), ("svhn", np.inf)):
        path = method_folder(tmp_path, "s0", "nac") / f"{name}.safetensors"
        write_scores(path, Scores(np.full(9, value), np.zeros(9), np.zeros(9)), {})
    check_page(page(found))


def test_a_damaged_or_foreign_picture_is_left_out(tmp_path: Path) -> None:
    def change(r: Results) -> Results:
        first, second, third, *rest = r.gallery
        (tmp_path / third.file).write_bytes(b"<svg onload=x>")
        first, second = replace(first, file="../outside.png"), replace(second, file="none.png")
        return replace(r, gallery=(first, second, third, *rest))

    (tmp_path.parent / "outside.png").write_bytes(b"\x89PNG secret")
    assert len(check_page(page(build(tmp_path, change, methods=FEW, sets=TWO))).all("img")) == 9


def test_layers_alone_and_together(results: Results) -> None:
    sample = run_scores(results, "nac")
    assert sample is not None
    aurocs = layer_aurocs(sample)
    assert set(aurocs) == {"avgpool", "layer1", "layer2", "layer3", COMBINED}
    row = next(r for r in results.rows if r.method == "nac" and r.run == sample.run)
    for dataset, value in aurocs[COMBINED].items():
        assert value == pytest.approx(row.metrics[dataset]["AUROC"], abs=1e-9)


@pytest.mark.parametrize("size", [1, 30, 5000])
def test_roc_points_are_few_and_true(size: int) -> None:
    draw = np.random.default_rng(0)
    inside, outside = draw.normal(1, 1, size), draw.normal(0, 1, size + 3)
    false, true = roc_points(inside, outside)
    assert len(false) <= 200
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 100, 100)
    assert (np.diff(false) >= 0).all() and (np.diff(true) >= 0).all()
    area = ((true[1:] + true[:-1]) / 2 * np.diff(false)).sum() / 1e4
    labels = np.r_[np.ones(size), np.zeros(size + 3)]
    assert area == pytest.approx(roc_auc_score(labels, np.r_[inside, outside]), abs=2e-3)


def test_search_with_missing_keys(tmp_path: Path) -> None:
    def change(r: Results) -> Results:
        told = [
            {"points": 3, "left_out": 2},
            {"guard": 0.6, "guard_threshold": 0.05},
            {"guard": None, "auroc": None},
        ]
        rows = [replace(x, search=told[i % 3]) for i, x in enumerate(r.rows)]
        return replace(r, rows=tuple(rows))

    text = check_page(page(build(tmp_path, change, methods=FEW, sets=TWO))).text
    assert "60.00 %, outside 50 ± 5 %" in text
    assert "3 points, 2 points left out that this data does not allow" in text


def test_without_matplotlib_the_tables_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = build(tmp_path, methods=FEW, sets=TWO)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NACError, match=r"pip install 'nac-openood\[plot\]'"):
        write_page(found)
    assert main(["report", str(tmp_path)]) == 1
    assert (tmp_path / "results.csv").is_file() and (tmp_path / "results.md").is_file()
    told = capsys.readouterr()
    assert "results.csv, results.md" in told.out and "no report.html" in told.err


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, methods=FEW, sets=TWO)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert main(["report", str(tmp_path), "--open"]) == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
    told = capsys.readouterr().out
    assert "> NAC" in told and "results.csv, results.md, report.html" in told
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert main(["report", str(tmp_path), "--open"]) == 0
    assert "no browser found" in capsys.readouterr().err


def test_the_command_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "expected the folder of a comparison" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert "nac-openood report results/cifar10 --open" in capsys.readouterr().out


def test_rows_need_no_more_than_their_names(tmp_path: Path) -> None:
    """A row as short as the contract allows."""

    def change(r: Results) -> Results:
        row = Row("knn", "KNN", "s0", "mine", "ok", metrics={NEAR: {"AUROC": 50.0}})
        return replace(r, rows=(row,), gallery=())

    text = check_page(page(build(tmp_path, change, methods=FEW, sets=TWO, scores=False))).text
    assert "1 method compared; NAC is not among them." in text


CONVENTIONS = ("FPR@95 (OOD found) is the share of ID", "FPR@95 (ID kept) is the share of OOD")


def renderings(found: Results) -> list[str]:
    """Page, Markdown and terminal as running text."""
    texts = (check_page(page(found)).text, markdown(found), summary_table(found))
    return [" ".join(text.split()) for text in texts]


def without_metric(r: Results, name: str, methods: tuple[str, ...]) -> Results:
    rows = []
    for row in r.rows:
        kept = {d: {k: v for k, v in m.items() if k != name} for d, m in row.metrics.items()}
        rows.append(replace(row, metrics=kept) if row.method in methods else row)
    return replace(r, rows=tuple(rows))


def test_both_conventions_of_fpr_are_named(tmp_path: Path) -> None:
    for text in renderings(build(tmp_path, methods=FEW, sets=TWO)):
        assert all(told in text for told in CONVENTIONS)
    text = markdown(Results.load(tmp_path))
    head = text.split("| # |")[1].splitlines()[0]
    assert "Near-OOD FPR@95 (OOD found) | Near-OOD FPR@95 (ID kept)" in head
    assert "FPR@95 (OOD found) 34.00 %, validation FPR@95 (ID kept) 27.00 %" in text


def test_old_results_have_one_convention(tmp_path: Path) -> None:
    def earlier(r: Results) -> Results:
        old = without_metric(r, "FPR@95_IN", FEW)
        searches = [{k: v for k, v in (x.search or {}).items() if k != "fpr95_in"} for x in r.rows]
        return replace(old, rows=tuple(map(lambda x, s: replace(x, search=s), old.rows, searches)))

    for text in renderings(build(tmp_path, earlier, methods=FEW, sets=TWO, scores=False)):
        assert CONVENTIONS[0] in text and "ID kept" not in text


def test_a_method_without_a_metric_has_a_dash(tmp_path: Path) -> None:
    found = build(
        tmp_path, lambda r: without_metric(r, "FPR@95_IN", ("knn",)), methods=FEW, sets=TWO
    )
    check_page(page(found))
    row = next(line for line in markdown(found).splitlines() if "| KNN |" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [cells[i] for i in (4, 7)] == ["\u2013", "\u2013"] and "\u2013" not in cells[2]


def test_notes_come_first(tmp_path: Path) -> None:
    note = "OOD validation: surrogates <made> of ID images"
    found = build(tmp_path, lambda r: replace(r, notes=(note,)), methods=FEW, sets=TWO)
    html = page(found)
    assert note in check_page(html).text.split("Ranking")[0]
    assert "surrogates &lt;made&gt;" in html.split("<nav")[0]
    assert "surrogates &lt;made&gt;" in markdown(found).split("## Ranking")[0]
    assert f"Note: {note}" in summary_table(found)
    assert "uncertain" not in html


def test_a_disturbed_run_is_said_beside_the_times(tmp_path: Path) -> None:
    found = build(tmp_path, methods=FEW, sets=TWO)
    knn = next(r for r in found.rows if r.method == "knn")
    object.__setattr__(knn, "disturbed", True)  # `Row` may be older than that
    told = "Times marked ~ are uncertain: the machine was busy"
    for text in renderings(found):
        assert told in text and re.search(r"KNN .*~2\.92 ", text)
        assert not re.search(r"(MSP|NAC)[^~]* ~", text.split("KNN")[0])
    html = page(found)
    for key in ("ranking", "times"):
        section = html.split(f'<section id="{key}"')[1].split("</section>")[0]
        assert told in section and section.count("~") == 2


def test_samples_without_a_picture(tmp_path: Path) -> None:
    def change(r: Results) -> Results:
        return replace(r, gallery=tuple(replace(e, file=None) for e in r.gallery))  # type: ignore[arg-type]

    found = build(tmp_path, change, methods=FEW, sets=TWO)
    seen = check_page(page(found))
    assert not seen.all("img")
    for example in found.gallery:
        assert example.name in seen.text and f"{example.score:.3f}" in seen.text


def test_every_method_of_ours_is_highlighted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nac_openood.report.methods.OURS", {"nac", "knn"})
    found = build(tmp_path, methods=FEW, sets=TWO)
    html = page(found)
    table = html.split('<section id="ranking"')[1].split("</section>")[0]
    assert table.count('<tr class="ours">') == 2
    told = verdict(found, ranked_methods(found))
    assert re.search(r"KNN is .* of 3 on .*NAC is .* of 3 on ", told)
    head = check_page(html).text.split("Ranking")[0]
    assert told in head and len(re.findall(r"Near-OOD rank", head)) == 2
    assert re.search(r"^1  > KNN .*^2  > NAC ", summary_table(found), re.M | re.S)
    assert "**KNN**" in markdown(found) and "**NAC**" in markdown(found)


def test_modules_of_the_report_import_no_matplotlib() -> None:
    code = (
        "import pkgutil, importlib, sys, nac_openood.report as report;"
        "names = [m.name for m in pkgutil.walk_packages(report.__path__, 'nac_openood.report.')];"
        "[importlib.import_module(name) for name in names];"
        "print(len(names), 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    number_of_modules, drawn = done.stdout.split()
    assert int(number_of_modules) > 10 and drawn == "False"


def test_numbers_in_pictures_are_not_cut():
    def paint(canvas):
        canvas.text(0.123456, 0.5, "0.4975")

    drawn = svg(Picture("ticks", "ticks", (100, 100), paint), "key")
    assert ">0.4975<" in drawn.replace("\n", "")
    assert not re.search(r'="[^"]*\d\.\d{3}', drawn), "coordinates need no thousandths"
