"""`nac-openood fit` and `nac-openood score`: from folders of images to decisions."""

import csv
import io
import json
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from own_project import DATA, NETWORK, copied
from PIL import Image
from test_locks import holding
from torch.utils.data import DataLoader, Subset, TensorDataset

from nac_openood import NACDetector
from nac_openood.cli import main
from nac_openood.search.power import measure_power
from nac_openood.serving.judge import Judge
from nac_openood.sources.fitted import drift_of, expand, judge_images, load_fitted
from nac_openood.sources.networks import build, network_of
from nac_openood.sources.readers import unlabelled_samples
from nac_openood.sources.transforms import read_settings

HEADER = "path,class,confidence,score,p_value,decision"
TRAIN = DATA[:4]  # without --val
MADE = ["--detector", "birds.nac", *NETWORK]


@pytest.fixture(scope="module")
def project(own_project, tmp_path_factory):
    """A copy of `own_project` with a detector, birds.nac."""
    with copied(own_project, tmp_path_factory.mktemp("fitted") / "place") as project:
        assert fit("--test", "birds/test", "--out", "birds.nac") == 0
    return project


@pytest.fixture
def here(project, monkeypatch):
    monkeypatch.chdir(project)
    return project


def fit(*arguments, data=DATA):
    """Fit on the network and the images of the project; later options replace earlier ones."""
    return main(["fit", *NETWORK, *data, *map(str, arguments)])


def score(*arguments):
    return main(["score", *MADE, *arguments])


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def loaded(path):
    return NACDetector.load(path, network_of("net.py:make", 4, "net.pt"))


# ---- fit


def test_fit_prints_what_one_needs_to_know(here, tmp_path, capsys):
    out = tmp_path / "any.extension"
    assert fit("--test", "birds/test", "--alpha", "0.1", "--out", out) == 0
    caught = capsys.readouterr()
    lines = dict(line.split(maxsplit=1) for line in caught.out.splitlines() if " " in line)
    assert lines["network"] == "net.py:make, 4 classes, weights of net.pt"
    assert lines["layers"] == "stem.2, middle, pool (found by running the network)"
    assert lines["accuracy"] == "100.0% of 120 validation samples, 100.0% of training samples"
    shares = "100% of noise, [0-9]+% of scrambled, [0-9]+% of mixed images at p <= 0.1"
    assert re.match(f"finds {shares} \\(64 of each, made from val", lines["power"])
    assert lines["mistakes"] == "the network makes none on validation samples"
    assert lines["threshold"].endswith("that is p <= 0.1") and caught.err == ""
    assert "alarms  p <= 0.1: " in caught.out and "of 80 samples" in caught.out
    det = loaded(out)
    assert det.classes_ == ("bluejay", "cardinal", "goldfinch", "parrot")
    assert det.rule == "nac_plus" and det.calibrated_
    assert det.notes_["arch"] == "net.py:make"
    assert det.notes_["transform"].startswith("resize: 36\ncrop: 32")
    assert det.threshold_ == pytest.approx(float(lines["threshold"].split("< ")[1].split(",")[0]))
    assert "`predict` calls at most 10 % out-of-distribution" in det.guarantee()


def test_fit_holds_out_validation_images(here, tmp_path, capsys):
    out = tmp_path / "d"
    assert fit("--rule", "nac", "--layers", "pool", "--out", out, data=TRAIN) == 0
    caught = capsys.readouterr()
    assert "fitted on     192 training samples" in caught.out and "of 48 validation" in caught.out
    assert "not measured: pass --test" in caught.out
    assert "no --val, so a fifth of --train is held out in its place" in caught.err
    assert loaded(out).rule == "nac"


