"""Everything that is fuzzed: our files, inputs, results, command lines.

`scripts/fuzz.py` runs it long, `test_fuzz.py` short. A target is a function that makes in a folder
what all of its cases share, and returns the case; `TARGETS`, at the end, is the table of them.
"""

import contextlib
import csv
import importlib
import io
import os
import shutil
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Callable

import numpy as np
import torch
import yaml
from compare_toy import Toy, nac, plain, study
from fuzz_case import FOREIGN, HEALED, IDENTICAL, REFUSED, SILENT, VALID, Case, Outcome, Target
from mutations import ODD, bytes_mutated, mutate_bytes, text_mutated, value_mutated
from openood_tiny import write_benchmark
from PIL import Image
from safetensors.torch import save_file
from small_programs import write_programs
from test_rank import SPACE, domain, load, make

from nac_openood import NACDetector, Ranking, rank_checkpoints
from nac_openood.analysis.finding import Finding
from nac_openood.benchmark.run.compare import run_study
from nac_openood.benchmark.run.results import Results
from nac_openood.cli import build_parser, main
from nac_openood.detector.checked_fit import merge_shards
from nac_openood.detector.config import read_config
from nac_openood.errors import NACError
from nac_openood.evaluation.ranking import RankedRun, RankedRuns
from nac_openood.network.probe import classify
from nac_openood.report.checkpoints import ranked_csv, ranked_document, ranked_summary
from nac_openood.report.comparison import comparison_document, results_csv, summary_table
from nac_openood.report.findings import write_analysis_page
from nac_openood.report.render import render_markdown, render_page
from nac_openood.search.recipe import ReadingSet
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.images import ImageError, rgb_image
from nac_openood.sources.networks import build, network_of
from nac_openood.sources.readers import labelled_samples, listed_images, unlabelled_samples
from nac_openood.sources.samples import readable_images
from nac_openood.sources.transforms import read_settings

OLD = Path(__file__).parent / "data" / "v0.1"
X = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
CONFIGS = Path(__file__).parents[1] / "configs/postprocessors"
TRANSFORM = "resize: 36\ncrop: 32\nmean: [0.5, 0.4, 0.3]\nstd: [0.25, 0.2, 0.3]\ngray: false\n"


def judged(found: Any, expected: Any, same: str = IDENTICAL) -> Outcome:
    """Damage must be noticed."""
    if found == expected:
        return Outcome(same)
    return Outcome(SILENT, f"other answers: {str(found)[:500]}")


# ---- what people write


def read_transform(path: Path) -> Any:
    settings = read_settings(path)
    settings.transform()
    return settings


def settings(folder: Path, texts: list[str], read: Callable[[Path], Any]) -> Case:
    """A change of the document must change the settings, or be refused."""

    def case(rng: Random, work: Path) -> Any:
        text = rng.choice(texts)
        original = yaml.safe_load(text)
        (work / "whole.yml").write_text(text)
        content = rng.choice((
            lambda: bytes_mutated(rng, text.encode()),
            lambda: text_mutated(rng, text).encode(),
            lambda: yaml.safe_dump(value_mutated(rng, original)).encode(),
        ))()  # fmt: skip
        (work / "x.yml").write_bytes(content)
        found = read(work / "x.yml")
        if found != read(work / "whole.yml"):
            return VALID
        same = _within(yaml.safe_load(content.decode()), original)
        return IDENTICAL if same else Outcome(SILENT, content.decode())

    return case


def _within(value: Any, whole: Any) -> bool:
    """Whether everything in a YAML value is in `whole`: what is missing has a default.

    The outermost key of a config may be left out.
    """
    if isinstance(whole, dict) and isinstance(value, dict):
        if "postprocessor" not in value:
            whole = whole.get("postprocessor", whole)
        return all(not v or (k in whole and _within(v, whole[k])) for k, v in value.items())
    return value == whole and isinstance(value, bool) == isinstance(whole, bool)


def image_list(path: Path, content: bytes) -> tuple[Any, Any]:
    """What OpenOOD's image list is read as, and what its lines say."""
    found = listed_images(path, path.parent, lambda image: image)
    lines = [line.strip() for line in content.decode("utf-8-sig").splitlines() if line.strip()]
    expected = [(line.rsplit(" ", 1)[0], int(line.rsplit(" ", 1)[1])) for line in lines]
    return list(zip(found.names, found.labels.tolist())), expected


