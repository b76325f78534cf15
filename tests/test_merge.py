"""`--shard` and `nac-openood merge`: jobs that ran on their own give what one job gives."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from own_project import DATA, NETWORK, copied
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import NACDetector
from nac_openood.benchmark.run.results import NetworkInfo, Results, Row, SetInfo, merge_results
from nac_openood.cli import main
from nac_openood.detector.checked_fit import ShardNotes, fit_checked, merge_shards, write_shard
from nac_openood.distributed import as_shard
from nac_openood.errors import NACError
from nac_openood.files import write_document

FIT = ["fit", *NETWORK, *DATA, "--test", "birds/test", "--batch-size", "25"]
RULES = ("nac", "nac_plus")


@pytest.fixture(scope="module")
def project(own_project, tmp_path_factory):
    """A copy of `own_project` with RULE.nac and shards RULE1, RULE2, RULE3, made in another order."""
    with copied(own_project, tmp_path_factory.mktemp("merge") / "place") as project:
        for rule in RULES:
            assert main([*FIT, "--rule", rule, "--out", f"{rule}.nac"]) == 0
            for number in (3, 1, 2):
                shard = ["--shard", f"{number}/3", "--out", f"{rule}{number}"]
                assert main([*FIT, "--rule", rule, *shard]) == 0
    return project


@pytest.fixture
def here(project, monkeypatch):
    monkeypatch.chdir(project)
    return project


def score(*arguments):
    known = ["--detector", "nac_plus.nac", *NETWORK, "--batch-size", "15"]
    return main(["score", *known, *arguments])


# ---- fits


@pytest.mark.parametrize("rule", RULES)
def test_a_fit_in_shards_is_the_fit_of_one_job(here, capsys, rule):
    assert main(["merge", f"{rule}2", f"{rule}3", f"{rule}1", "--out", "merged.nac"]) == 0
    message = capsys.readouterr()
    assert (here / "merged.nac").read_bytes() == (here / f"{rule}.nac").read_bytes()
    assert main([*FIT, "--rule", rule, "--out", "merged.nac"]) == 0
    again = capsys.readouterr()
    lines = [line.replace(" (found by running the network)", "") for line in again.out.split("\n")]
    merged = message.out.split("\n")
    (power,) = (line for line in merged if line.startswith("power"))
    assert power.split(maxsplit=1)[1] == "not measured: merging does not run the network"
    merged.remove(power)
    assert merged == [line for line in lines if not line.startswith(("- ", "power"))]


def test_broken_test_samples_are_refused_as_in_one_job(small_net, images, labels, tmp_path):
    data = DataLoader(TensorDataset(images, labels), batch_size=12)
    broken = images.clone()
    broken[3] = float("nan")
    test = DataLoader(TensorDataset(broken, labels), batch_size=12)
    message = "1 of 24 samples have NaN or Inf readings"
    with pytest.raises(NACError, match=message):
        fit_checked(NACDetector(small_net, ["avgpool"], rule="nac"), data, data, test)
    sizes = dict.fromkeys(("train", "val", "test"), len(images))
    for number in (1, 2):
        notes = ShardNotes(number, 2, 12, 0.05, 4, sizes)
        detector = NACDetector(small_net, ["avgpool"], rule="nac")
        write_shard(tmp_path / str(number), notes, detector, data, data, test)
    with pytest.raises(NACError, match=message):
        merge_shards([tmp_path / "1", tmp_path / "2"])


def test_shards_must_be_whole_and_of_one_fit(here, capsys):
    def refused(*shards):
        assert main(["merge", *map(str, shards), "--out", "none.nac"]) == 1
        assert not (here / "none.nac").exists()
        return capsys.readouterr().err

    assert "expected each of the shards 1 to 3 once, got [1, 3]" in refused("nac1", "nac3")
    assert "once, got [1, 1, 2, 3]" in refused("nac1", "nac1", "nac2", "nac3")
    assert "nac_plus3 and nac1 are shards of different runs" in refused("nac1", "nac2", "nac_plus3")
    assert "there is no nac9" in refused("nac1", "nac9")
    assert "net.pt cannot be merged" in refused("net.pt", "nac1")
    shutil.copytree("nac2", "unfinished")
    (here / "unfinished" / "shard.json").unlink()
    assert "unfinished holds no finished shard" in refused("nac1", "unfinished", "nac3")
    shutil.copytree("nac2", "other")
    path = here / "other" / "shard.json"
    notes = json.loads(path.read_text())
    path.write_text(json.dumps({**notes, "alpha": 0.1}))
    assert "shard.json is damaged" in refused("nac1", "other", "nac3")
    notes = {name: value for name, value in notes.items() if name not in ("format", "sha256")}
    own = notes.pop("notes")
    write_document(path, 1, {**notes, "notes": {**own, "alpha": 0.1}})
    assert "shards of different runs" in refused("nac1", "other", "nac3")
    write_document(path, 1, {**notes, "notes": {**own, "number": "two"}})
    message = refused("nac1", "other", "nac3")
    assert "shard.json is damaged ('notes.number' must be a whole number" in message
    write_document(path, 1, {**notes, "notes": own})
    shutil.copy("nac1/counts.nac", "other/counts.nac")  # which would count twice
    assert "counts.nac is not the file of this shard" in refused("nac1", "other", "nac3")


@pytest.mark.parametrize("text", ["4/3", "0/3", "a/b"])
def test_the_option_must_make_sense(here, capsys, text):
    with pytest.raises(SystemExit):
        main([*FIT, f"--shard={text}"])
    assert "expected I/N with I from 1 to N" in capsys.readouterr().err


def test_there_must_be_a_batch_for_each_shard(here, capsys):
    assert main([*FIT, "--shard", "1/5", "--out", "five"]) == 1
    assert "5 shards cannot share 4 batches. Use fewer shards, or a smaller --batch-size" in (
        capsys.readouterr().err
    )


def test_a_share_of_a_shuffled_loader_is_refused():
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).eval()
    loader = DataLoader(TensorDataset(torch.randn(20, 4)), 5, shuffle=True)
    with as_shard(0, 2), pytest.raises(NACError, match="in one fixed order"):
        NACDetector(net, ["1"], rule="nac").fit(loader)


# ---- tables


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_table_in_shards_is_the_table_of_one_job(here, capsys, form):
    (here / "bad.png").write_text("no image")
    images = ["birds/test", "bad.png", "stripes", "--skip-bad", "--format", form]
    assert score(*images) == 0
    whole = capsys.readouterr().out
    assert whole.count("\n") == 100 + (form == "csv")
    for number in (1, 2, 3):
        assert score(*images, "--shard", f"{number}/3") == 0
        (here / f"part{number}").write_text(capsys.readouterr().out)
    assert main(["merge", "part3", "part1", "part2"]) == 0
    assert capsys.readouterr().out == whole
    assert main(["merge", "part1", "part2", "part3", "--out", "whole"]) == 0
    assert (here / "whole").read_text() == whole


def test_tables_must_be_whole_and_of_one_run(here, capsys):
    for number in (1, 2):
        assert score("stripes", "--shard", f"{number}/2") == 0
        (here / f"half{number}").write_text(capsys.readouterr().out)
    assert score("stripes", "--alpha", "0.1", "--shard", "2/2") == 0
    (here / "other_alpha").write_text(capsys.readouterr().out)
    text = (here / "half2").read_text()
    (here / "cut").write_text(text[: text.rindex("#")])
    (here / "torn").write_text(text[:-200])
    (here / "edited").write_text(text.replace(",out\n", ",in\n", 1))
    (here / "early").write_text(f"{text[: text.rindex(' ')]}\n")  # without a checksum
    assert main(["merge", "half1", "early", "--out", "halves"]) == 0
    for arguments, message in (
        (["half1"], "expected each of the shards 1 to 2 once, got [1]"),
        (["half1", "other_alpha"], "are shards of different runs"),
        (["half1", "cut"], "cut is incomplete"),
        (["half1", "torn"], "torn is incomplete"),
        (["half1", "edited"], "edited is incomplete or was changed"),
        (["half1", "nac1"], "nac1 cannot be merged with the others: expected tables"),
    ):
        assert main(["merge", *arguments, "--out", "nothing"]) == 1
        assert message in capsys.readouterr().err
        assert not (here / "nothing").exists()
    assert score("stripes", "--shard", "1/2", "--gallery", "x.html") == 1
    assert "--gallery needs all images" in capsys.readouterr().err


# ---- comparisons


@pytest.mark.filterwarnings("ignore:the fitting set is uneven")
def test_comparisons_become_one(here, capsys):
    def compare(out, *methods, more=()):
        test = ["--test", "birds/test", "--far", "s=stripes", "--batch-size", "25"]
        words = ["compare", *NETWORK, *DATA, *test, "--methods", *methods, *more, "--out", out]
        return main(words)

    assert compare("one", "msp", "ebo") == compare("two", "ebo", "nac_plus") == 0
    assert main(["merge", "one", "two", "--out", "both"]) == 0
    assert "NAC+" in capsys.readouterr().out
    both, one, two = (Results.load(here / name) for name in ("both", "one", "two"))
    assert [row.method for row in both.rows] == ["msp", "ebo", "nac_plus"]
    assert both.rows[:2] == one.rows and both.rows[2] == two.rows[1]
    found = both.scores("net", "nac_plus", "s")
    assert (found.score == two.scores("net", "nac_plus", "s").score).all()
    assert (here / "both" / "report.html").is_file() and both.gallery == two.gallery

    for arguments, message in (
        (["one", "two", "--out", "one"], "one is one of the comparisons to merge"),
        (["one", "two"], "expected --out"),
        (["one", "birds", "--out", "three"], "there is no birds/results.json"),
        (["one", "two", "--out", "net.pt"], "cannot create the folder net.pt"),
    ):
        assert main(["merge", *arguments]) == 1
        assert message in capsys.readouterr().err
    other = {"s": {**two.rows[0].metrics["s"], "AUROC": 12.0}}
    replace(two, rows=(replace(two.rows[0], metrics=other),)).save()
    assert main(["merge", "one", "two", "--out", "three"]) == 1
    assert "have different results of EBO on net" in capsys.readouterr().err
    replace(two, sets=(replace(two.sets[0], images=7), *two.sets[1:])).save()
    assert main(["merge", "one", "two", "--out", "three"]) == 1
    assert "compare different things: `sets`" in capsys.readouterr().err
    assert not (here / "three").exists()


def results_of(folder, *runs):
    """A comparison of networks, given as (name, accuracy), without any scores."""
    return Results(
        folder, "birds", "net", "", "2026-01-01T00:00:00+00:00", {}, {},
        (SetInfo("test", "id", 3), SetInfo("s", "far", 3)),
        tuple(NetworkInfo(name, f"{name}.pt", accuracy) for name, accuracy in runs),
        tuple(Row("msp", "MSP", name, "", "failed", "why") for name, _ in runs),
    )  # fmt: skip


def test_networks_of_comparisons(tmp_path):
    runs = [("a", 90.0), ("b", 91.0)], [("b", 91.0), ("c", 92.0)], [("b", 12.0)]
    parts = [results_of(tmp_path / str(n), *each) for n, each in enumerate(runs)]
    found = merge_results(parts[:2], tmp_path / "all")
    assert [run.name for run in found.runs] == ["a", "b", "c"]
    with pytest.raises(NACError, match="2 and .*0 have different networks of the name b"):
        merge_results(parts, tmp_path / "other")