def test_fit_takes_a_loader_of_the_users_code(here, tmp_path, capsys):
    out = tmp_path / "d"
    assert fit("--train", "net.py:birds", "--out", out, data=TRAIN) == 0
    plain = capsys.readouterr().out
    assert fit("--train", "net.py:loaded", "--out", out, data=TRAIN) == 0
    assert capsys.readouterr().out == plain and "fitted on     192 training samples" in plain
    assert loaded(out).classes_ == ("bluejay", "cardinal", "goldfinch", "parrot")


def test_no_input_is_overwritten(here, capsys):
    for name in ("net.pt", "net.py", "birds/../net.pt"):
        assert fit("--out", name) == 1
        message = rf"--out would overwrite {Path(name).name}(:make)?\. Name another file"
        assert re.search(message, capsys.readouterr().err)
    assert score("birds/test", "--gallery", "net.pt") == 1
    assert "--gallery would overwrite net.pt. Name another file" in capsys.readouterr().err
    assert score("birds/test", "--monitor", "both", "--gallery", "both") == 1
    assert "--gallery would overwrite both. Name another file" in capsys.readouterr().err


def test_suspicious_fits_are_reported(here, tmp_path, capsys):
    torch.manual_seed(3)
    torch.save(network_of("net.py:make", 4).state_dict(), tmp_path / "random.pt")
    out = ["--out", tmp_path / "d"]
    assert fit("--checkpoint", tmp_path / "random.pt", *out) == 0
    message = capsys.readouterr()
    assert "no better than chance (25.0%). Check the weights" in message.err
    assert re.search(r"mistakes +finds \d+% of 90 wrong predictions \(AUROC \d+\.\d\)", message.out)

    # the head's classes in another order than the folders
    state = torch.load("net.pt", weights_only=True)
    for name in ("head.weight", "head.bias"):
        state[name] = state[name].roll(1, 0)
    torch.save(state, tmp_path / "rolled.pt")
    assert fit("--checkpoint", tmp_path / "rolled.pt", *out) == 0
    message = capsys.readouterr().err
    assert "right on 0.0% of validation samples, but would be on 100.0% if its classes" in message

    # test images that are not like the validation images
    for name in ("bluejay", "cardinal"):
        shutil.copytree("stripes", tmp_path / "odd" / name)
    assert fit("--test", tmp_path / "odd", *out) == 0
    message = capsys.readouterr().err
    assert "100.0% of test samples are called out-of-distribution, clearly more" in message


@pytest.mark.parametrize(("option", "name"), [("--val", "validation"), ("--test", "test")])
def test_images_that_are_training_images_are_reported(here, tmp_path, capsys, option, name):
    assert fit(option, "birds/../birds/train", "--out", tmp_path / "d") == 0
    assert f"240 {name} images are training images, too" in capsys.readouterr().err


def test_fit_without_images_that_cannot_be_read(here, tmp_path, capsys):
    shutil.copytree("birds/train", tmp_path / "train")
    (tmp_path / "train/parrot/bad.png").write_text("no image")
    options = ["--train", tmp_path / "train", "--out", tmp_path / "d"]
    assert fit(*options) == 1
    assert "bad.png cannot be read" in capsys.readouterr().err
    assert fit(*options, "--skip-bad") == 0
    message = capsys.readouterr().out
    assert "left out of train: 1 of 241 images" in message and "fitted on     240" in message


def test_few_samples_and_other_classes_are_reported(here, tmp_path, capsys):
    for part, count in (("train", 8), ("val", 30)):
        for name in ("bluejay", "cardinal"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                shutil.copy(f"birds/{part}/{name}/{number}.png", folder)
    data = ["--train", tmp_path / "train", "--val", tmp_path / "val"]
    assert fit("--arch", "net.py:four", *data, "--out", tmp_path / "d") == 0
    message = capsys.readouterr().err
    assert "the data has 2 classes and the network 4. Are these the images" in message
    assert "2 of 2 classes have fewer than 10 fitting samples, as few as 8" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--transform", "auto"], "no transform is known for net.py:make: pass --transform"),
        (["--out", "no/folder/d"], "there is no folder no/folder"),
        (["--alpha", "5"], "--alpha must lie between 0 and 1, got 5.0"),
        (["--layers", "stemm"], "stemm"),
        (["--val", "stripes"], "are not in class folders"),
    ],
)
def test_errors_of_fit(here, tmp_path, arguments, message, capsys):
    assert fit("--out", tmp_path / "d", *arguments) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "d").exists()


