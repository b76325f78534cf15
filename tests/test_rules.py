"""The seam between a rule and everything that uses it, with a rule that is not NAC."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from nac_openood import (
    FileError,
    LayerConfig,
    NACDetector,
    NACError,
    NotFittedError,
    Reading,
    Readings,
)
from nac_openood.core import rules
from nac_openood.core.coverage import Coverage
from nac_openood.core.reading import logits_in
from nac_openood.core.rule import Needs, Rule


class MeanRule(Rule):
    """Distance from the mean activation, and the largest logit: forward only, needs labels."""

    name = "mean"
    layer_settings = LayerConfig

    def __init__(self, layers):
        self.layers = dict(layers)
        self.sums, self._n = {}, 0

    @property
    def needs(self):
        return Needs(tuple(self.layers), logits=True, labels=True)

    @property
    def n_samples(self):
        return self._n

    def update(self, readings, label=None):
        for name in self.layers:
            added = readings[name].activation.double().sum(dim=0)
            self.sums[name] = self.sums.get(name, 0) + added
        self._n += len(label)

    def check(self):
        if not self._n:
            raise NACError("nothing was fitted.")

    def merge(self, other):
        self.sums = {name: total + other.sums[name] for name, total in self.sums.items()}
        self._n += other._n

    def parts(self, readings):
        far = {n: -(readings[n].activation - self.sums[n] / self._n).norm(dim=1) for n in self.sums}
        return {**far, "logits": logits_in(readings).double().amax(dim=1)}

    def combine(self, parts):
        return torch.stack(list(parts.values())).sum(dim=0)

    def contributions(self, parts):
        return dict(parts)

    def neurons(self, readings):
        return {n: -(readings[n].activation - self.sums[n] / self._n).abs() for n in self.sums}

    def tensors(self):
        return {f"sum/{name}": total for name, total in self.sums.items()}

    def settings(self):
        return {"layers": {n: c.to_dict() for n, c in self.layers.items()}, "n": self._n}

    @classmethod
    def restore(cls, settings, tensors):
        rule = cls({n: LayerConfig.from_dict(c) for n, c in settings["layers"].items()})
        rule.sums = {n: tensors[f"sum/{n}"] for n in rule.layers}
        rule._n = settings["n"]
        return rule


@pytest.fixture
def mean_rule(monkeypatch):
    monkeypatch.setattr(rules, "RULES", {**rules.RULES, "mean": MeanRule})


@pytest.fixture
def loader(images, labels):
    return DataLoader(TensorDataset(images, labels), batch_size=10)


def test_nac_is_the_first_row():
    assert next(iter(rules.RULES.items())) == ("nac", Coverage)
    with pytest.raises(NACError, match="unknown rule 'magic'; expected one of"):
        rules.rule_named("magic")


def test_what_nac_needs_depends_on_its_states():
    layers = {"a": LayerConfig(), "b": LayerConfig(state="output")}
    assert Coverage(layers).needs == Needs(("a", "b"), frozenset({"a"}))


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
    NACDetector(small_net, ["layer2"]).fit(loader)
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
    with pytest.raises(NACError, match="cannot merge detectors of rules 'mean' and 'nac'"):
        merged.merge(NACDetector(small_net, ["avgpool"]).fit(whole))


def test_only_another_detector_of_the_same_network_is_merged(small_net, images):
    det = NACDetector(small_net, ["avgpool"]).fit([images])
    before = det.score(images)
    for other, told in ((det, "itself: samples would count twice"), (None, "got NoneType")):
        with pytest.raises(NACError, match=f"expected another detector to merge .*{told}"):
            det.merge(other)
    net = copy.deepcopy(small_net)
    twin = NACDetector(net, ["avgpool"]).fit([images])
    net.fc.bias.data += 1
    with pytest.raises(NACError, match=r"of another network: .* other weights .*Fit both on the"):
        det.merge(twin)
    assert torch.equal(det.score(images), before)
    net.fc.bias.data.copy_(small_net.fc.bias.data)
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
    only = {"avgpool": Reading(torch.zeros(3, 10))}
    with pytest.raises(NACError, match=r"state 'output\*gradient' needs gradients"):
        NACDetector(small_net, ["avgpool"]).fit_readings(only)


def test_a_damaged_file_of_readings_is_named(tmp_path):
    from nac_openood import files

    files.write_tensors(tmp_path / "x", "nac_openood readings", 2, {}, {"layers": ["a"]})
    with pytest.raises(FileError, match="damaged: the tensor 'prediction' is missing"):
        Readings.load(tmp_path / "x")


def test_rules_pickle():
    rule = Coverage({"a": LayerConfig(state="output")})
    rule.update({"a": Reading(torch.randn(5, 3))})
    again = pickle.loads(pickle.dumps(rule))
    assert torch.equal(again.histograms["a"].counts, rule.histograms["a"].counts)


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


def test_p_values_need_a_calibration(small_net, loader, images):
    det = NACDetector(small_net, ["avgpool"]).fit(loader)
    with pytest.raises(NotFittedError, match="call calibrate.loader. with at least 16"):
        det.p_value(images)
    det.calibrate([images[:5]])
    with pytest.raises(NotFittedError, match="no p-values yet"):
        det.p_value(images)
    p = det.calibrate(loader).p_value(images)
    assert ((p > 0) & (p <= 1)).all()
