"""Advice: a detector that saturates or loses says so, and says what to do."""

import json
import warnings
from collections import OrderedDict
from dataclasses import replace

import minibench
import openood_standin
import pytest
import torch
from conftest import noise
from report_example import RUNS, SETS, build
from sklearn.neighbors import NearestNeighbors
from test_probe import equal, snapshot
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import nac_openood
from nac_openood import LayerConfig, NACConfig, NACDetector, NACError, NotFittedError, advise
from nac_openood.benchmark.run.results import Results
from nac_openood.core.coverage import Coverage, saturation
from nac_openood.core.histogram import Histogram
from nac_openood.core.metrics import auroc, auroc_intervals
from nac_openood.core.plus import gen
from nac_openood.core.posthoc import boundary_gaps, fdbd, nci
from nac_openood.detector.config import preset
from nac_openood.network.head import with_features
from nac_openood.records import from_values
from nac_openood.report.methods import Ranked, hyperparameters
from nac_openood.search import advise as comparison
from nac_openood.search.loaders import few_of
from nac_openood.search.recipe import ReadingSet, gather, set_up

FLAT = LayerConfig(steepness=1e-9)


def linear(weight):
    layer = nn.Linear(*weight.shape[::-1], bias=False)
    layer.weight.data.copy_(weight)
    return layer


def TableNet():
    """Four inputs, each a class: inputs near zero belong to none, which the logits show."""
    three = torch.cat([torch.eye(4)] * 3)
    hidden = nn.Sequential(linear(three), nn.ReLU())
    return nn.Sequential(OrderedDict(hidden=hidden, head=linear(three.t())))


def table(n, seed, size=4.0):
    draw = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % 4
    values = size * F.one_hot(label, 4) + torch.randn(n, 4, generator=draw)
    return DataLoader(TensorDataset(values, label), batch_size=32)


# -- how certain an AUROC is -------------------------------------------------------------------


def test_intervals_are_those_of_a_paired_bootstrap():
    draw = torch.Generator().manual_seed(0)
    n = 150
    common = torch.randn(2, n, generator=draw)
    own = torch.randn(2, 2, n, generator=draw)
    scores = (common + 0.7 * own).round(decimals=1)  # correlated, with ties
    inside, outside = scores[:, 0] + 0.8, scores[:, 1]
    aurocs, differences = auroc_intervals(inside, outside)
    values = [found.value for found in aurocs]
    assert values == pytest.approx(auroc(inside, outside).tolist(), rel=1e-12)
    rows = torch.randint(n, (600, 2, n), generator=draw)
    spread = torch.stack([auroc(inside[:, i], outside[:, o]) for i, o in rows])
    sampled = {aurocs[0]: spread[:, 0], differences[1]: spread[:, 1] - spread[:, 0]}
    for interval, values in sampled.items():
        wanted = 2 * 2.576 * float(values.std())
        assert interval.high - interval.low == pytest.approx(wanted, rel=0.15)
    assert differences[0] == (0, 0, 0)


# -- saturation, from the counts ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "config", "why"),
    [
        (dict.fromkeys(range(24), 1), LayerConfig(), "empty"),
        (dict.fromkeys(range(19), 1), LayerConfig(), None),  # few samples are not judged
        ({0: 40, 47: 60}, LayerConfig(full_count=30), "steep"),
        ({23: 60, 24: 40}, LayerConfig(full_count=30), "flat"),
        ({24: 100}, LayerConfig(full_count=5000), "flat"),  # never full, but always alike
        ({0: 45, 1: 55}, LayerConfig(n_bins=4, full_count=30), "bins"),
        ({0: 100}, LayerConfig(n_bins=4, full_count=30), None),  # a new sign would be noticed
        # a rare sign: one neuron in thirty is usually at its less frequent end
        ({0: 96, 47: 4}, LayerConfig(full_count=50), None),
        # every fitting sample is fully covered, but a new one may well fall into a lone bin
        ({**dict.fromkeys(range(10), 1), 47: 90}, LayerConfig(full_count=1), None),
        ({**dict.fromkeys(range(20, 28), 12), 28: 4}, LayerConfig(full_count=3), None),
        ({0: 40, 47: 60}, LayerConfig(full_count=30, weight=0), None),
    ],
)
def test_only_layers_that_tell_nothing_are_reported(columns, config, why):
    histogram = Histogram.empty(30, config.n_bins, torch.device("cpu"))
    histogram.counts[:, list(columns)] = torch.tensor(list(columns.values()), dtype=torch.int32)
    histogram.n_samples = sum(columns.values())
    found = saturation(histogram, config)
    assert (found and found[0]) == why