# ---- score


def test_a_table_and_nothing_else(here, capsys):
    assert score("birds/test", "stripes") == 0
    caught = capsys.readouterr()
    assert caught.out.splitlines()[0] == HEADER and caught.err == ""
    rows = table(caught.out)
    paths = [row["path"] for row in rows]
    assert len(rows) == 100 and paths[:80] == sorted(paths[:80])
    det = loaded("birds.nac")
    for row in rows:
        assert (row["decision"] == "out") == (float(row["p_value"]) <= 0.05)
        assert row["class"] in det.classes_ and 0 < float(row["confidence"]) <= 1
    birds, stripes = rows[:80], rows[80:]
    assert all(row["class"] in row["path"] for row in birds)
    assert {row["decision"] for row in stripes} == {"out"}
    assert sum(row["decision"] == "out" for row in birds) < 15
    images = unlabelled_samples("birds/test", read_settings("transform.yml").transform())
    judged = det.judge(torch.stack([image["data"] for image in images]))
    # another batch is rounded differently, which may move a sample by one rank of 60
    for name, close in (("score", 1e-4), ("p_value", 0.017)):
        shown = [float(row[name]) for row in birds]
        assert getattr(judged, name).tolist() == pytest.approx(shown, abs=close)


def test_alpha_and_batch_size_and_workers(here, capsys):
    def rows(*more):
        assert score("birds/test", *more) == 0
        return capsys.readouterr().out

    plain = rows("--batch-size", "7")
    assert rows("--batch-size", "7", "--workers", "2") == plain
    strict = table(rows("--alpha", "0.9"))
    assert [r["decision"] == "out" for r in strict] == [float(r["p_value"]) <= 0.9 for r in strict]
    assert sum(r["decision"] == "out" for r in strict) > 40


def test_json_lines_of_a_list_on_stdin(here, capsys, monkeypatch):
    listed = "\ufeffstripes/3.png\n\nbirds/test/parrot/1.png\r\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    assert score("--format", "jsonl", "stripes/1.png", "-") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    paths = [row["path"] for row in rows]
    assert paths == ["stripes/1.png", "stripes/3.png", "birds/test/parrot/1.png"]
    assert list(rows[0]) == HEADER.split(",") and rows[2]["class"] == "parrot"
    assert isinstance(rows[0]["p_value"], float)


def test_bad_files(here, tmp_path, capsys):
    shutil.copy("stripes/0.png", tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:200])
    (tmp_path / "c.png").write_text("no image")
    options = [str(tmp_path), str(tmp_path / "missing.png")]
    assert score(*options) == 1
    message = capsys.readouterr().err
    assert f"cannot read {tmp_path / 'b.png'} (" in message and "--skip-bad" in message
    assert score(*options, "--skip-bad") == 0
    caught = capsys.readouterr()
    assert [row["path"] for row in table(caught.out)] == [str(tmp_path / "a.png")]
    assert all(f"cannot read {tmp_path / name} (" in caught.err for name in ("b.png", "c.png"))
    assert "missing.png (No such file or directory)" in caught.err
    assert "left out 3 of 4 files, which cannot be read" in caught.err


def test_what_the_users_code_prints_stays_out_of_the_table(here, tmp_path, capsys):
    code = (here / "net.py").read_text() + "\nprint('hello from my code')\n"
    (tmp_path / "loud.py").write_text(code)
    options = ["--arch", f"{tmp_path}/loud.py:make", "--checkpoint", "net.pt", "--device", "cpu"]
    assert main(["score", "--detector", "birds.nac", *options, "stripes"]) == 0
    caught = capsys.readouterr()
    assert len(table(caught.out)) == 20 and caught.out.startswith(HEADER)
    assert "hello from my code" in caught.err


