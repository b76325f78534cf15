"""A comparison: shared passes, cells that are made once, failures that stay where they are."""

import dataclasses
import json
import os
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from compare_toy import CIFAR10, Failing, Toy, nac, plain, small_net, study
from conftest import percent
from openood_tiny import write_benchmark
from PIL import Image

from nac_openood import NACDetector, NACError
from nac_openood.benchmark.methods.table import Absent
from nac_openood.benchmark.run import store
from nac_openood.benchmark.run.compare import run_study
from nac_openood.benchmark.run.results import Results
from nac_openood.core.layer_config import LayerConfig
from nac_openood.detector.batches import batches
from nac_openood.network.head import with_features


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_benchmark(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A comparison that nothing disturbed: its folder, which is not to be written to."""
    out = tmp_path_factory.mktemp("finished")
    return out, run_study(study(data, out, {"toy": Toy}))


@pytest.fixture
def counted():
    """A network that counts the images it sees."""
    net = small_net(None)
    tally = net.tally = SimpleNamespace(seen=0)  # shared by the replicas that passes run on

    def count(_module, inputs):
        tally.seen += len(inputs[0])

    net.register_forward_pre_hook(count)
    return net


def test_the_numbers_are_those_of_the_scores(data, tmp_path):
    asked = study(data, tmp_path, {"toy": Toy, "nac": nac})
    results = run_study(asked)
    net, features = small_net(None), {}
    for name, samples in asked.scored.items():
        x = torch.cat([batch.data for batch in batches(samples.loader())])
        features[name] = with_features(net, x).features.mean(1)
    for name in ("cifar100", "mnist"):
        expected = percent(features["test"], features[name])
        assert results.value("toy", name, "AUROC").mean == pytest.approx(expected, abs=1e-9)
    near = [results.value("toy", n, "FPR@95").mean for n in ("cifar100", "tin")]
    assert results.value("toy", "nearood", "FPR@95").mean == pytest.approx(np.mean(near))
    row = next(r for r in results.rows if r.method == "nac")
    layers = {n: LayerConfig.from_dict(c) for n, c in row.hyperparameters["layers"].items()}
    assert row.search["points"] == 2 and set(layers) == {"avgpool", "layer2"}
    detector = NACDetector(net, layers, rule="nac")
    detector.fit(asked.fitting["train"].loader(), n_samples=50, progress=False)
    expected = detector.score_loader(asked.scored["tin"].loader(), progress=False)
    found = results.scores("s0", "nac", "tin")
    np.testing.assert_array_equal(found.score, expected.score)
    np.testing.assert_array_equal(found.by_layer["layer2"], expected.by_layer["layer2"])


@pytest.mark.parametrize(("methods", "images"), [(("one", "two", "three"), 180), (("msp",), 80)])
def test_methods_on_features_share_one_pass(data, tmp_path, counted, methods, images):
    """Of train (unless no method needs it), both validation sets and five test sets."""
    run_study(study(data, tmp_path, dict.fromkeys(methods, Toy), network=lambda run: counted))
    assert counted.tally.seen == images + 8  # a batch to find the head with, and one to warm up


def other_weights(run):
    net = small_net(run)
    with torch.no_grad():
        net.layer4[1].weight.mul_(-1)
    return net


WIDE_SETTINGS = dataclasses.replace(CIFAR10.settings, mean=(0.2, 0.3, 0.4))
WIDE = dataclasses.replace(CIFAR10, settings=WIDE_SETTINGS)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"network": other_weights}, True),
        ({"make": {"toy": lambda: Toy(sign=-1.0)}}, True),
        ({"seed": 1}, False),
        ({"batch_size": 5}, False),
        ({"arch": "small, with other padding"}, False),
        ({"benchmark": WIDE}, True),
        ({"image": "tin/test/0.png"}, True),
    ],
    ids=lambda change: "".join(change) if isinstance(change, dict) else "",
)
def test_what_was_made_with_something_else_is_made_again(data, finished, tmp_path, change, differs):
    out = shutil.copytree(finished[0], tmp_path / "out")
    options = {"data": data, "make": {"toy": Toy}, **change}
    if "image" in change:
        options["data"] = write_benchmark(tmp_path / "data")
        path = options["data"] / "images_classic" / options.pop("image")
        Image.new("RGB", (32, 32), (9, 9, 9)).save(path)
    kept = {p: p.stat().st_mtime_ns for p in (out / "runs/s0/toy").glob("*.safetensors")}
    after = plain(run_study(study(out=out, **options)))
    assert after == plain(run_study(study(out=tmp_path / "fresh", **options)))
    assert len(kept) == 5 and all(p.stat().st_mtime_ns != t for p, t in kept.items())
    assert (after != plain(finished[1])) >= differs


def test_a_method_that_fails_is_a_row_and_the_others_go_on(data, tmp_path):
    def absent():
        raise Absent("it lacks a GAN")

    methods = {
        "good": Toy,
        "bad": lambda: Failing(RuntimeError("out of <memory>")),
        "late": lambda: Failing(ValueError("at last"), "score", after=3),
        "absent": absent,
        "nac": nac,
    }
    results = run_study(study(data, tmp_path, methods))
    assert [r.status for r in results.rows] == ["ok", "failed", "failed", "absent", "ok"]
    assert results.rows[1].error == "RuntimeError: out of <memory>"
    assert results.rows[3].error == "it lacks a GAN"
    assert results.value("bad", "tin", "AUROC") is None
    (line,) = [t for t in results.table() if t["method"] == "bad"]
    assert line["status"] == "failed" and line["dataset"] == "" and line["AUROC"] is None
    # what a later run mends is whole
    methods["late"] = methods["bad"] = Toy
    mended = run_study(study(data, tmp_path, methods))
    assert [r.status for r in mended.rows] == ["ok", "ok", "ok", "absent", "ok"]
    assert mended.rows[1].metrics == mended.rows[0].metrics


def test_a_resumed_method_keeps_its_hyperparameters(data, tmp_path):
    run_study(study(data, tmp_path, {"toy": Toy}))
    folder = tmp_path / "runs/s0/toy"
    note = store.read_note(folder / "setup.json")
    store.write_note(folder / "setup.json", {**note, "hyperparameters": {"knob": 7}})
    (folder / "tin.safetensors").unlink()
    made = []

    def remembered():
        made.append(Toy())
        return made[-1]

    results = run_study(study(data, tmp_path, {"toy": remembered}))
    assert made[0].chosen == {"knob": 7} and results.rows[0].hyperparameters == {"knob": 7}


def damaged(content, how):
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"truncated": content[:100], "empty": b"", "flipped": flipped, "text": b"{}"}[how]


@pytest.mark.parametrize("kind", ["toy", "features"])
def test_a_damaged_file_counts_as_missing(data, finished, tmp_path, kind):
    whole, expected = finished
    out = shutil.copytree(whole, tmp_path / "out")
    for name, how in zip(
        ("test", "cifar100", "tin", "mnist"), ("truncated", "empty", "flipped", "text")
    ):
        path = out / "runs/s0" / kind / f"{name}.safetensors"
        path.write_bytes(damaged(path.read_bytes(), how))
    if kind == "features":  # or else nobody would ask for them
        shutil.rmtree(out / "runs/s0/toy")
    (out / "images.json").write_text("{")
    assert plain(run_study(study(data, out, {"toy": Toy}))) == plain(expected)
    kept = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*.safetensors")}
    run_study(study(data, out, {"toy": Toy}))  # and it has healed
    assert kept == {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*.safetensors")}


def test_full_spectrum_counts_shifted_images_as_inside(data, tmp_path):
    results = run_study(study(data, tmp_path, {"toy": Toy}, full_spectrum=True))
    score = {n: results.scores("s0", "toy", n).score for n in ("test", "cifar10c", "tin")}
    expected = percent(np.r_[score["test"], score["cifar10c"]], score["tin"])
    assert results.value("toy", "tin", "AUROC").mean == pytest.approx(expected)
    assert results.names("csid") == ["cifar10c"] and "cifar10c" not in results.rows[0].metrics


def test_bad_images_are_named_and_counted_before_anything_runs(tmp_path):
    root, messages = write_benchmark(tmp_path / "data"), []
    (root / "images_classic/tin/test/3.png").unlink()
    (root / "images_classic/mnist/1.png").write_bytes(b"no image")
    (root / "images_classic/cifar10/train/5.png").write_bytes(b"")
    asked = study(root, tmp_path / "out", {"toy": Toy}, say=messages.append)
    message = r"train: 1 of 100 .*tin: 1 of 10 images are missing.*tin/test/3.png.*mnist/1.png"
    with pytest.raises(NACError, match=message + ".*pass `skip_bad=True`"):
        run_study(asked)
    assert not (tmp_path / "out/runs").exists()
    results = run_study(dataclasses.replace(asked, skip_bad=True))
    sizes = {s.name: (s.images, s.skipped) for s in results.sets}
    assert sizes["tin"] == (9, 1) and sizes["cifar100"] == (10, 0)
    assert any("1 images of mnist cannot be read" in note for note in results.notes)
    assert any("mnist/1.png" in text for text in messages)
    assert len(results.scores("s0", "toy", "mnist").score) == 9


def test_the_gallery_holds_the_hardest_images(data, tmp_path):
    results = run_study(study(data, tmp_path, {"nac": nac}))
    score = results.scores("s0", "nac", "test").score
    inside = [e for e in results.gallery if e.kind == "id-lowest"]
    assert [e.score for e in inside] == sorted(score.tolist())[:8]
    by_chance = results.runs[0].accuracy < 20
    assert any("hardly better than chance" in note for note in results.notes) == by_chance
    tin = [e for e in results.gallery if e.dataset == "tin"]
    assert tin[0].score == results.scores("s0", "nac", "tin").score.max()
    for example in results.gallery:
        with Image.open(tmp_path / example.file) as image:
            assert image.size == (32, 32)
        assert set(example.layers) == {"avgpool", "layer2"}


def test_a_network_without_a_head_still_gets_nac(data, tmp_path):
    class Headless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = small_net(None)

        def forward(self, x):
            return self.backbone(x) * 2

    net = Headless().eval()
    results = run_study(study(data, tmp_path, {"toy": Toy, "nac": nac}, network=lambda run: net))
    assert [r.status for r in results.rows] == ["absent", "ok"]
    assert "nn.Linear" in results.rows[0].error


def test_scores_that_are_no_numbers_fail_the_method(data, tmp_path):
    class Broken(Toy):
        def score(self, loader):
            found = super().score(loader)
            found.score[0] = np.nan
            return found

    results = run_study(study(data, tmp_path, {"broken": Broken, "toy": Toy}))
    assert [r.status for r in results.rows] == ["failed", "ok"]
    assert "1 of 10 scores of test are NaN" in results.rows[0].error


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), KeyboardInterrupt()])
def test_a_network_that_fails_shows_no_old_numbers_and_the_others_go_on(data, tmp_path, error):
    def network(run):
        if run.name == "s1":
            raise error
        return small_net(run)

    runs = ("s0", "s1", "s2")
    run_study(study(data, tmp_path, {"toy": Toy}, runs=runs))
    asked = study(data, tmp_path, {"toy": Toy}, runs=runs, network=network)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run_study(asked)
        message, last = "not finished", "failed"
    else:
        run_study(asked)
        message, last = "CUDA out of memory", "ok"
    found = Results.load(tmp_path)
    assert [r.status for r in found.rows] == ["ok", "failed", last]
    assert message in found.rows[1].error and found.runs[1].accuracy is None


def test_an_old_table_does_not_lie_beside_new_scores(data, tmp_path):
    run_study(study(data, tmp_path, {"toy": Toy}))

    class Killed(Toy):
        def score(self, loader):
            assert not (tmp_path / "results.json").exists()
            return super().score(loader)

    results = run_study(study(data, tmp_path, {"toy": lambda: Killed(sign=-1.0)}))
    assert results.rows[0].status == "ok", results.rows[0].error


def test_an_image_that_can_be_read_again_is_used_again(tmp_path, monkeypatch):
    import nac_openood.sources.samples as samples

    root = write_benchmark(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(samples, "problem_of", lambda path: "Input/output error")
        with pytest.raises(NACError, match="Input/output error"):
            run_study(study(root, tmp_path / "out", {"toy": Toy}))
    results = run_study(study(root, tmp_path / "out", {"toy": Toy}))
    assert {s.images for s in results.sets} == {10}


def test_truncated_images_are_bad_whatever_openood_told_pillow(tmp_path, monkeypatch):
    from PIL import ImageFile

    from nac_openood.sources.readers import unlabelled_samples
    from nac_openood.sources.samples import readable_images

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "b.jpg").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    images = unlabelled_samples(tmp_path, CIFAR10.transform())
    rest, message = readable_images(images, "x", progress=False)
    assert rest.names == ["a.jpg"] and "truncated" in message
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_leftovers_of_kills_are_cleared_after_a_day(tmp_path):
    folder = tmp_path / "runs/s0/features"
    folder.mkdir(parents=True)
    old, new = (folder / f".test.safetensors.{x}" for x in "ab")
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    store.clear_leftovers(tmp_path)
    assert not old.exists() and new.exists()


def test_a_wrong_network_leaves_earlier_results_alone(data, tmp_path):
    before = run_study(study(data, tmp_path, {"toy": Toy}))

    def network(run):
        raise NACError("unknown architecture 'resnett'")

    with pytest.raises(NACError, match="resnett"):
        run_study(study(data, tmp_path, {"toy": Toy}, network=network))
    assert Results.load(tmp_path) == before == Results.load(tmp_path / "results.json")


def test_times_are_those_of_the_median_set(data, tmp_path, monkeypatch):
    """One set that takes long does not decide, and the results say that there was one."""
    passed = 0.0  # seconds, on a clock that only the scorer moves
    monkeypatch.setattr(time, "perf_counter", lambda: passed)

    class Stalling(Toy):
        def score(self, loader):
            nonlocal passed
            found = super().score(loader)
            passed += len(found.score) * (0.002 if passed else 5.0)
            return found

    results = run_study(study(data, tmp_path, {"stalling": Stalling, "toy": Toy}))
    stalling, toy = results.rows
    assert stalling.ms_per_image == pytest.approx(2.0) and stalling.disturbed
    assert toy.ms_per_image == 0.0 and not toy.disturbed
    assert Results.load(tmp_path) == results


def test_a_method_on_features_is_charged_for_the_shared_pass(data, tmp_path, monkeypatch):
    passed = 0.0  # seconds, on a clock that only the network moves
    monkeypatch.setattr(time, "perf_counter", lambda: passed)

    def slow(_run):
        def wait(_module, inputs):
            nonlocal passed
            passed += 0.003 * len(inputs[0])

        net = small_net(None)
        net.register_forward_pre_hook(wait)
        return net

    (row,) = run_study(study(data, tmp_path, {"toy": Toy}, network=slow)).rows
    assert row.shared_pass and row.ms_per_image == pytest.approx(3.0) and not row.disturbed


def test_results_of_an_earlier_version_still_load(finished, tmp_path):
    (folder, results), path = finished, tmp_path / "results.json"
    content = json.loads((folder / "results.json").read_text())
    del content["surrogates"], content["sha256"]
    for row in content["rows"]:
        del row["disturbed"]
        for metrics in row["metrics"].values():
            del metrics["FPR@95_IN"]
    path.write_text(json.dumps(content))
    old = Results.load(tmp_path)
    assert old.value("toy", "tin", "FPR@95_IN") is None
    assert old.value("toy", "tin", "FPR@95") == results.value("toy", "tin", "FPR@95")
    assert all(line["FPR@95_IN"] is None for line in old.table())
    content["rows"][0]["metrics"]["tin"]["AUROC"] = float("nan")
    path.write_text(json.dumps(content))
    with pytest.raises(NACError, match="metrics.tin.AUROC' must be a finite number, got nan"):
        Results.load(tmp_path)


def test_a_network_that_refuses_the_images_is_an_error_of_ours(data, tmp_path):
    class Picky(torch.nn.Module):
        def forward(self, x):
            raise AssertionError("Input height (32) does not match (224)")

    with pytest.raises(NACError, match=r"cannot be run on this data: .*Input height \(32\)"):
        run_study(study(data, tmp_path, {"toy": Toy}, network=lambda run: Picky()))
