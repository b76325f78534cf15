"""The seam between a rule and everything that uses it, with a rule that is not NAC."""

import copy
import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from openood_tiny import need_openood
from own_project import DATA, NETWORK, copied
from torch.utils.data import DataLoader, TensorDataset

import nac_openood
from nac_openood import LayerConfig, NACDetector, NACError, Reading, Readings
from nac_openood.benchmark.methods.backends import NACScorer
from nac_openood.benchmark.methods.table import chosen_methods
from nac_openood.cli import main
from nac_openood.core import rule as rules
from nac_openood.core.coverage import Coverage
from nac_openood.core.reading import logits_in
from nac_openood.core.rule import Needs, Rule


class MeanRule(Rule):
    """Distance from the mean activation, and the largest logit: forward only, needs labels."""

    name = "mean"
    layer_settings = LayerConfig

    @property
    def needs(self):
        return Needs(tuple(self.layers), logits=True, labels=True)

    def layer_statistics(self, layer, reading, label):
        return {"sum": reading.activation.double().sum(dim=0)}

    def layer_score(self, layer, reading):
        return -self._off(layer, reading).norm(dim=1)

    def parts(self, readings):
        largest = logits_in(readings).double().amax(dim=1)
        return {**super().parts(readings), "logits": largest}

    def neurons(self, readings):
        return {name: -self._off(name, readings[name]).abs() for name in self.layers}

    def _off(self, layer, reading):
        return reading.activation - self.state[f"sum/{layer}"] / self.n_samples


@pytest.fixture
def mean_rule(monkeypatch):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    rules.register_rule(MeanRule)


@pytest.fixture
def loader(images, labels):
    return DataLoader(TensorDataset(images, labels), batch_size=10)


def test_rules_have_names(mean_rule):
    assert [rules.RULES[name][0] for name in ("nac", "nac_plus", "mean")] == ["NAC", "NAC+", "mean"]
    with pytest.raises(NACError, match=r"unknown rule 'magic'; expected one of .*register_rule"):
        rules.rule_named("magic")


@pytest.mark.parametrize(
    "rule, message",
    [
        (object, "expected a subclass of"),
        (type("New", (Rule,), {"name": "no name"}), "New.name must be an identifier"),
        (type("New", (Rule,), {"name": "nac"}), "that no rule of this package has, got 'nac'"),
    ],
)
def test_what_is_not_registered(rule, message):
    with pytest.raises(NACError, match=message):
        nac_openood.register_rule(rule)


def test_a_rule_with_the_name_of_a_method_is_not_compared_in_its_place(monkeypatch):
    for name in ("knn", "my_rule"):
        monkeypatch.setitem(rules.RULES, name, ("Mine", type("Mine", (Rule,), {"name": name})))
    table = importlib.util.module_from_spec(importlib.util.find_spec(chosen_methods.__module__))
    table.__spec__.loader.exec_module(table)  # imported after the registration
    assert "my_rule" not in [method.name for method in table.chosen_methods()]
    assert table.chosen_methods(["my_rule"])[0].rule == "my_rule"
    with pytest.raises(NACError, match="'knn' is a method and a rule of your own: rename the rule"):
        table.chosen_methods(["knn"])


def test_another_rule_needs_no_other_file(mean_rule, small_net, loader, images, labels, tmp_path):
    det = NACDetector(small_net, ["avgpool", "layer2"], rule="mean").fit(loader)
    result = det.score_loader(loader)
    assert set(result.by_layer) == {"avgpool", "layer2", "logits"}
    torch.testing.assert_close(det.score(images), torch.from_numpy(result.score))
    det.calibrate(loader).save(tmp_path / "x")
    again = NACDetector.load(tmp_path / "x", small_net)
    assert again.rule == "mean" and torch.equal(again.predict(images), det.predict(images))
    readings = det.read_loader(loader)
    assert torch.equal(NACDetector.from_rule(small_net, det.rule_).score_readings(readings),
                       torch.from_numpy(result.score))  # fmt: skip
    assert det.fit_readings(readings).score(images).tolist() == again.score(images).tolist()
    with pytest.raises(NACError, match="fitted class by class, but this loader yields no labels"):
        NACDetector(small_net, ["avgpool"], rule="mean").fit([images])