def test_the_gallery_shows_the_most_suspicious(here, tmp_path, capsys):
    page = tmp_path / "gallery.html"
    assert score("birds/test", "stripes", "--gallery", str(page)) == 0
    caught = capsys.readouterr()
    rows = table(caught.out)
    worst = sorted(rows, key=lambda row: float(row["score"]))[:24]
    text = page.read_text()
    places = [text.index(f'<div class="path">{row["path"]}</div>') for row in worst]
    assert places == sorted(places) and text.count("data:image/png;base64,") == 24
    out = sum(row["decision"] == "out" for row in rows)
    assert f"{out} of 100 images are out-of-distribution (p &lt;= 0.05)" in text
    assert "stem.2" in text and "Least covered neurons" in text
    assert "24 most suspicious images" in caught.err


# ---- the detector, its network and its transform belong together


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "net.pt"], "loaded only if you pass --arch"),
        (["--arch", "net.py:make"], "with the weights of net.pt: pass them, too, --checkpoint"),
        ([*NETWORK, "--transform", "other.yml"], "was fitted with a different transform"),
        ([*NETWORK, "--transform", "net.py:to_tensor"], "was fitted with a different transform"),
        (["--arch", "resnet_embedded", "--checkpoint", "net.pt"], "does not fit SmallResNet"),
        ([*NETWORK, "--alpha", "0"], "--alpha must lie between 0 and 1"),
        ([*NETWORK, "--gallery", "no/folder/g.html"], "there is no folder no/folder"),
    ],
)
def test_what_does_not_belong_together_is_refused(here, arguments, message, capsys):
    (here / "other.yml").write_text("resize: 32\n")
    options = ["score", "--detector", "birds.nac", "--device", "cpu", *arguments, "stripes"]
    assert main(options) == 1
    caught = capsys.readouterr()
    assert message in caught.err and caught.out == ""


def test_other_files_and_the_same_transform(here, tmp_path, capsys):
    assert score("nowhere.png") == 1
    assert "cannot read nowhere.png (No such file or directory)" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert score(str(tmp_path / "empty")) == 1
    assert "holds no images" in capsys.readouterr().err
    assert score("--transform", "transform.yml", "stripes/0.png") == 0


# ---- export


def test_fdr_limits_the_share_of_false_alarms(here, tmp_path, capsys):
    options = ["--alpha", "0.3", "--fdr", "0.2", "--gallery", str(tmp_path / "g.html")]
    assert score("birds/test", "stripes", *options) == 0
    rows = table(capsys.readouterr().out)
    out = [row for row in rows if row["decision"] == "out"]
    assert out and sum(row["path"].startswith("birds") for row in out) <= 0.3 * len(out)
    how = f"{len(out)} of 100 images are out-of-distribution (selected with a false discovery rate"
    assert f"{how} of 0.2)" in (tmp_path / "g.html").read_text()
    largest = max(float(row["p_value"]) for row in out)
    assert all(float(row["p_value"]) > largest for row in rows if row["decision"] == "in")
    assert score("birds/test", "--fdr", "0.2", "--shard", "1/2") == 1
    assert "--fdr needs all images: leave out --shard" in capsys.readouterr().err


def test_a_monitor_continues_from_run_to_run(here, tmp_path, capsys):
    state = str(tmp_path / "birds.monitor")
    for runs in (1, 2):
        assert score("birds/test", "--monitor", state) == 0
        message = capsys.readouterr().err
        assert f"{state}: no alarm after {80 * runs} inputs" in message
    assert score("stripes", "stripes", "stripes", "--monitor", state) == 0
    assert "ALARM at input" in capsys.readouterr().err
    assert "evidence of drift, powers of 10" in (tmp_path / "birds.monitor.svg").read_text()