def test_fit_warns_of_flat_layers_and_says_what_to_change(small_net):
    layers = {"layer1": FLAT, "layer2": LayerConfig(n_bins=20)}
    with pytest.warns(UserWarning, match=r"layer 'layer1' .*steepness=1e-09 .*: raise it, or"):
        det = NACDetector(small_net, layers, rule="nac").fit(noise(100, 0))
    warned = advise(det, noise(40, 1)).warnings
    better = float(warned[0].partition("): about ")[2].split()[0])
    assert "layer1" in warned[0]
    repaired = {**layers, "layer1": LayerConfig(steepness=better)}
    fixed = NACDetector(small_net, repaired, rule="nac").fit(noise(100, 0))
    assert "layer1" not in fixed.rule_.saturated(certain=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NACDetector(small_net, "auto", rule="nac_plus").fit(noise(400, 0))


@pytest.mark.parametrize(("size", "noticed"), [(0.0, True), (4.0, False)])
def test_a_steep_layer_is_reported_only_where_it_fails(size, noticed):
    """All ID states are 0 or 1; states that vanish stand out, other ID samples do not."""

    net = nn.Sequential(OrderedDict(hidden=nn.Identity(), head=linear(torch.eye(4))))

    def data(n, seed, size):
        draw = torch.Generator().manual_seed(seed)
        return [size * torch.randn(n, 4, generator=draw).sign() * torch.rand(n, 4, generator=draw)]

    steep = {"hidden": LayerConfig(state="output", steepness=1e9, full_count=5)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        det = NACDetector(net, steep, rule="nac").fit(data(400, 0, 4.0))
    advice = advise(det, data(100, 1, 4.0), ood_val=data(100, 2, size))
    reported = [text for text in advice.warnings if text.startswith("layer 'hidden'")]
    assert bool(reported) != noticed
    assert noticed or reported[0].endswith("on OOD validation data, its AUROC alone is 50.0")


@pytest.mark.bench
def test_published_settings_do_not_warn_on_the_miniature_benchmark(bench):
    folder, root = bench
    published = preset("cifar10", "resnet").layers
    reader = NACDetector(minibench.trained(folder), published, rule="nac")
    fit = reader.read_loader(minibench.loader(root, "train_cifar10"), 100)

    def saturated(layers):
        # a tenth of the usual samples fill a tenth of the usual count
        layers = {n: replace(c, full_count=max(1, c.full_count // 10)) for n, c in layers.items()}
        rule = NACDetector(reader.net, layers, rule="nac").fit_readings(fit).rule_
        return set(rule.saturated()), set(rule.saturated(certain=False))

    def same(steepness):
        return dict.fromkeys(published, LayerConfig(steepness=steepness))

    assert saturated(published) == (set(), set())
    assert saturated(same(100)) == (set(), {"layer1", "layer2"})
    assert saturated(same(1e-6))[0] == set(published)


# -- the comparison ----------------------------------------------------------------------------


@pytest.fixture
def flat():
    """A detector that cannot tell anything."""
    return NACDetector(TableNet(), {"hidden": FLAT}).fit(table(200, 0))


def test_a_detector_that_loses_says_by_how_much_and_what_to_use(flat):
    advice = advise(flat, table(100, 1), train=table(200, 0), ood_val=table(100, 2, size=0))
    assert set(advice.table) == {"NAC", "NAC+", "GEN", "NCI", "fDBD", "KNN"}
    aurocs = [found.value for found in advice.table.values()]
    assert aurocs == sorted(aurocs, reverse=True)
    nac = advice.table["NAC"].value
    assert nac < 0.6 and "NAC" not in advice.differences
    assert next(iter(advice.differences.values())).low > comparison.MARGIN
    assert advice.warnings[0].startswith("layer 'hidden' cannot tell samples apart")
    message = advice.warnings[-1]
    assert message.startswith(f"on OOD validation data, NAC has AUROC {100 * nac:.1f}, ")
    assert "99 % interval" in message and message.endswith(", or search the settings")
    shown = str(advice)
    assert f"> NAC    {100 * nac:7.1f}" in shown and f"Warning: {message}." in shown
    assert (advice.n_id, advice.n_ood) == (100, 100) and not advice.notes


def test_a_detector_that_does_well_is_not_warned_about():
    det = NACDetector(TableNet(), "auto", rule="nac_plus").fit(table(400, 0))
    det.calibrate(table(200, 1))
    advice = advise(det, table(200, 1), train=table(200, 0), ood_val=table(100, 2, size=0))
    assert not advice.warnings and "NAC+" in advice.table and "NAC" not in advice.table
    assert "No method is clearly more than 1 point ahead." in str(advice)


def test_noise_is_no_reason_to_warn(flat):
    """ID against ID: nothing is better than chance, whatever the sample says."""
    for seed in range(5):
        advice = advise(flat, table(60, seed), train=table(200, 0), ood_val=table(60, 50 + seed))
        assert not [text for text in advice.warnings if "AUROC" in text]


def test_the_numbers_are_those_of_each_method_by_itself(small_net):
    """All alternatives from NAC's own readings, which sum over positions."""
    sample = next(iter(noise(3, 9)))[0]
    half, _ = comparison.reader_for(
        NACDetector(small_net, ["layer1"], rule="nac", autocast=torch.bfloat16), sample
    )
    assert half.autocast == torch.bfloat16
    needed, _ = comparison.reader_for(NACDetector(small_net, ["layer1"], rule="nac"), sample)
    det = NACDetector(small_net, {name: LayerConfig() for name in needed.layers}, rule="nac")
    train, inside, outside = noise(120, 0), noise(60, 1), noise(50, 2)
    fit, i, o = map(det.read_loader, (train, inside, outside))
    known = comparison.alternative_layers(det, sample)
    assert known.early and max(known.early.values()) > 1 and known.head_input
    stored = json.loads(json.dumps(known._asdict()))
    assert from_values(comparison.AlternativeLayers, stored) == known
    head = comparison.head_weight(det.net, sample)
    found = comparison.alternatives(fit, i, known, head)
    with pytest.warns(UserWarning, match="of which 12 are held out: too few"):
        plus = NACDetector(small_net, "auto", rule="nac_plus").fit(train)
    plus.calibrate(inside)
    expected = torch.from_numpy(plus.score_loader(outside).score)
    assert torch.allclose(found["NAC+"](o), expected, rtol=1e-4, atol=1e-4)
    logits, features = with_features(small_net, torch.cat([x for x, _ in outside]))[:2]
    assert torch.allclose(found["GEN"](o), gen(logits), atol=1e-5)
    mean = with_features(small_net, torch.cat([x for x, _ in train])).features.mean(dim=0)
    ratio = found["fDBD"](o) / fdbd(features, logits, boundary_gaps(head), mean)
    assert ratio.std() < 1e-5 * ratio.mean()  # only the unit of the features differs
    bank, new = (F.normalize(r[known.head_input].activation, dim=1).numpy() for r in (fit, o))
    distance = NearestNeighbors(n_neighbors=1).fit(bank).kneighbors(new)[0][:, -1]
    assert torch.allclose(2 - 2 * found["KNN"](o), torch.from_numpy(distance**2), atol=1e-5)
    expected = nci(features, logits, head, mean, 1e-4).double()
    assert torch.allclose(found["NCI"](o), expected, rtol=1e-4, atol=1e-5)
    assert set(found) == {"GEN", "NCI", "fDBD", "KNN", "NAC+"}
    assert set(comparison.alternatives(fit, i, known)) == {"GEN", "KNN", "NAC+"}
    assert set(comparison.alternatives(None, i, known, head)) == {"GEN"}
    assert set(comparison.alternatives(fit, i, comparison.AlternativeLayers(), head)) == {"GEN"}


def test_surrogates_are_named_and_nothing_is_changed(small_net):
    det = NACDetector(small_net, ["layer2"], rule="nac").fit(noise(60, 0))
    before = snapshot(small_net)
    first, second = (advise(det, noise(60, 1), train=noise(60, 0)) for _ in range(2))
    assert first == second and first.against == comparison.SURROGATE and first.n_ood == 60
    assert "on surrogates, not real OOD data" in str(first)
    assert all("not real OOD data" in text for text in first.warnings if "AUROC" in text)
    assert equal(before, snapshot(small_net))
    assert advise(det, noise(60, 1), seed=1) != advise(det, noise(60, 1))


@pytest.mark.parametrize("rule, times", [("nac_plus", 1), ("nac", 2)])
def test_images_are_read_once_if_the_detector_reads_all_that_others_need(small_net, rule, times):
    class Counted(TensorDataset):
        read = 0

        def __getitem__(self, index):
            self.read += 1
            return super().__getitem__(index)

    det = NACDetector(small_net, rule=rule).fit(noise(60, 0))
    inside, outside = (DataLoader(Counted(*noise(40, s).dataset.tensors), 20) for s in (1, 2))
    det.calibrate(inside)
    advice = advise(det, inside, train=noise(60, 0), ood_val=outside)
    assert {"GEN", "fDBD", "NCI", "KNN", "NAC+"} <= set(advice.table)
    assert outside.dataset.read == 40 * times


def test_what_cannot_be_compared_is_noted(flat):
    advice = advise(flat, table(50, 1))
    assert not advice.table and advice.warnings[0].startswith("layer 'hidden'")
    assert "only be made from square images, not from inputs of shape [32, 4]" in advice.notes[0]
    assert str(advice).count("\n") == 1
    few = advise(flat, table(10, 1), ood_val=table(50, 2))
    assert not few.table and "which needs 20 ID and 20 OOD samples" in few.notes[0]
    alone = advise(flat, table(50, 1), ood_val=table(50, 2))
    assert set(alone.table) == {"NAC", "GEN"}
    missing = ("KNN", "NAC+", "NCI", "fDBD")
    wanted = [f"{name} was not compared: there is no training data" for name in missing]
    assert list(alone.notes) == wanted


def test_samples_that_overflow_are_left_out(flat):
    inside, outside = list(table(64, 1)), list(table(64, 2))
    inside[0][0][5] = outside[0][0][3] = float("nan")
    advice = advise(flat, inside, train=table(200, 0), ood_val=outside)
    assert len(advice.table) == 6
    assert all(0 <= found.value <= 1 for found in advice.table.values())
    with pytest.raises(NotFittedError, match="not fitted: call fit first"):
        advise(NACDetector(TableNet(), ["hidden"], rule="nac"), table(50, 1))
    with pytest.raises(NACError, match="the loader yielded no batch"):
        advise(flat, [])


def test_a_few_samples_of_any_loader():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from table(100, 0).dataset

    labels = torch.cat([y for _, y in few_of(table(100, 0), 40)])
    assert labels.bincount().tolist() == [10] * 4
    assert sum(len(x) for x, _ in few_of(table(100, 0), 3)) == 3
    for stream in (DataLoader(Stream(), batch_size=32), iter(table(100, 0))):
        few = few_of(stream, 40)
        assert [len(batch.data) for batch in few] == [32, 8]
        assert sum(len(batch.label) for batch in few) == 40


# -- where it is told --------------------------------------------------------------------------

CONFIG = NACConfig(
    {"hidden": FLAT}, n_samples=100, search=True, sweep={"hidden": {"steepness": [1e-9, 2e-9]}}
)


def test_the_recipe_advises_with_and_without_a_search():
    sets = table(200, 0), table(60, 1), table(60, 2, size=0)
    found = set_up(TableNet(), CONFIG, *sets)[2]
    assert found.table["NAC"].value < 0.6 and "flatters" in found.notes[0]
    assert "search the settings" not in found.warnings[-1]
    quiet = NACConfig({"hidden": LayerConfig()}, n_samples=100)
    assert set_up(TableNet(), quiet, *sets)[2].table
    assert set_up(TableNet(), quiet, sets[0])[2] is None
    once = set_up(TableNet(), quiet, iter(sets[0]), *sets[1:])[2]
    assert set(once.table) == {"NAC", "GEN"}
    assert set_up(TableNet(), quiet, sets[0], iter(sets[1]))[2] is None
    assert "square images" in set_up(TableNet(), quiet, *sets[:2])[2].notes[0]


def test_readings_on_disk_give_the_same_advice(tmp_path):
    layers = {"hidden": LayerConfig(), "hidden.1": LayerConfig(full_count=10)}
    reader = NACDetector(TableNet(), layers, rule="nac")
    sets = table(100, 0), iter(table(60, 1)), table(60, 2, size=0)
    kept = gather(reader, *sets, n_samples=None, folder=tmp_path)
    assert kept.id_val.n_samples == 60  # also of a loader that yields its batches once
    rule = Coverage(layers)
    rule.update(kept.fit)
    again = ReadingSet.load(tmp_path)
    known = again.alternative_layers
    assert known == comparison.AlternativeLayers("hidden", {"hidden.1": 1.0}, 1.0)
    assert torch.equal(again.weight, reader.net.head.weight)
    first, second = (
        comparison.advise_on_readings(
            rule, r.id_val, r.ood_val, r.fit, layers=known, weight=r.weight
        )
        for r in (kept, again)
    )
    assert first == second and len(first.table) == 6


def test_the_comparison_tells_it_and_does_not_count_its_time():
    sets = {name: table(60, seed).dataset for seed, name in enumerate(("id_val", "test"), start=1)}
    results = nac_openood.compare(
        TableNet(), train=table(200, 0).dataset, **sets, far={"far": table(60, 3, size=0).dataset},
        ood_val=table(60, 4, size=0).dataset, methods=["nac"], nac_config=CONFIG,
    )  # fmt: skip
    (row,) = results.rows
    assert row.advice["auroc"]["NAC"] < 0.6 < row.advice["auroc"]["GEN"]
    assert "NAC (Sequential): on OOD validation data, NAC" in "".join(results.notes)
    assert Results.load(results.folder).rows[0].advice == row.advice


def test_the_report_shows_it(tmp_path):
    found = comparison.Advice("NAC", comparison.SURROGATE, warnings=("on surrogates: use GEN",))
    advice = {**found.to_dict(), "auroc": {"GEN": 0.8, "NAC": 0.6123}}

    def change(results):
        rows = [replace(r, advice=advice) if r.method == "nac" else r for r in results.rows]
        return replace(results, rows=tuple(rows))

    results = build(tmp_path, change, methods=("msp", "nac"), sets=SETS[:2], runs=RUNS[:1])
    (section, *_) = hyperparameters(Ranked(results)).blocks
    blocks = section.blocks
    assert "AUROC on surrogates, not real OOD data: GEN 80.00 %, NAC 61.23 %." in blocks
    assert "On surrogates: use GEN." in blocks


def test_the_plugin_warns(monkeypatch):
    made = openood_standin.install(monkeypatch)
    args = {"layers": {"hidden": {"steepness": 1e-9}}, "n_samples": 100}
    sweep = {"hidden": {"full_count": [20, 40]}}
    root = {"name": "nac", "APS_mode": True, "postprocessor_args": args}
    postprocessor = made({"postprocessor": {**root, "postprocessor_sweep": sweep}})
    inside, outside = {"train": table(200, 0), "val": table(60, 1)}, {"val": table(60, 2, size=0)}
    with pytest.warns(UserWarning, match="NAC has AUROC .* See docs/which_method.md"):
        postprocessor.setup(TableNet(), inside, outside)
    assert postprocessor.advice.differences["GEN"].low > comparison.MARGIN