def test_a_rule_without_gradients_costs_no_backward_pass(mean_rule, small_net, loader, images):
    backward = []
    small_net.fc.register_full_backward_hook(lambda *_: backward.append(1))
    det = NACDetector(small_net, ["layer2"], rule="mean").fit(loader)
    det.score(images)
    plain = NACDetector(small_net, {"layer2": LayerConfig(state="output", steepness=0.1)})
    plain.fit(loader).score(images)
    assert not backward
    assert plain.read_loader(loader)["layer2"].gradient is None
    NACDetector(small_net, ["layer2"], rule="nac").fit(loader)
    assert backward


def test_merged_shards_are_one_fit(mean_rule, small_net, images, labels):
    whole = [(images, labels)]
    shards = [[(images[:10], labels[:10])], [(images[10:], labels[10:])]]
    for rule in ("nac", "mean"):
        one = NACDetector(small_net, ["avgpool"], rule=rule).fit(whole)
        first, second = (NACDetector(small_net, ["avgpool"], rule=rule).fit(s) for s in shards)
        merged = first.merge(second)
        assert merged.fit_summary_ == one.fit_summary_
        torch.testing.assert_close(merged.score(images), one.score(images), rtol=1e-12, atol=0)
    with pytest.raises(NACError, match="rule 'mean' and autocast=None with one of rule 'nac'"):
        merged.merge(NACDetector(small_net, ["avgpool"], rule="nac").fit(whole))


def test_only_another_detector_of_the_same_network_is_merged(small_net, images):
    det = NACDetector(small_net, ["avgpool"], rule="nac").fit([images])
    before = det.score(images)
    net = copy.deepcopy(small_net)
    twin = NACDetector(net, ["avgpool"], rule="nac").fit([images])
    net.fc.bias.data += 1
    with pytest.raises(NACError, match="has changed since this detector was .* other weights"):
        det.merge(twin)
    with pytest.raises(NACError, match="of another network: .* other weights"):
        det.merge(NACDetector(net, ["avgpool"], rule="nac").fit([images]))
    with pytest.raises(NACError, match="with itself: its samples would count twice"):
        det.merge(det)
    assert torch.equal(det.score(images), before)
    net.fc.bias.data.copy_(small_net.fc.bias.data)
    with pytest.warns(UserWarning, match="24 of 24 samples of the other detector are samples of"):
        assert det.merge(twin).fit_summary_.n_samples == 2 * len(images)


def test_readings_carry_logits_and_old_files_say_so(mean_rule, small_net, loader, tmp_path):
    det = NACDetector(small_net, ["avgpool"], rule="mean").fit(loader)
    readings = det.read_loader(loader, save_to=tmp_path / "r")
    assert torch.equal(readings.logits.argmax(dim=1), readings.prediction)
    assert Readings.load(tmp_path / "r").logits.shape == (24, 4)
    old = Readings(readings.by_layer, readings.prediction, readings.label)
    old.save(tmp_path / "old")
    with pytest.raises(NACError, match="have no logits.*Read the network again"):
        det.score_readings(Readings.load(tmp_path / "old"))
    assert NACDetector(small_net, {"avgpool": LayerConfig(state="output")}).fit_readings(old)


def test_states_that_need_gradients_say_so(small_net):
    layers = {"a": LayerConfig(), "b": LayerConfig(state="output")}
    assert Coverage(layers).needs == Needs(("a", "b"), frozenset({"a"}))
    only = {"avgpool": Reading(torch.zeros(3, 10))}
    with pytest.raises(NACError, match=r"rule 'nac' needs gradients with .*output\*gradient"):
        NACDetector(small_net, ["avgpool"], rule="nac").fit_readings(only)


@pytest.mark.parametrize("rule", ["nac", "mean"])
def test_explanations_add_up(mean_rule, rule, small_net, loader, images):
    det = NACDetector(small_net, ["avgpool", "layer2"], rule=rule).fit(loader)
    plain = det.explain(images[:3], top=2)
    assert plain[0].p_value is None
    found = det.calibrate(loader).explain(images[:3], top=2)
    for row, (score, p) in enumerate(zip(det.score(images[:3]), det.p_value(images[:3]))):
        assert found[row].score == float(score) and found[row].p_value == float(p)
        assert sum(found[row].contributions.values()) == pytest.approx(float(score))
        assert all(len(neurons) == 2 for neurons in found[row].neurons.values())