def csv_table(path: Path, content: bytes) -> tuple[Any, Any]:
    """How many samples and labels a CSV file is read as, and how many rows it has."""
    found = labelled_samples(path, lambda image: image)
    rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    n = len([row for row in rows if row][1:])
    names = getattr(found, "names", None) or getattr(found, "texts", [])
    return [len(found.labels), len(names)], [n, n]


def lists(folder: Path, texts: list[str], read: Callable[..., tuple[Any, Any]]) -> Case:
    """What is accepted must be what the lines say."""

    def case(rng: Random, work: Path) -> Any:
        text = rng.choice(texts)
        damaged = text_mutated(rng, text).encode()
        content = damaged if rng.random() < 0.5 else bytes_mutated(rng, text.encode())
        (work / "list.csv").write_bytes(content)
        found, expected = read(work / "list.csv", content)
        if found != expected:
            return Outcome(SILENT, f"{found} of {expected}")
        return IDENTICAL if content == text.encode() else VALID

    return case


def image_folder(folder: Path) -> Case:
    """What is there is read, or reported as unreadable."""
    for kind in "abc":
        (folder / kind).mkdir()
        for n in range(3):
            pixels = np.random.default_rng(n).integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{n}.png")
    odd = (b"\xff\xfe.png", b"new\nline.png", b"a b.PNG", b"-rf.png", b".hidden.png")

    def change(rng: Random, root: Path) -> None:
        files = sorted(path for path in root.rglob("*") if path.is_file())
        path, how = rng.choice(files or [root / "none.png"]), rng.randrange(7)
        if how == 0 and path.exists():
            mutate_bytes(rng, path)
        elif how == 1:
            path.unlink(missing_ok=True)
        elif how == 2 and path.exists():
            (root / "b").mkdir(exist_ok=True)
            path.rename(root / "b" / os.fsdecode(rng.choice(odd)))
        elif how == 3:
            (root / f"link{rng.randrange(99)}.png").symlink_to(rng.choice((root, "/nowhere", path)))
        elif how == 4:
            shutil.rmtree(root / rng.choice("abc"), ignore_errors=True)
        elif how == 5:
            (root / "empty").mkdir(exist_ok=True)
        else:
            name = rng.choice(("file.jpg", "notes.txt"))
            (root / f"{rng.randrange(99)}{name}").write_bytes(b"")

    def case(rng: Random, work: Path) -> Any:
        root = shutil.copytree(folder, work / "images")
        for _ in range(rng.choice((1, 2, 3))):
            change(rng, root)
        names = [name for _, _, files in os.walk(root) for name in files]
        there = [name for name in names if name.lower().endswith((".png", ".jpg"))]
        every = unlabelled_samples(root, lambda image: image)
        if len(every) != len(there):
            return Outcome(SILENT, f"{len(every)} of {len(there)} images")
        _, bad = readable_images(every, "x", progress=False)
        found = labelled_samples(root, lambda image: image)
        if set(found.names) - set(every.names) or len(found.labels) != len(found):
            return Outcome(SILENT, "labels of other images")
        return HEALED if bad else VALID

    return case


def image(folder: Path) -> Case:
    """Opened in RGB, or a reason why not."""
    pixels = np.random.default_rng(0).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "ICO", "PPM", "EPS", "TGA"):
        Image.fromarray(pixels).save(folder / kind, kind)

    def case(rng: Random, work: Path) -> Any:
        path = Path(shutil.copy(rng.choice(sorted(folder.iterdir())), work / "x.png"))
        mutate_bytes(rng, path)
        try:
            found = rgb_image(path)
        except ImageError as error:
            return REFUSED if str(error).strip() else Outcome(SILENT, "no reason")
        good = found.mode == "RGB" and min(found.size) > 0
        return VALID if good else Outcome(SILENT, found.mode)

    return case


# ---- files of ours, those of `tests/data/v0.1`


def network() -> torch.nn.Module:
    return load_checkpoint(build(f"{OLD}/net.py:make", 4), OLD / "net.pt")


def detector_answers(path: Path) -> list[Any]:
    detector = NACDetector.load(path, network())
    values = detector.score(X), detector.p_value(X), detector.predict(X)
    noted = detector.classes_, detector.notes_, detector.fit_summary_, repr(detector.layers)
    return [*(each.tolist() for each in values), *noted]


