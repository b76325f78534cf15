"""Everything that writes, interrupted at each step: the old file is whole, or the new one is."""

import os
import shutil
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SmallNet
from interruptions import ctrl_c, fault, full_disk, in_a_child, kill, small_files

from nac_openood import NACDetector, files, tensor_files
from nac_openood.analysis.finding import Finding
from nac_openood.benchmark.run import store
from nac_openood.benchmark.run.results import Results
from nac_openood.core.layer_config import LayerConfig
from nac_openood.core.reading import Reading
from nac_openood.demo.embedded import EmbeddedImages, write_openood
from nac_openood.detector.drift import DriftMonitor
from nac_openood.detector.outcomes import Scores
from nac_openood.detector.readings import Readings
from nac_openood.errors import FileError
from nac_openood.evaluation.monitor import CoverageMonitor
from nac_openood.evaluation.ranking import RankedRun, RankedRuns, Ranking
from nac_openood.report.checkpoints import ranked_csv, ranked_document
from nac_openood.report.comparison import write_tables
from nac_openood.report.figures import draw_landscape
from nac_openood.report.findings import write_finding
from nac_openood.report.render import write_results
from nac_openood.search.recipe import ReadingSet
from nac_openood.search.run import search, write_config, write_report
from nac_openood.sources.sets import Datasets
from nac_openood.training import SaveCheckpoints

OLD = Path(__file__).parent / "data" / "v0.1"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and limits of the system")


def net(n):
    torch.manual_seed(n)
    return SmallNet().eval()


def pictures(n):
    return torch.randn(20, 3, 9, 9, generator=torch.Generator().manual_seed(n))


def readings(n):
    rows = torch.full((6, 3), float(n))
    return Readings({"a": Reading(rows, rows.clone())}, torch.arange(6) % 2, torch.arange(6) % 2)


def runs(n):
    ranking = replace(Ranking.load(OLD / "rank"), layer=f"layer{n}")
    return RankedRuns((RankedRun("a", 0, ranking),))


def results(folder, n):
    return replace(Results.load(OLD / "compare"), folder=folder, command=f"command {n}")


@cache
def found(n):
    read = ReadingSet.load(OLD / "readings")
    name = next(iter(read.fit))
    return search(
        read.fit, read.id_val, read.ood_val, layers={name: LayerConfig(full_count=n)}, sweep={},
        guard=None, progress=False,
    )  # fmt: skip


def sets(n):
    pixels = np.full((2, 32, 32, 3), n, np.uint8)
    images = EmbeddedImages(pixels, np.array([0, 1]), ["d/0", "d/1"])
    return Datasets("embedded", 8, *[images] * 4, {}, {}, {}, (1.0, 1.0, 1.0))


def monitor(folder, n):
    batch = pictures(1), torch.zeros(20).long()
    CoverageMonitor([batch], every=1, path=folder / "best.pt")(1, net(n))


def drift_monitor(folder, n):
    watching = DriftMonitor(np.arange(9))
    watching.update_scores(np.arange(10 * n))
    watching.save(folder / "x")


