"""Folders of results that are damaged: comparisons, rankings, analyses."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
from compare_toy import Toy, nac, study, write_data
from fuzz_case import HEALED, IDENTICAL, SILENT, VALID, Target
from mutations import mutate_bytes, mutate_document, mutate_tensors
from test_analysis import example
from test_rank import SPACE, domain, load, make

from nac_openood import Ranking, rank_checkpoints
from nac_openood.benchmark.run.conduct import conduct
from nac_openood.benchmark.run.results import Results
from nac_openood.evaluation.leave_one_out import RankedRun, RankedRuns
from nac_openood.report.analysis.write import write_analysis_page, write_finding
from nac_openood.report.csv_file import results_csv
from nac_openood.report.document import document
from nac_openood.report.markdown import render_markdown
from nac_openood.report.page import render
from nac_openood.report.ranked.write import ranked_summary, write_ranked_page, write_ranked_tables
from nac_openood.report.terminal import summary_table


def damage(rng: Random, path: Path) -> bool:
    """Change a file in one of the ways it can be; returns whether on purpose."""
    if rng.random() < 0.5:
        mutate_bytes(rng, path)
        return False
    (mutate_document if path.suffix == ".json" else mutate_tensors)(rng, path)
    return True


def told(results: Results) -> Any:
    """Everything but times and memory, and what was read of the files beside it."""
    rows = [
        dataclasses.replace(
            row, setup_seconds=None, ms_per_image=None, peak_mb=None, search=None, disturbed=False
        )
        for row in results.rows
    ]
    scores = [
        results.scores(row.run, row.method, each.name) for row in rows for each in results.sets
    ]
    kept = [None if each is None else each.score.tolist() for each in scores]
    return repr((rows, results.sets, results.runs, results.gallery, kept))


class Comparisons(Target):
    """A comparison that goes on in a folder with damaged files: what it says must not change."""

    name = "comparison, resumed"
    tried = "scores, features, notes and results of a comparison, damaged or removed; it is resumed"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = write_data(folder / "data")
        self.expected = told(self.run(folder / "out"))

    def run(self, out: Path) -> Results:
        return conduct(study(self.data, out, {"toy": Toy, "nac": nac}))

    def case(self, rng: Random, place: Path) -> Any:
        out = shutil.copytree(self.folder / "out", place / "out")
        found = [p for p in sorted(out.rglob("*")) if p.suffix in (".json", ".safetensors")]
        on_purpose = False
        for path in rng.sample(found, rng.choice((1, 2, 4))):
            if rng.random() < 0.15:
                path.unlink()
            else:
                on_purpose |= damage(rng, path)
        said = told(self.run(out))
        if said == self.expected:
            return HEALED
        # somebody who writes files with right checksums says what he likes
        return (VALID, "") if on_purpose else (SILENT, said)


class Reports(Target):
    """`results.json` of a comparison, as `nac-openood report` reads it."""

    name = "comparison, reported"
    tried = "entries and bytes of results.json and of the scores beside it; tables are made of them"
    weight = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        data = write_data(folder / "data")
        conduct(study(data, folder / "out", {"toy": Toy, "nac": nac}))
        self.expected = self.tables(folder / "out", whole=True)  # matplotlib makes its caches

    def tables(self, out: Path, *, whole: bool = False) -> Any:
        results = Results.load(out)
        if whole:
            render(document(results))
        text = render_markdown(document(results))
        return summary_table(results), text, results_csv(results), told(results)

    def case(self, rng: Random, place: Path) -> Any:
        out = shutil.copytree(self.folder / "out", place / "out")
        cells = sorted((out / "runs").rglob("*.safetensors"))
        path = out / "results.json" if rng.random() < 0.8 else rng.choice(cells)
        on_purpose = damage(rng, path)
        said = self.tables(out, whole=rng.random() < 0.15)
        if said == self.expected:
            return IDENTICAL
        if path.suffix == ".safetensors" and not on_purpose:  # these scores count as missing
            same = said[0] == self.expected[0] and said[2] == self.expected[2]
            noted = said[1] == self.expected[1] or "missing or damaged" in said[1]
            return HEALED if same and noted else (SILENT, "another table")
        return (VALID, "") if on_purpose else (SILENT, said[0])


class Rankings(Target):
    """Readings and rankings of checkpoints: loaded, shown, and resumed."""

    name = "ranking"
    tried = (
        "readings of checkpoints (the ranking is resumed), ranking.json and results.json (shown)"
    )
    weight = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.domains = {
            "train": {"a": domain(40, 0.0, 1), "b": domain(31, 0.4, 2)},
            "val": {"a": domain(30, 0.0, 3)},
            "test": {"c": domain(50, 1.0, 5)},
        }
        for step in range(1, 5):
            torch.manual_seed(step)
            torch.save(make().state_dict(), folder / f"step_{step}.pt")
        ranking = self.rank(folder / "out")
        runs = RankedRuns((RankedRun("c", 0, ranking),), "own", "mlp", notes=("a",))
        runs.save(folder / "out")
        write_ranked_page(runs, folder)  # matplotlib makes its caches
        self.expected = ranking

    def rank(self, out: Path) -> Ranking:
        given = sorted(map(str, self.folder.glob("*.pt")))
        return rank_checkpoints(
            given, load=load, layer="1", space=SPACE, out=out, progress=False, **self.domains
        )

    def case(self, rng: Random, place: Path) -> Any:
        out = shutil.copytree(self.folder / "out", place / "out")
        found = [*sorted((out / "readings").iterdir()), out / "ranking.json", out / "results.json"]
        path = rng.choice(found)
        on_purpose = damage(rng, path)
        if path.suffix == ".safetensors":
            same = self.rank(out) == self.expected
            return HEALED if same else (VALID, "") if on_purpose else (SILENT, "another ranking")
        runs = RankedRuns.load(out)
        ranked_summary(runs)
        write_ranked_tables(runs, out)
        if rng.random() < 0.1:
            write_ranked_page(runs, out)
        same = Ranking.load(out) == self.expected == runs.runs[0].ranking
        if same and runs == RankedRuns.load(self.folder / "out"):
            return IDENTICAL
        return (VALID, "") if on_purpose else (SILENT, "another ranking")


class Findings(Target):
    """What analyses found, as the page is made of it: a damaged one is left out."""

    name, tried = "analysis", "entries and bytes of the JSON of analyses; the page is made of them"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "out").mkdir()
        self.found = [example(), example(kind="params", title="Another title", figures=[])]
        for each in self.found:
            write_finding(each, folder / "out")
        write_analysis_page(folder / "out")

    def case(self, rng: Random, place: Path) -> Any:
        out = shutil.copytree(self.folder / "out", place / "out")
        on_purpose = damage(rng, out / rng.choice(("layers.json", "params.json", "params.json")))
        text = write_analysis_page(out).read_text()
        shown = [each.title in text and each.sentence in text for each in self.found]
        if all(shown):
            return VALID if on_purpose else IDENTICAL
        return HEALED if any(shown) else (VALID, "") if on_purpose else (SILENT, "nothing shown")