def readings_answers(folder: Path) -> list[Any]:
    """Scores and what is noted, as a search would use them."""
    found = ReadingSet.load(folder)
    fitted = NACDetector(network(), list(found.fit), rule="nac").fit_readings(found.fit)
    found.id_val.check_finite("ID validation")
    scores = [fitted.score_readings(each).tolist() for each in found.roles.values()]
    return [*scores, dict(found.about), found.surrogate, found.id_val.accuracy]


def checkpoint_answers(path: Path) -> list[Any]:
    """A user's weights: refused, or noticed by the detector that was fitted on others."""
    net = load_checkpoint(build(f"{OLD}/net.py:make", 4), path)
    try:
        return NACDetector.load(OLD / "plus.nac", net).score(X).tolist()
    except NACError as error:
        assert "another network" in str(error)
        raise


def shards_answers(folder: Path) -> list[Any]:
    """Shards of a fit that are merged: all of them as they were written, or nothing."""
    fitted = merge_shards([folder / "fit_part2", folder / "fit_part1"])[0]
    counts = [tensor.tolist() for tensor in fitted.rule.tensors().values()]
    return [fitted.threshold, fitted.pvalues.scores.tolist(), *counts]


def program_answers(path: Path) -> list[Any]:
    """A network in one file; damage is noticed by PyTorch's checksums, or by what fails."""
    return classify(network_of(str(path), 3, None), X).tolist()


def stored(folder: Path, names: list[str], answers: Callable[[Path], Any]) -> Case:
    """Every answer must be that of the undamaged file."""
    shutil.copytree(OLD, folder, dirs_exist_ok=True)
    for part in ("fit_part1", "fit_part2"):
        shutil.copytree(OLD / part, folder / "shards" / part)
    save_file(network().state_dict(), folder / "net.safetensors")
    write_programs(folder, X)
    expected = {name: answers(folder / name) for name in names}

    def case(rng: Random, work: Path) -> Any:
        name = rng.choice(names)
        copy = work / Path(name).name
        (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, copy)
        files = sorted(path for path in (copy, *copy.rglob("*")) if path.is_file())
        path, how = rng.choice(files), rng.randrange(6)
        if len(files) > 1 and how == 0:
            path.unlink()
        elif len(files) > 1 and how == 1:
            path.write_bytes(rng.choice(files).read_bytes())
        else:
            mutate_bytes(rng, path)
        return judged(answers(copy), expected[name])

    return case


# ---- folders of results


def stable(results: Results) -> str:
    """Everything but times and memory, and what was read of the files beside it."""
    scores = [results.scores(r.run, r.method, s.name) for r in results.rows for s in results.sets]
    kept = [None if each is None else each.score.tolist() for each in scores]
    return repr((plain(results), results.confident, kept))


def comparison_resumed(folder: Path) -> Case:
    """What a comparison says must not change where files in its folder were damaged."""
    data = write_benchmark(folder / "data")

    def run(out: Path) -> str:
        return stable(run_study(study(data, out, {"toy": Toy, "nac": nac})))

    expected = run(folder / "out")

    def case(rng: Random, work: Path) -> Any:
        out = shutil.copytree(folder / "out", work / "out")
        files = [p for p in sorted(out.rglob("*")) if p.suffix in (".json", ".safetensors")]
        for path in rng.sample(files, rng.choice((1, 2, 4))):
            if rng.random() < 0.15:
                path.unlink()
            else:
                mutate_bytes(rng, path)
        return judged(run(out), expected, HEALED)

    return case


def comparison_reported(folder: Path) -> Case:
    """`results.json` of a comparison, as `nac-openood report` reads it."""

    def tables(out: Path, page: bool) -> tuple[str, ...]:
        results = Results.load(out)
        if page:
            render_page(comparison_document(results))
        text = render_markdown(comparison_document(results))
        return summary_table(results), results_csv(results), text, stable(results)

    expected = tables(OLD / "compare", page=True)  # matplotlib makes its caches

    def case(rng: Random, work: Path) -> Any:
        out = shutil.copytree(OLD / "compare", work / "out")
        scores = sorted((out / "runs").rglob("*.safetensors"))
        path = out / "results.json" if rng.random() < 0.8 else rng.choice(scores)
        mutate_bytes(rng, path)
        found = tables(out, page=rng.random() < 0.15)
        if path in scores:  # these count as missing: their sections are left out
            return judged(found[:2], expected[:2], HEALED)
        return judged(found, expected)

    return case