# ---- the rule of docs/compare.md, in a package that offers it as an entry point


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """An installed package with the rule of the docs page; returns the page's Python blocks."""
    page = (Path(__file__).parents[1] / "docs" / "compare.md").read_text(encoding="utf-8")
    page = page.split("\n## Rules of your own\n")[1]
    definition, use = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    entry = re.search(r'points."(.+?)"\]\n(\w+) = "(.+?):(\w+)"', page)
    package = tmp_path / "site"
    (package / "outside-1.dist-info").mkdir(parents=True)
    (package / "outside_rules.py").write_text(definition.replace("@nac_openood.register_rule", ""))
    (package / "outside-1.dist-info" / "METADATA").write_text("Name: outside\nVersion: 1\n")
    (package / "outside-1.dist-info" / "entry_points.txt").write_text(
        f"[{entry[1]}]\n{entry[2]} = outside_rules:{entry[4]}\nbroken = no_such_module:Rule\n"
    )
    monkeypatch.syspath_prepend(package)
    monkeypatch.delitem(sys.modules, "outside_rules", raising=False)
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    return definition, use


def test_the_rule_of_the_docs_in_python(outside, small_net, loader, images, tmp_path, monkeypatch):
    definition, use = outside
    assert len([line for line in definition.splitlines() if line.strip()]) <= 12
    monkeypatch.chdir(tmp_path)
    names = {"net": small_net, "train_loader": loader, "val_loader": loader, "images": images}
    exec(definition + use, names)
    again = NACDetector.load("detector.nac", small_net)
    assert torch.equal(again.score(images), names["detector"].score(images))
    activation = names["detector"].read_loader(loader)["layer1"].activation
    first = -(activation - activation.double().mean(dim=0)).norm(dim=1)
    assert again.score_loader(loader).by_layer["layer1"] == pytest.approx(first.numpy())


@pytest.mark.filterwarnings("ignore:the fitting set is uneven")
def test_an_entry_point_is_a_rule_for_commands(outside, own_project, tmp_path, capsys, drawn_once):
    with copied(own_project, tmp_path / "place"):
        assert main(["fit", *NETWORK, *DATA, "--rule", "mean_distance", "--out", "d.nac"]) == 0
        assert "mean_distance" in capsys.readouterr().out
        assert main(["score", "--detector", "d.nac", *NETWORK, "birds/test/parrot"]) == 0
        assert capsys.readouterr().out.count(",parrot,") > 10
        test = ["--test", "birds/test", "--far", "stripes=stripes", "--out", "out"]
        options = [*NETWORK, *DATA, *test, "--methods", "mean_distance", "msp"]
        assert main(["compare", *options]) == 0
        message = capsys.readouterr().out
        assert "Mean distance" in message and "- transform: resize: 36, crop: 32" in message
        assert main(["fit", *NETWORK, *DATA, "--rule", "broken"]) == 1
        assert "rule 'broken' cannot be loaded: No module named" in capsys.readouterr().err


@pytest.mark.openood
def test_openood_takes_a_rule_without_a_yaml_file(outside, tmp_path):
    need_openood()
    assert nac_openood.register(compat=True)
    try:
        from openood.evaluation_api.postprocessor import get_postprocessor

        found = get_postprocessor(str(tmp_path), "mean_distance", "cifar10")
        assert found._name == "mean_distance" and not found.APS_mode
    finally:
        nac_openood.unregister()


def test_results_of_a_rule_of_the_users_own_depend_on_its_source(mean_rule, tmp_path, monkeypatch):
    """Otherwise, `compare` would show the scores of a formula that has been changed since."""
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for body in ("return 1", "return 2 + 0", "return 1"):
        (tmp_path / "my_formula.py").write_text(
            "from nac_openood.core.rule import Rule\n\n\nclass Mine(Rule):\n    name = 'mine'\n\n"
            f"    def layer_score(self, layer, reading):\n        {body}\n"
        )
        sys.modules.pop("my_formula", None)
        importlib.invalidate_caches()
        rules.register_rule(importlib.import_module("my_formula").Mine)
        found.append(NACScorer(rule="mine"))
    monkeypatch.delitem(sys.modules, "my_formula")
    first, changed, restored = found
    assert first.implementation == "my_formula" and NACScorer().implementation.startswith("nac_o")
    assert first.settings == restored.settings != changed.settings
    assert "code" not in NACScorer(rule="nac_plus").settings  # the version tells