@pytest.mark.skipif(os.name != "posix", reason="needs locks of the system")
def test_two_commands_cannot_use_one_monitor(here, tmp_path, capsys):
    """The second would overwrite what the first has seen."""
    state = tmp_path / "birds.monitor"
    with holding(state):
        assert score("birds/test", "--monitor", str(state)) == 1
    assert "another command is using" in (told := capsys.readouterr()).err and not told.out
    assert score("birds/test/parrot/3.png", "--monitor", str(state)) == 0
    assert "no alarm after 1 inputs" in capsys.readouterr().err


def test_an_alarm_that_can_never_happen_is_reported(here, tmp_path, capsys):
    given = [*MADE, "--alpha", "0.01"]
    never = pytest.warns(UserWarning, match="at p <= 0.01: it is compared with 60 .* 99 are needed")
    for words in (["score", "stripes/1.png"], ["export", "--out", str(tmp_path / "x.pt2")]):
        with never:
            assert main([words[0], *given, *words[1:]]) == 0
    # a selection does not use --alpha
    assert main(["score", *given, "--fdr", "0.5", "stripes", "birds/test"]) == 0
    assert fit("--alpha", "0.01", "--out", tmp_path / "x.nac") == 0
    assert "threshold     none: no image can be out at p <= 0.01" in capsys.readouterr().out


def test_classes_of_one_name_stay_apart(here, capsys):
    """ImageNet has two classes named crane: their samples must not count as one class."""
    pipeline = load_fitted("birds.nac", arch="net.py:make", weights="net.pt")
    pipeline.detector.classes_ = ("crane",) * 4
    found = list(judge_images(pipeline, expand(["birds/test"])))
    drift = drift_of(pipeline.detector, found)
    assert np.count_nonzero(drift.classes[1]) == 4 and drift.p_classes > 0.01


def test_drift_of_a_folder(here, tmp_path, capsys):
    assert main(["drift", *MADE, "birds/test"]) == 0
    message = capsys.readouterr().out
    assert "no sign of drift in these 80 samples" in message and "compared with  60" in message
    assert main(["drift", *MADE, "stripes", "--out", str(tmp_path / "drift.html")]) == 0
    message = capsys.readouterr().out
    page = (tmp_path / "drift.html").read_text()
    assert "Drift: these 20 samples differ" in page and page.count("data:image/png") >= 20
    assert "DRIFT: these" in message and "are not like the calibration data (p = 0.00" in message
    assert main(["drift", *MADE, "stripes", "--out", "birds.nac"]) == 1
    assert "--out would overwrite birds.nac. Name another file" in capsys.readouterr().err
    assert main(["drift", *MADE, "stripes", "nothing.png"]) == 1
    assert "cannot read nothing.png (No such file or directory)" in capsys.readouterr().err


def test_the_image_size_is_that_of_the_fit(here, tmp_path, capsys):
    (tmp_path / "t.yml").write_text("mean: 0.5\nstd: 0.25\n")  # images keep their 36 pixels
    detector, out = str(tmp_path / "d"), str(tmp_path / "d.pt2")
    assert fit("--transform", tmp_path / "t.yml", "--out", detector) == 0
    capsys.readouterr()
    assert main(["export", "--detector", detector, *NETWORK, "--out", out]) == 0
    message = capsys.readouterr()
    assert "takes images [batch, 3, 36, 36]" in message.out and not message.err
    # a warning about another size would be an error here
    judge = Judge(load_fitted(detector, arch="net.py:make", weights="net.pt"))
    assert judge.warm_up() is None


