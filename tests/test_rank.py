"""Ranking checkpoints: read once, chosen by validation accuracy, measured on target domains."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn
from torch.utils.data import TensorDataset

from nac_openood import IntegralConfig, NACError, Ranking, coverage_integral, rank_checkpoints
from nac_openood.evaluation.rank import SPACES, space_named
from nac_openood.evaluation.ranking import rank_correlation, rc_by_volume

SPACE = {"n_bins": [5, 12], "steepness": [1.0, 20.0], "full_count": [1, 3]}


def domain(n, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 6, generator=generator) + shift
    x[:, :3] += 1.5 * nn.functional.one_hot(y, 3)
    return TensorDataset(x, y)


DOMAINS = {
    "train": {"a": domain(40, 0.0, 1), "b": domain(31, 0.4, 2)},
    "val": {"a": domain(30, 0.0, 3), "b": domain(24, 0.4, 4)},
    "test": {"c": domain(50, 1.0, 5)},
}


def make():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def load(path):
    net = make()
    net.load_state_dict(torch.load(path, weights_only=True))
    return net.eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The checkpoints of a real, short training."""
    folder = tmp_path_factory.mktemp("run")
    x, y = (torch.cat(t) for t in zip(*(d.tensors for d in DOMAINS["train"].values())))
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    for step in range(1, 13):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step % 2 == 0:
            torch.save(net.state_dict(), folder / f"step_{step}.pt")
    return folder


def rank(run, out=None, **changed):
    options = {"load": load, "layer": "1", "space": SPACE, "out": out, **DOMAINS, **changed}
    return rank_checkpoints([str(p) for p in sorted(run.glob("*.pt"))], **options)


def accuracy(net, domains):
    """The mean over domains of the share of correct predictions."""
    pairs = [domain.tensors for domain in domains.values()]
    return float(np.mean([(net(x).argmax(1) == y).double().mean() for x, y in pairs]))


def test_every_number_is_what_it_says(run):
    ranking = rank(run)
    assert [c.step for c in ranking.checkpoints] == [2, 4, 6, 8, 10, 12]  # not 10, 12, 2, ...
    nets = [load(c.path) for c in ranking.checkpoints]
    val, test = ([accuracy(net, DOMAINS[role]) for net in nets] for role in ("val", "test"))
    batches = [d.tensors for d in DOMAINS["train"].values()]
    assert len(ranking.candidates) == 8
    for tried in ranking.candidates:
        expected = [coverage_integral(net, batches, "1", tried.config) for net in nets]
        assert list(tried.coverage) == expected
        assert tried.rc_val == pytest.approx(spearmanr(expected, val).statistic)
    best = max(tried.rc_val for tried in ranking.candidates)
    assert ranking.rc_val == pytest.approx(best)
    assert [c.val for c in ranking.checkpoints] == pytest.approx(val)
    assert [c.test for c in ranking.checkpoints] == pytest.approx(test)
    scores = {"validation": val, "nac-me": ranking.scores("nac-me"), "oracle": test}
    for criterion, values in scores.items():
        assert ranking.rc(criterion) == pytest.approx(spearmanr(values, test).statistic)
        assert ranking.accuracy(criterion) == pytest.approx(test[int(np.argmax(values))])
    assert ranking.chosen() == ranking.order()[0]
    assert ranking.layer == "1" and ranking.sizes["train"] == {"a": 40, "b": 31}


def test_target_data_changes_no_choice(run):
    with_test, without = rank(run), rank(run, test=None)
    assert without.config == with_test.config
    assert [c.name for c in without.order()] == [c.name for c in with_test.order()]
    assert not without.has_test and without.checkpoints[0].test is None
    with pytest.raises(NACError, match="pass `test` to measure"):
        without.rc("validation")


def test_the_oracle_may_have_data_of_its_own(run):
    other = {"c": domain(40, 1.0, 9)}
    ranking = rank(run, oracle=other)
    first = ranking.checkpoints[0]
    assert first.oracle == pytest.approx(accuracy(load(first.path), other))
    best = max(ranking.checkpoints, key=lambda c: c.oracle)
    assert ranking.accuracy("oracle") == best.test


def test_checkpoints_are_read_once(run, tmp_path):
    messages = []
    first = rank(run, tmp_path / "out", say=messages.append)
    assert messages == [f"reading checkpoint {i} of 6: step_{2 * i}" for i in range(1, 7)]
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "readings").iterdir()}
    messages.clear()
    wider = rank(run, tmp_path / "out", space={**SPACE, "n_bins": [5, 7]}, say=messages.append)
    assert not messages and stamps == {p: p.stat().st_mtime_ns for p in stamps}
    assert rank(run, tmp_path / "out") == first == Ranking.load(tmp_path / "out") != wider
    rank(run, tmp_path / "out", layer="0", say=messages.append)  # another layer: all are read again
    assert len(messages) == 6


