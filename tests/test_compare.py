"""A comparison: shared passes, cells that are made once, failures that stay where they are."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from compare_toy import CIFAR10, Failing, Toy, nac, plain, small_net, study, write_data
from PIL import Image
from safetensors import safe_open
from sklearn.metrics import roc_auc_score

from nac_openood import NACDetector, NACError, tensor_files
from nac_openood.benchmark.methods.table import Absent
from nac_openood.benchmark.run import cost, network, store
from nac_openood.benchmark.run.compare import run_study
from nac_openood.benchmark.run.results import Results
from nac_openood.benchmark.run.tabulate import tabulate
from nac_openood.detector.batches import batches
from nac_openood.sources.imglist import listed_sets


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


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
    net = small_net(None)
    loader = {name: samples.loader() for name, samples in asked.scored.items()}
    with torch.no_grad():
        features = {
            name: torch.cat(
                [
                    net.avgpool(net.layer4(net.layer3(net.layer2(net.layer1(b.data))))).flatten(1)
                    for b in batches(batched)
                ]
            ).mean(1)
            for name, batched in loader.items()
        }
    for name in ("cifar100", "mnist"):
        label = np.r_[np.ones(10), np.zeros(10)]
        score = np.r_[features["test"], features[name]]
        expected = 100 * roc_auc_score(label, score)
        assert results.value("toy", name, "AUROC").mean == pytest.approx(expected, abs=1e-9)
    near = [results.value("toy", n, "FPR@95").mean for n in ("cifar100", "tin")]
    assert results.value("toy", "nearood", "FPR@95").mean == pytest.approx(np.mean(near))
    row = next(r for r in results.rows if r.method == "nac")
    assert row.search["points"] == 2 and set(row.hyperparameters["layers"]) == {"avgpool", "layer2"}
    found = results.scores("s0", "nac", "mnist")
    np.testing.assert_allclose(
        found.score,
        np.mean([found.by_layer["avgpool"], found.by_layer["layer2"]], axis=0),
        atol=1e-6,
    )


def test_nac_scores_what_its_detector_scores(data, tmp_path):
    asked = study(data, tmp_path, {"nac": nac})
    results = run_study(asked)
    chosen = results.rows[0].hyperparameters
    from nac_openood.core.layer_config import LayerConfig

    layers = {n: LayerConfig.from_dict(c) for n, c in chosen["layers"].items()}
    detector = NACDetector(small_net(None), layers)
    detector.fit(asked.fitting["train"].loader(), n_samples=50, progress=False)
    expected = detector.score_loader(asked.scored["tin"].loader(), progress=False).score
    np.testing.assert_array_equal(results.scores("s0", "nac", "tin").score, expected)


def test_methods_on_features_share_one_pass(data, tmp_path, counted):
    methods = dict.fromkeys(("one", "two", "three"), Toy)
    run_study(study(data, tmp_path, methods, network=lambda run: counted))
    images = 100 + 10 + 10 + 5 * 10  # train, both validation sets, five test sets
    # the head is found by one more batch here and there
    assert images <= counted.tally.seen <= images + 8 * 4 * 2 + 4 * 2  # and two to warm up


def test_methods_that_need_no_training_data_cost_no_pass_over_it(data, tmp_path, counted):
    run_study(study(data, tmp_path, {"msp": Toy}, network=lambda run: counted))
    assert counted.tally.seen < 100 + 7 * 10
    assert not (tmp_path / "runs/s0/features/train.safetensors").exists()


def test_a_second_run_goes_through_nothing_again(data, tmp_path, counted):
    methods = {"toy": Toy, "nac": nac}
    first = run_study(study(data, tmp_path, methods, network=lambda run: counted))
    counted.tally.seen = 0
    second = run_study(study(data, tmp_path, methods, network=lambda run: counted))
    assert counted.tally.seen == 0
    assert second == first == Results.load(tmp_path)


def test_features_of_an_earlier_run_are_read_once(data, tmp_path, monkeypatch):
    run_study(study(data, tmp_path, {"toy": Toy}))
    opened = []

    def read(path, *more):
        opened.append(path)
        return tensor_files.read_tensors(path, *more)

    monkeypatch.setattr(network, "tensor_files", SimpleNamespace(read_tensors=read))
    run_study(study(data, tmp_path, {"toy": Toy}, seed=1))
    assert len(opened) == len(set(opened)) == 8


CHANGES = ["weights", "settings", "seed", "images", "batch_size", "arch", "transform"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_made_with_something_else_is_made_again(data, finished, tmp_path, change):
    whole, before = finished
    shutil.copytree(whole, tmp_path / "out")
    more, net, make, root = {}, small_net, Toy, data
    if change == "weights":

        def net(run):
            other = small_net(run)
            with torch.no_grad():
                other.layer4[1].weight.mul_(-1)
            return other

    elif change == "settings":
        make = lambda: Toy(sign=-1.0)  # noqa: E731
    elif change == "seed":
        more = {"seed": 1}
    elif change == "images":
        root = write_data(tmp_path / "data")
        Image.new("RGB", (32, 32), (9, 9, 9)).save(root / "images_classic" / "tin/test/0.png")
    asked = study(root, tmp_path / "out", {"toy": make}, network=net, **more)
    if change == "batch_size":
        asked = dataclasses.replace(asked, batch_size=5)
    if change == "arch":
        asked = dataclasses.replace(asked, arch="small, with other padding")
    if change == "transform":
        wide = dataclasses.replace(CIFAR10, mean=(0.2, 0.3, 0.4))
        asked = dataclasses.replace(asked, sets=listed_sets(wide, root))
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/runs/s0/toy").glob("*.safetensors")}
    after = run_study(asked)
    fresh = run_study(dataclasses.replace(asked, out=tmp_path / "fresh"))
    assert plain(after) == plain(fresh)
    assert len(kept) == 5
    made_anew = {p.name for p, t in kept.items() if p.stat().st_mtime_ns != t}
    assert made_anew == {p.name for p in kept}
    if change in ("weights", "settings", "images"):
        assert plain(after) != plain(before)


def test_a_method_that_fails_is_a_row_and_the_others_go_on(data, tmp_path):
    lacking = Absent("it lacks a GAN")

    def absent():
        raise lacking

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
    # what a later run mends is whole
    methods["late"] = methods["bad"] = Toy
    mended = run_study(study(data, tmp_path, methods))
    assert [r.status for r in mended.rows] == ["ok", "ok", "ok", "absent", "ok"]
    assert mended.rows[1].metrics == mended.rows[0].metrics


@pytest.mark.parametrize("after", [0, 4])
def test_an_interruption_loses_nothing_that_was_finished(data, tmp_path, after):
    methods = {"toy": Toy, "slow": Toy, "nac": nac}
    undisturbed = run_study(study(data, tmp_path / "whole", methods))
    stopped = {**methods, "slow": lambda: Failing(KeyboardInterrupt(), "score", after)}
    with pytest.raises(KeyboardInterrupt):
        run_study(study(data, tmp_path / "out", stopped))
    partial = Results.load(tmp_path / "out")
    assert [r.status for r in partial.rows] == ["ok", "failed", "failed"]
    assert "repeat the comparison" in partial.rows[1].error
    finished = list((tmp_path / "out/runs/s0/slow").glob("*.safetensors"))
    assert len(finished) == after
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/runs").rglob("*.safetensors")}
    assert plain(run_study(study(data, tmp_path / "out", methods))) == plain(undisturbed)
    if after:  # `Failing` has other settings than `Toy`, so its cells are made again; others stay
        kept = {p: t for p, t in kept.items() if "slow" not in p.parts}
    assert all(p.stat().st_mtime_ns == t for p, t in kept.items())


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


def test_damaged_cells_are_made_again(data, tmp_path):
    whole = run_study(study(data, tmp_path, {"toy": Toy, "nac": nac}))
    for path in (
        "runs/s0/toy/tin.safetensors", "runs/s0/features/test.safetensors",
        "runs/s0/nac/setup.json", "images.json",
    ):  # fmt: skip
        content = (tmp_path / path).read_bytes()
        (tmp_path / path).write_bytes(content[: len(content) // 2])
    assert plain(run_study(study(data, tmp_path, {"toy": Toy, "nac": nac}))) == plain(whole)


def damaged(path, how):
    """Change a file of scores or features, which stays one that can be opened."""
    from safetensors.torch import save_file

    content = path.read_bytes()
    with safe_open(path, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    about = json.loads(metadata["about"])
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
        return
    if how == "empty":
        path.write_bytes(b"")
        return
    if how == "no tensors":
        tensors = {"other": torch.zeros(3)}
    if how == "a tensor less":
        del tensors["prediction"]
    if how == "a row less":
        tensors = {name: tensor[:-1].clone() for name, tensor in tensors.items()}
    if how == "uneven":
        tensors["label"] = tensors["label"][:-1].clone()
    if how == "other type":
        tensors["label"] = tensors["label"].to(torch.bfloat16)
    if how == "scalar":
        tensors = {name: torch.zeros((), dtype=t.dtype) for name, t in tensors.items()}
    if how == "no times":
        about.pop("cost", None), about.pop("timing", None)
    if how == "strange times":
        about.update(cost=[[[[0, 1]], 0, 0], "?", None], timing=[[["x"]], 0, 0])
    if how == "a list":
        about = [1]
    if how == "no json":
        metadata["about"] = metadata["about"][:-5]
        save_file(tensors, path, metadata=metadata)
    else:  # with a checksum that is right, or the damage would be noticed by that
        kind, version = metadata["kind"], int(metadata["version"])
        tensor_files.write_tensors(path, kind, version, tensors, about)


#: Each is done to the file of another set.
DAMAGES = [
    ("truncated", "empty", "no tensors", "a tensor less", "a row less"),
    ("uneven", "other type", "scalar", "no times", "strange times"),
    ("no json", "a list"),
]


@pytest.mark.parametrize("damages", DAMAGES)
@pytest.mark.parametrize("kind", ["toy", "features"])
def test_a_damaged_file_counts_as_missing(data, finished, tmp_path, kind, damages):
    whole, expected = finished
    out = shutil.copytree(whole, tmp_path / "out")
    for name, how in zip(("test", "cifar100", "tin", "mnist", "texture"), damages):
        damaged(out / "runs/s0" / kind / f"{name}.safetensors", how)
    if kind == "features":  # or else nobody would ask for them
        shutil.rmtree(out / "runs/s0/toy")
    assert plain(run_study(study(data, out, {"toy": Toy}))) == plain(expected)
    kept = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*.safetensors")}
    run_study(study(data, out, {"toy": Toy}))  # and it has healed
    assert kept == {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*.safetensors")}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"made_with": 3}', '"text"', None])
def test_a_damaged_setup_counts_as_missing(data, finished, tmp_path, content):
    whole, expected = finished
    out = shutil.copytree(whole, tmp_path / "out")
    path = out / "runs/s0/toy/setup.json"
    note = json.loads(path.read_text())
    del note["hyperparameters"]
    path.write_text(json.dumps(note) if content is None else content)
    assert plain(run_study(study(data, out, {"toy": Toy}))) == plain(expected)
    assert json.loads(path.read_text())["hyperparameters"] == {"knob": 3}


def test_several_runs_give_mean_and_deviation(data, tmp_path):
    def network(run):
        torch.manual_seed(int(run.name[1:]))
        net = small_net(run)
        with torch.no_grad():
            net.fc.weight.mul_(1 + int(run.name[1:]))
            net.layer4[1].weight.add_(0.1 * int(run.name[1:]))
        return net

    results = run_study(study(data, tmp_path, {"toy": Toy}, runs=("s0", "s1"), network=network))
    each = [r.metrics["tin"]["AUROC"] for r in results.rows]
    assert each[0] != each[1]
    assert results.value("toy", "tin", "AUROC") == (np.mean(each), np.std(each))


def test_full_spectrum_counts_shifted_images_as_inside(data, tmp_path):
    results = run_study(study(data, tmp_path, {"toy": Toy}, full_spectrum=True))
    score = {n: results.scores("s0", "toy", n).score for n in ("test", "cifar10c", "tin")}
    inside = np.r_[score["test"], score["cifar10c"]]
    label = np.r_[np.ones(20), np.zeros(10)]
    expected = 100 * roc_auc_score(label, np.r_[inside, score["tin"]])
    assert results.value("toy", "tin", "AUROC").mean == pytest.approx(expected)
    assert results.names("csid") == ["cifar10c"] and "cifar10c" not in results.rows[0].metrics


def break_images(root):
    (root / "images_classic/tin/test/3.png").unlink()
    (root / "images_classic/mnist/1.png").write_bytes(b"no image")
    (root / "images_classic/cifar10/train/5.png").write_bytes(b"")


def test_bad_images_are_named_and_counted_before_anything_runs(tmp_path):
    root = write_data(tmp_path / "data")
    break_images(root)
    asked = study(root, tmp_path / "out", {"toy": Toy})
    with pytest.raises(NACError, match=r"tin: 1 of 10 images are missing.*tin/test/3.png") as told:
        run_study(asked)
    assert "mnist/1.png" in str(told.value) and "train: 1 of 100" in str(told.value)
    assert "pass `skip_bad=True`" in str(told.value) and not (tmp_path / "out/runs").exists()


def test_bad_images_are_skipped_where_asked(tmp_path):
    root = write_data(tmp_path / "data")
    break_images(root)
    said = []
    asked = study(root, tmp_path / "out", {"toy": Toy, "nac": nac}, skip_bad=True, say=said.append)
    results = run_study(asked)
    sizes = {s.name: (s.images, s.skipped) for s in results.sets}
    assert sizes["tin"] == (9, 1) and sizes["cifar100"] == (10, 0)
    assert any("1 images of mnist cannot be read" in note for note in results.notes)
    assert any("mnist/1.png" in text for text in said)
    assert len(results.scores("s0", "nac", "mnist").score) == 9


def test_the_gallery_holds_the_hardest_images(data, tmp_path):
    results = run_study(study(data, tmp_path, {"nac": nac}))
    score = results.scores("s0", "nac", "test").score
    inside = [e for e in results.gallery if e.kind == "id-lowest"]
    assert [e.score for e in inside] == sorted(score.tolist())[:8]
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


def test_results_of_a_newer_format_or_half_a_file_are_refused(data, tmp_path):
    run_study(study(data, tmp_path, {"toy": Toy}))
    document = tmp_path / "results.json"
    content = json.loads(document.read_text())
    document.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(NACError, match="format 99"):
        Results.load(tmp_path)
    document.write_text(document.read_text()[:100])
    with pytest.raises(NACError, match="damaged"):
        Results.load(tmp_path)
    with pytest.raises(NACError, match="expected the folder of a comparison"):
        Results.load(tmp_path / "nowhere")


def test_the_device_is_the_one_that_ran(data, tmp_path, monkeypatch):
    asked = study(data, tmp_path, {"toy": Toy})
    run_study(asked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert tabulate(asked, {("s0", "toy")}).machine["device"] == "CPU"
    note = tmp_path / "runs/s0/toy/setup.json"
    content = store.read_note(note)
    store.write_note(note, {**content, "made_with": {**content["made_with"], "device": "cuda"}})
    assert tabulate(asked, {("s0", "toy")}).machine["device"] == "Some GPU"


def test_cells_say_what_made_them(data, tmp_path):
    run_study(study(data, tmp_path, {"toy": Toy}))
    made = store.read_scores(tmp_path / "runs/s0/toy/tin.safetensors").made_with
    assert made["implementation"] == "toy 1" and made["settings"] == {"sign": 1.0}
    assert {"versions", "arch", "network", "seed", "images", "fitting"} <= set(made)
    assert {"nac_openood", "torch", "torchvision", "pillow"} <= set(made["versions"])
    assert CIFAR10.name == "cifar10"


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), NACError("does not fit")])
def test_a_checkpoint_that_cannot_begin_is_rows_and_the_others_go_on(data, tmp_path, error):
    def network(run):
        if run.name == "s1":
            raise error
        return small_net(run)

    asked = study(data, tmp_path, {"toy": Toy}, runs=("s0", "s1", "s2"), network=network)
    results = run_study(asked)
    assert [r.status for r in results.rows] == ["ok", "failed", "ok"]
    assert str(error) in results.rows[1].error and results.runs[1].accuracy is None


def test_a_stopped_run_with_other_weights_shows_no_old_numbers(data, tmp_path):
    run_study(study(data, tmp_path, {"toy": Toy}, runs=("s0", "s1")))

    def network(run):
        if run.name == "s1":
            raise KeyboardInterrupt
        return small_net(run)

    with pytest.raises(KeyboardInterrupt):
        run_study(study(data, tmp_path, {"toy": Toy}, runs=("s0", "s1"), network=network))
    partial = Results.load(tmp_path)
    assert partial.runs[1].accuracy is None and partial.rows[1].status == "failed"


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

    root = write_data(tmp_path / "data")
    real = samples.problem

    def flaky(path):
        return "Input/output error" if path.name == "3.png" else real(path)

    with monkeypatch.context() as patch:
        patch.setattr(samples, "problem", flaky)
        with pytest.raises(NACError, match="Input/output error"):
            run_study(study(root, tmp_path / "out", {"toy": Toy}))
    results = run_study(study(root, tmp_path / "out", {"toy": Toy}))
    assert {s.images for s in results.sets} == {10}


def test_truncated_images_are_bad_whatever_openood_told_pillow(tmp_path, monkeypatch):
    from PIL import ImageFile

    from nac_openood.sources.readers import unlabelled_samples
    from nac_openood.sources.samples import bad_images

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "b.jpg").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    found = bad_images(unlabelled_samples(tmp_path, CIFAR10.transform()), progress=False)
    assert list(found) == [1] and "truncated" in found[1]
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_leftovers_of_kills_are_cleared_after_a_day(data, tmp_path):
    run_study(study(data, tmp_path, {"toy": Toy}))
    old, new = (tmp_path / "runs/s0/features" / f".test.safetensors.{x}" for x in "ab")
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    run_study(study(data, tmp_path, {"toy": Toy}))
    assert not old.exists() and new.exists()


def test_a_wrong_network_leaves_earlier_results_alone(data, tmp_path):
    before = run_study(study(data, tmp_path, {"toy": Toy}))

    def network(run):
        raise NACError("unknown architecture 'resnett'")

    with pytest.raises(NACError, match="resnett"):
        run_study(study(data, tmp_path, {"toy": Toy}, network=network))
    assert Results.load(tmp_path) == before == Results.load(tmp_path / "results.json")


@pytest.mark.parametrize("label", [77, -1])
@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_labels_that_are_no_class_are_refused(tmp_path, part, label):
    root = write_data(tmp_path / "data")
    path = root / f"benchmark_imglist/cifar10/{part}_cifar10.txt"
    lines = path.read_text().splitlines()
    lines[3] = f"{lines[3].split()[0]} {label}"
    path.write_text("\n".join(lines) + "\n")
    told = rf"{part}.*{part}_cifar10.txt\): labels must be in 0..9.*found {label}"
    with pytest.raises(NACError, match=told):
        run_study(study(root, tmp_path / "out", {"toy": Toy}))
    assert not (tmp_path / "out/runs").exists()


def test_times_are_those_of_the_median_batch(data, tmp_path, monkeypatch):
    """One batch that takes long does not decide, and the results say that there was one."""
    passed = 0.0  # seconds, on a clock that only the scorer moves
    clock = SimpleNamespace(perf_counter=lambda: passed)
    monkeypatch.setattr(cost, "time", clock)

    class Stalling(Toy):
        def score(self, loader):
            def slowly():
                nonlocal passed
                for batch in loader:
                    passed += len(batch["data"]) * (0.002 if passed else 5.0)
                    yield batch

            return super().score(slowly())

    results = run_study(study(data, tmp_path, {"stalling": Stalling, "toy": Toy}))
    stalling, toy = results.rows
    assert stalling.ms_per_image == pytest.approx(2.0) and stalling.disturbed
    assert toy.ms_per_image == 0.0 and not toy.disturbed
    assert Results.load(tmp_path) == results


def test_results_of_an_earlier_version_still_load(data, tmp_path):
    results = run_study(study(data, tmp_path, {"toy": Toy}))
    path = tmp_path / "results.json"
    content = json.loads(path.read_text())
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