def test_export_writes_a_program_that_agrees(here, tmp_path, capsys):
    out = tmp_path / "birds.pt2"
    options = ["export", *MADE, "--alpha", "0.1", "--out"]
    assert main([*options, str(out)]) == 0
    assert "takes images [batch, 3, 32, 32]" in capsys.readouterr().out
    program = torch.export.load(out).module()
    pipeline = load_fitted("birds.nac", arch="net.py:make", weights="net.pt")
    with Image.open("stripes/3.png") as image:
        x = pipeline.transform(image.convert("RGB"))[None]
    outputs, expected = program(x), pipeline.detector.judge(x)
    torch.testing.assert_close(outputs["p_value"], expected.p_value)
    assert outputs["decision"].tolist() == [True]
    assert main([*options, "birds.pickle"]) == 1
    assert "expected a name that ends in .onnx" in capsys.readouterr().err


# ---- tables that nothing breaks


HOSTILE = ("=1+1.png", "+2.png", "-3.png", "@4.png")  # formulas
HOSTILE += ("a\nb.png", "a\rb.png", "a\u2028b.png", 'q",x.png')


@pytest.fixture
def hostile(here, tmp_path):
    """Images whose names are formulas or break lines, as paths relative to the current folder."""
    for name in HOSTILE:
        shutil.copy("stripes/0.png", here / name)
    yield list(HOSTILE)
    for name in HOSTILE:
        (here / name).unlink()


def test_names_stay_on_their_line_and_are_no_formulas(hostile, capsys):
    assert score("--", *hostile) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1 + len(hostile)
    assert [row["path"] for row in table(out)] == [
        *("'=1+1.png", "'+2.png", "'-3.png", "'@4.png"),
        *(r"a\nb.png", r"a\rb.png", r"a\u2028b.png", 'q",x.png'),
    ]
    assert all(float(row["score"]) < 0 for row in table(out))  # numbers stay numbers
    assert score("--format", "jsonl", "--", *hostile) == 0  # has the exact names
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["path"] for line in lines] == hostile


def test_shards_with_such_names_are_merged(hostile, tmp_path, capsys):
    names = [*hostile, "stripes/1.png"]
    assert score("--batch-size", "2", "--", *names) == 0
    whole = capsys.readouterr().out
    for number in (1, 2):
        assert score("--batch-size", "2", "--shard", f"{number}/2", "--", *names) == 0
        (tmp_path / str(number)).write_bytes(capsys.readouterr().out.encode())
    parts = [str(tmp_path / number) for number in "12"]
    assert main(["merge", *parts, "--out", str(tmp_path / "m")]) == 0
    assert (tmp_path / "m").read_text() == whole


# ---- images and networks that do not go together


FLAT = """
from torch import nn
from torchvision.transforms import ToTensor
def flat(n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3888, 8), nn.ReLU(), nn.Linear(8, n_classes))
def tensor(image):
    return ToTensor()(image)
"""


def test_images_of_a_shape_that_the_network_cannot_take_are_named(here, tmp_path, capsys):
    (tmp_path / "code.py").write_text(FLAT)
    torch.manual_seed(0)
    code, out = f"{tmp_path / 'code.py'}", str(tmp_path / "flat.nac")
    torch.save(build(f"{code}:flat", 4).state_dict(), tmp_path / "flat.pt")
    options = ["--arch", f"{code}:flat", "--checkpoint", str(tmp_path / "flat.pt")]
    options += ["--transform", f"{code}:tensor", "--device", "cpu"]
    assert fit(*options, "--out", out) == 0
    capsys.readouterr()
    (tmp_path / "new").mkdir()
    for name, side in (("a", 36), ("b", 40), ("c", 36)):
        Image.new("RGB", (side, side)).save(tmp_path / "new" / f"{name}.png")
    asked = ["score", "--detector", out, *options, "--batch-size", "1", str(tmp_path / "new")]
    message = "b.png (the network cannot take an input of shape 3 x 40 x 40"
    assert main(asked) == 1
    caught = capsys.readouterr().err
    assert message in caught and "The detector was fitted on shape 3 x 36 x 36" in caught
    assert main([*asked, "--skip-bad"]) == 0
    caught = capsys.readouterr()
    assert [row["path"][-5:] for row in table(caught.out)] == ["a.png", "c.png"]
    assert message in caught.err


