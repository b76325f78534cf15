"""OpenOOD's own scripts in several processes: the same tables as in one."""

import csv
import pickle

import numpy as np
import pytest
from jobs import run_job
from openood_tiny import cifar10_tree
from processes import run

pytestmark = pytest.mark.openood
EVAL = ("run", "scripts/eval_ood.py", "--root", "results/run", "--id-data", "cifar10")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """OpenOOD with tiny data for CIFAR-10 and a checkpoint in results/run."""
    return cifar10_tree(tmp_path_factory.mktemp("parallel"))


def outcome(tree, name):
    """The table and the scores, which are removed for the next run."""
    run_folder = tree / "results" / "run"
    with (run_folder / "ood" / f"{name}.csv").open() as file:
        table = list(csv.reader(file))
    scores = pickle.loads((run_folder / "s0" / "scores" / f"{name}.pkl").read_bytes())
    for path in (*run_folder.glob(f"*/{name}.*"), *run_folder.glob(f"s0/*/{name}.pkl")):
        path.unlink()
    return table, scores


@pytest.mark.parametrize("name", ["nac", "odin"])
def test_several_processes_give_the_table_of_one(tree, name):
    args = (*EVAL, "--postprocessor", name, "--save-csv", "--save-score", "--batch-size", 3)
    alone = run(args, cwd=tree)
    assert alone.returncode == 0, alone.stderr
    table, scores = outcome(tree, name)
    for done in run_job(2, args, cwd=tree):
        assert done.returncode == 0, done.stderr
    shared_table, shared_scores = outcome(tree, name)
    assert shared_table == table
    for kind in ("near", "far"):
        for dataset, found in scores["ood"][kind].items():
            for mine, reference in zip(shared_scores["ood"][kind][dataset], found):
                assert np.array_equal(mine, reference), (dataset, name)
    assert sorted(p.name for p in (tree / "results" / "run").rglob("*")) == [
        "best.ckpt", "ood", "postprocessors", "s0", "scores",
    ]  # fmt: skip