def ranking(folder: Path) -> Case:
    """Readings and rankings of checkpoints: loaded, shown, and resumed."""
    domains = {
        "train": {"a": domain(40, 0.0, 1), "b": domain(31, 0.4, 2)},
        "val": {"a": domain(30, 0.0, 3)},
        "test": {"c": domain(50, 1.0, 5)},
    }
    for step in range(1, 5):
        torch.manual_seed(step)
        torch.save(make().state_dict(), folder / f"step_{step}.pt")

    def rank(out: Path) -> Ranking:
        paths = sorted(map(str, folder.glob("*.pt")))
        options = dict(load=load, layer="1", space=SPACE, progress=False)
        return rank_checkpoints(paths, out=out, **options, **domains)

    expected = rank(folder / "out")
    whole = RankedRuns((RankedRun("c", 0, expected),), "own", "mlp", notes=("a",))
    whole.save(folder / "out")
    render_page(ranked_document(whole))  # matplotlib makes its caches

    def case(rng: Random, work: Path) -> Any:
        out = shutil.copytree(folder / "out", work / "out")
        shown = [out / "ranking.json", out / "results.json"]
        path = rng.choice([*sorted((out / "readings").iterdir()), *shown])
        mutate_bytes(rng, path)
        if path not in shown:
            return judged(rank(out), expected, HEALED)
        runs = RankedRuns.load(out)
        ranked_summary(runs)
        ranked_csv(runs), render_markdown(ranked_document(runs))
        if rng.random() < 0.1:
            render_page(ranked_document(runs))
        found = Ranking.load(out), runs.runs[0].ranking, runs.runs, runs.notes
        return judged(found, (expected, expected, whole.runs, whole.notes))

    return case


def analysis(folder: Path) -> Case:
    """What analyses found, as the page is made of it: a damaged one is left out."""
    found = [Finding.load(OLD / "analyze" / f"{kind}.json") for kind in ("layers", "calibration")]
    write_analysis_page(shutil.copytree(OLD / "analyze", folder / "out"))

    def case(rng: Random, work: Path) -> Any:
        out = shutil.copytree(OLD / "analyze", work / "out")
        mutate_bytes(rng, rng.choice(sorted(out.iterdir())))
        text = write_analysis_page(out).read_text()
        shown = [each.title in text and each.sentence in text for each in found]
        if any(shown) and not all(shown):
            return HEALED
        return judged(shown, [True, True])

    return case


# ---- command lines

#: Options that would make a case long, or start a browser or a server.
_LEFT_OUT = ("--open", "--workers", "--demo", "--embedded")


def commands(folder: Path) -> Case:
    """`nac-openood COMMAND ...` with options that are odd, missing, repeated, unknown."""
    with contextlib.suppress(ImportError):
        importlib.import_module("matplotlib.pyplot")  # makes its folders when it is imported
    pixels = np.random.default_rng(0).integers(0, 255, (4, 10, 32, 32, 3), dtype=np.uint8)
    for kind, row in product(range(4), range(10)):
        (folder / "birds" / str(kind)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[kind, row]).save(folder / "birds" / str(kind) / f"{row}.png")
    net = ["--arch", f"{OLD}/net.py:make", "--checkpoint", f"{OLD}/net.pt"]
    data = ["--train", f"{folder}/birds", "--val", f"{folder}/birds"]
    common = [*net, "--transform", f"{OLD}/transform.yml", "--device", "cpu"]
    detector, kept, images = f"{OLD}/plus.nac", f"{OLD}/readings", sorted(OLD.glob("images/*"))
    lines = {
        ("score", "--detector", detector, *net, "--device", "cpu", *map(str, images)): 6,
        ("fit", *common, *data, "--n-samples", "40", "--out", "x.nac"): 3,
        ("search", "--readings", kept, "--strategy", "random", "--budget-points", "20",
         "--out", "found"): 4,
        ("report", f"{folder}/birds"): 1,
        ("export", "--detector", detector, *net, "--out", "x.txt"): 1,
        ("serve", "--detector", f"{OLD}/net.pt", *net): 1,
        ("compare", *common, *data, "--out", "compared"): 1,
        ("analyze", "layers", *common, "--train", f"{folder}/nowhere", "--out", "analyzed"): 1,
        ("rank", f"{OLD}/net.pt", *net, "--train", f"{folder}/birds", "--out", "ranked"): 1,
    }  # fmt: skip
    options = {
        name: [
            action.option_strings[-1]
            for action in parser._actions
            if action.option_strings and action.option_strings[-1] not in _LEFT_OUT
        ]
        for name, parser in build_parser()[1].items()
    }

    def changed(rng: Random, whole: list[str]) -> list[str]:
        found = value_mutated(rng, whole[1:])
        words = [str(each) for each in (found if isinstance(found, list) else [found])]
        more = [rng.choice(options[whole[0]]), str(rng.choice(ODD))] if rng.random() < 0.5 else []
        return [whole[0], *words, *more]

    def case(rng: Random, work: Path) -> Any:
        (chosen,) = rng.choices(list(lines), list(lines.values()))
        arguments = changed(rng, list(chosen))
        code, errors = _run(arguments, work)
        if code not in (0, 1, 2) or "Traceback" in errors:
            return Outcome(FOREIGN, f"{arguments}: exit code {code}, {errors}")
        if code and "nac-openood" not in errors:
            return Outcome(SILENT, f"{arguments}: no reason")
        if code:
            return REFUSED
        return IDENTICAL if arguments == list(chosen) else VALID

    return case