def test_the_checkpoint_is_asked_for_at_once(here, tmp_path, capsys, monkeypatch):
    out = str(tmp_path / "d.nac")
    torch.manual_seed(0)
    torch.save(build("resnet_embedded", 4).state_dict(), "small.pt")
    options = ["--arch", "resnet_embedded", "--checkpoint", "small.pt", "--device", "cpu"]
    assert main(["fit", *options, *DATA[2:], "--out", out]) == 0
    message = capsys.readouterr().out
    assert "transform     the network's own" in message
    commands = [["score", "stripes"], ["export"], ["drift", "stripes"]]
    for command, *more in [*commands, *([["serve"]] if find_spec("uvicorn") else [])]:
        assert main([command, "--detector", out, *more]) == 1
        message = capsys.readouterr().err
        assert "with the weights of small.pt: pass them, too, --checkpoint small.pt" in message
    # and the architecture, by its name in the file, need not be named
    assert main(["score", "--detector", out, "--checkpoint", "small.pt", "stripes"]) == 0
    assert len(table(capsys.readouterr().out)) == 20


def test_validation_data_far_below_the_training_data_is_reported(here, tmp_path, capsys):
    rows, rolled = ["path,label"], ["path,label"]
    for number, path in enumerate(sorted((here / "birds/val").rglob("*.png"))):
        rows.append(f"{path},{'parrot' if number % 3 else path.parent.name}")
        rolled.append(f"{path},{(number // 30 + 1) % 4}")
    (tmp_path / "val.csv").write_text("\n".join(rows))
    (tmp_path / "rolled.csv").write_text("\n".join(rolled))
    options = ["--val", tmp_path / "val.csv", "--out", tmp_path / "d"]
    assert fit(*options) == 1 and not (tmp_path / "d").exists()
    message = capsys.readouterr().err
    assert "far below the 100.0% of training samples (standard error" in message
    assert "Nothing was written; --force writes the detector anyway" in message
    assert fit(*options, "--force") == 0 and (tmp_path / "d").exists()
    assert fit(*options, "--val", str(tmp_path / "rolled.csv")) == 1
    message = capsys.readouterr().err
    assert "far below the 100.0%" in message and "100.0% if its classes had another" in message


def test_low_accuracy_with_a_published_transform_and_own_weights_is_reported(
    here, tmp_path, capsys
):
    torch.manual_seed(0)
    torch.save(build("resnet_embedded", 4).state_dict(), "small.pt")
    options = ["--arch", "resnet_embedded", "--checkpoint", "small.pt", "--transform", "auto"]
    assert fit(*options, "--out", tmp_path / "d") == 0
    message = capsys.readouterr().err
    assert re.search(r"is right on 2\d\.\d% of training samples, with the transform .*own", message)


def test_little_power_is_reported(here):
    net = network_of("net.py:make", 4, "net.pt")
    det = NACDetector(net)
    draw = torch.Generator().manual_seed(0)
    samples = TensorDataset(torch.randn(300, 3, 32, 32, generator=draw), torch.arange(300) % 4)
    train, val = (DataLoader(Subset(samples, range(*at)), 50) for at in ((0, 200), (200, 300)))
    det.fit(train).calibrate(val)  # pure noise: the synthetic images are like the data
    power = measure_power(det, val, train)
    assert power.n == 64 and power.mean < 0.4 and power.found["noise"] < 0.3
    assert any("the detector has little power: it finds" in text for text in power.warnings)
    easy = measure_power(det, val, alpha=0.9)
    assert easy.mean > 0.5 and not any("little power" in text for text in easy.warnings)
    assert measure_power(det, [torch.zeros(4, 3, 32, 30)]) is None