#: By name: writes something that depends on a number into a folder.
WRITERS = {
    "text": lambda folder, n: files.write_text(folder / "x", f"{n}" * 9000),
    "tensors": lambda folder, n: tensor_files.write_tensors(
        folder / "x", "k", 1, {"a": torch.full((900,), n)}, {"n": n}
    ),
    "spool": lambda folder, n: Readings.save_parts(folder / "x", [readings(n), readings(n)]),
    "detector": lambda folder, n: NACDetector(net(n), ["avgpool"], rule="nac").fit([pictures(n)]).save(folder / "x"),
    "set of readings": lambda folder, n: ReadingSet(*(readings(n) for _ in range(3))).save(folder),
    "scores": lambda folder, n: store.write_scores(
        folder / "x",
        store.StoredScores(Scores(np.full(9, float(n)), np.arange(9), np.arange(9)), {"n": n}),
    ),
    "note": lambda folder, n: store.write_note(folder / "x.json", {"n": [n] * 99}),
    "results": lambda folder, n: results(folder, n).save(),
    "tables": lambda folder, n: write_tables(results(folder, n)),
    "runs": lambda folder, n: runs(n).save(folder),
    "tables of runs": lambda folder, n: write_results(
        folder, ranked_csv(runs(n)), ranked_document(runs(n))
    ),
    "finding": lambda folder, n: write_finding(
        replace(Finding.load(OLD / "analyze/layers.json"), title=f"T{n}"), folder
    ),
    "config": lambda folder, n: write_config(folder / "nac.yml", found(n), {}),
    "search": lambda folder, n: write_report(folder / "search.json", found(n), {}, {}),
    "landscape": lambda folder, n: draw_landscape(folder / "x.png", found(n)),
    "checkpoint": lambda folder, n: SaveCheckpoints(folder)(1, net(n)),
    "monitor": monitor,
    "drift monitor": drift_monitor,
    "embedded images": lambda folder, n: write_openood(folder, sets(n)),
}  # fmt: skip
#: These replace folders, or remove a note before they begin: without it they are incomplete.
IN_PARTS = {
    "set of readings": "readings.json",
    "embedded images": "benchmark_imglist/embedded/train_embedded.txt",
}


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def start(tmp_path):
    """Writes versions 2 and 1 into a folder; returns the folder and what they look like."""

    def begin(write):
        expected = {}
        for number in (2, 1):  # in one folder, as names of files may be in the content
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            (tmp_path / "out").mkdir()
            write(tmp_path / "out", number)
            expected[number] = content(tmp_path / "out")
        assert expected[1] != expected[2] and expected[1].keys() == expected[2].keys()
        return tmp_path / "out", expected[1], expected[2]

    return begin


def begun_again(folder, old):
    shutil.rmtree(folder)
    for name, whole in old.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(whole)


def check(folder, old, new, name, *, litter=False):
    """Every file is the old or the new one, whole, and there is no other."""
    found = content(folder)
    if litter:  # of a process that was killed; nobody takes these for results
        found = {n: whole for n, whole in found.items() if not any(
            part.startswith(".") and part != ".manifest.json" for part in n.split("/"))}  # fmt: skip
    for path, whole in found.items():
        assert whole in (old.get(path), new.get(path)), path
    lost = set(old) - set(found)
    assert not lost or name in IN_PARTS, lost
    if lost or (any(found[path] != old[path] for path in found) and name in IN_PARTS):
        # parts of both: without its last file it counts as incomplete
        assert found in (new, old) or IN_PARTS[name] not in found


@pytest.mark.parametrize("strike", [full_disk, ctrl_c], ids=["full disk", "ctrl-c"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_fault_at_every_step(start, name, strike):
    write = WRITERS[name]
    folder, old, new = start(write)
    for step in range(1, 60):
        begun_again(folder, old)
        message = (FileError, KeyboardInterrupt, UserWarning)  # a cache only warns
        try:
            with fault(folder, step, strike) as struck:
                write(folder, 2)
        except message:
            check(folder, old, new, name)
            continue
        if struck():  # cleaning up what is no longer needed may fail
            check(folder, old, new, name, litter=strike is ctrl_c)
            continue
        assert content(folder) == new and step > 2
        return
    pytest.fail("it never ends")


@pytest.mark.parametrize("name", ["text", "tensors", "spool", "set of readings"])
def test_a_process_killed_at_every_step(start, name):
    write = WRITERS[name]
    folder, old, new = start(write)
    for step in range(1, 60):
        begun_again(folder, old)

        def work(step=step):
            with fault(folder, step, kill):
                write(folder, 2)

        code = in_a_child(work)
        if code == 0:
            assert content(folder) == new and step > 2
            return
        assert code == -signal.SIGKILL
        check(folder, old, new, name, litter=True)
        write(folder, 2)  # and the next one succeeds
        assert {k: v for k, v in content(folder).items() if k in new} == new
    pytest.fail("it never ends")


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "embedded images"])
def test_a_disk_that_is_nearly_full(start, name):
    folder, old, new = start(WRITERS[name])
    largest = max(map(len, new.values()))
    for most in (0, 1, largest // 2, largest - 1):
        begun_again(folder, old)
        with pytest.raises((FileError, UserWarning), match="cannot|too large"), small_files(most):
            WRITERS[name](folder, 2)
        check(folder, old, new, name)