def _run(arguments: list[str], folder: Path) -> tuple[Any, str]:
    """The exit code of a command in a folder, and what it wrote to stderr."""
    errors, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            return main(arguments), errors.getvalue()
        except SystemExit as stop:
            return stop.code, errors.getvalue()
        finally:
            os.chdir(before)


def row(name: str, tried: str, weight: int, prepare: Callable[..., Case], *options: Any) -> Target:
    return Target(name, tried, weight, lambda folder: prepare(folder, *options))


TARGETS = (
    row("config", "YAML of NAC's settings: text, bytes, values, keys", 3, settings,
        [path.read_text() for path in sorted(CONFIGS.glob("*.yml"))],
        lambda path: read_config(path).to_dict()),
    row("transform", "YAML of a transform: text, bytes, values, keys", 1, settings,
        [TRANSFORM], read_transform),
    row("detector", "flipped, lost, repeated and foreign bytes in detector files", 3, stored,
        ["nac.nac", "plus.nac"], detector_answers),
    row("readings", "bytes in files and manifests of readings; files swapped and missing", 2,
        stored, ["readings"], readings_answers),
    row("checkpoint", "bytes in checkpoints (PyTorch and safetensors), then the detector", 2,
        stored, ["net.pt", "net.safetensors"], checkpoint_answers),
    row("programs", "bytes in programs of torch.export and TorchScript", 1, stored,
        ["net.pt2", "traced.pt"], program_answers),
    row("shards", "bytes and notes of the shards of a fit; files swapped and missing", 1, stored,
        ["shards"], shards_answers),
    row("comparison, resumed", "scores, features, notes and results of a comparison, damaged or "
        "removed; it is resumed", 1, comparison_resumed),
    row("comparison, reported", "bytes of results.json and of the scores beside it; "
        "tables are made of them", 2, comparison_reported),
    row("ranking", "readings of checkpoints (the ranking is resumed), ranking.json and "
        "results.json (shown)", 2, ranking),
    row("analysis", "bytes of the JSON of analyses; the page is made of them", 1,
        analysis),
    row("image list", "text and bytes of OpenOOD's image lists", 1, lists,
        ["".join(f"cifar10/train/{n:04d}.png {n % 10}\n" for n in range(12))], image_list),
    row("CSV", "text and bytes of CSV files with paths and labels, or texts", 1, lists, [
        "path,label\n" + "".join(f"a/{n}.png,{'ab'[n % 2]}\n" for n in range(9)),
        "path,label\n" + "".join(f"a/{n}.png,{n % 3}\n" for n in range(9)),
        "text,label\n" + "".join(f'"one, {n}",{n % 3}\n' for n in range(9)),
    ], csv_table),
    row("image folder", "names, links, empty and damaged files in folders of images", 1,
        image_folder),
    row("image", "bytes of PNG, JPEG, GIF, WEBP, BMP, TIFF, ICO, PPM and EPS files", 3, image),
    row("command line", "options of fit, score, search, report, rank, compare, analyze, export and "
        "serve", 4, commands),
)  # fmt: skip