def test_an_interrupted_ranking_goes_on(run, tmp_path):
    out = tmp_path / "out"

    def stop(text):
        if "3 of 6" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rank(run, out, say=stop)
    kept = ["step_2.safetensors", "step_4.safetensors"]
    assert sorted(p.name for p in out.rglob("*.*") if p.suffix) == kept
    messages = []
    assert rank(run, out, say=messages.append) == rank(run)
    assert len(messages) == 4
    (out / "readings" / "step_2.safetensors").write_bytes(b"half")
    messages.clear()
    rank(run, out, say=messages.append)
    assert messages == ["reading checkpoint 1 of 6: step_2"]


def test_a_network_that_is_never_right_has_no_coverage(run):
    turned = {"a": TensorDataset(DOMAINS["train"]["a"].tensors[0], torch.full((40,), 2))}
    nets = [load(p) for p in sorted(run.glob("*.pt"))[:3]]
    nn.init.zeros_(nets[0][2].weight)  # it predicts class 0 always
    nets[0][2].bias.data = torch.tensor([1.0, 0.0, 0.0])
    ranking = rank_checkpoints(nets, train=turned, val=DOMAINS["val"], space=SPACE)
    assert ranking.checkpoints[0].coverage == 0.0
    assert [c.name for c in ranking.checkpoints] == ["Sequential-0", "Sequential-1", "Sequential-2"]


def other_architecture(path):
    if path.endswith("step_8.pt"):
        return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
    return load(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"load": other_architecture}, "checkpoints of one architecture; step_8 differ"),
        ({"load": None}, "pass `load`"),
        ({"train": {}}, "`train` has no domain"),
        ({"val": {"a": TensorDataset(torch.zeros(0, 6), torch.zeros(0).long())}}, "dataset is empty"),
        ({"train": {"a": domain(6, 0, 0), "b": [torch.zeros(6)] * 4}}, "train domain b has no labels"),
        ({"test": {"c": TensorDataset(torch.zeros(4, 6), torch.full((4,), 3))}}, "labels must be in 0..2"),
        ({"layer": "nine"}, "has no layer 'nine'"),
        ({"space": "mnist"}, "unknown `space` .mnist.; expected one of"),
        ({"space": {"bins": [3]}}, "unknown layer setting"),
        ({"space": {"n_bins": []}}, "at least one value for each setting"),
        ({"val": [1]}, "`val` must map names of domains"),
    ],
)  # fmt: skip
def test_bad_input_is_reported_and_nothing_is_written(run, tmp_path, changed, message):
    with pytest.raises(NACError, match=message):
        rank(run, tmp_path / "out", **changed)
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_one_checkpoint_cannot_be_ranked(run):
    with pytest.raises(NACError, match="at least two checkpoints to rank, got 1"):
        rank_checkpoints([load(run / "step_2.pt")], **DOMAINS)


def test_equal_validation_accuracies_choose_nothing(run):
    net = load(run / "step_2.pt")
    with pytest.raises(NACError, match="the settings of NAC-ME cannot be chosen"):
        rank_checkpoints([net, net], space=SPACE, **DOMAINS)
    ranking = rank_checkpoints([net, net], space=IntegralConfig(5, 1, 1.0), **DOMAINS)
    assert ranking.rc_val is None and ranking.rc("nac-me") is None
    assert ranking.notes == ("RC with validation accuracy is undefined: all values are equal.",)


def test_rank_correlation():
    # ranks 1.5, 1.5, 3 and 1, 2, 3: a tie has the mean rank, 0.866; by position it would be 1
    assert rank_correlation([5, 5, 9], [1, 2, 3]) == pytest.approx(np.sqrt(3) / 2)
    for undefined in (([1], [2]), ([], []), ([1, 1], [1, 2]), ([1, 2], [7, 7])):
        assert rank_correlation(*undefined) is None
    for scores in ([1, float("nan")], [1, 2, 3]):
        with pytest.raises(NACError, match="expected a finite score and accuracy for each"):
            rank_correlation(scores, [1, 2])


def test_spaces_by_name():
    """That they are the paper's is tested in test_published.py."""
    assert {space_named(n) for n in ("PACS", "office_home", "terra_incognita", "VLCS")} == (
        set(SPACES) - {"all"}
    )
    assert space_named("digits") == "all"
    steep = {s for name in set(SPACES) - {"all"} for s in SPACES[name]["steepness"]}
    assert set(SPACES["all"]["steepness"]) == steep


def test_rc_over_the_volume_of_test_data():
    rng = np.random.default_rng(0)
    skill = np.linspace(0.3, 0.9, 8)
    flags = (rng.random((8, 400)) < skill[:, None]).astype(np.uint8)
    points = rc_by_volume({"nac-me": skill}, [flags, flags[:, :100]])
    sizes = [(0.02, 10), (0.05, 25), (0.1, 50), (0.2, 100), (0.5, 250), (1.0, 500)]
    assert [(p.share, p.samples) for p in points] == sizes  # 1 % are too few
    whole = (flags.mean(1) + flags[:, :100].mean(1)) / 2
    assert points[-1].mean == pytest.approx(rank_correlation(skill, whole))
    assert points[-1].draws == 1 and points[0].draws == 20
    assert points[0].mean < points[-1].mean and points[0].std > 0
    never = rc_by_volume({"nac-me": skill}, [np.ones((8, 40))])
    assert never[-1].mean is None and never[-1].draws == 0
