"""The pull request for OpenOOD works in the real one; rows for the leaderboard are right."""

import csv
import shutil
import subprocess
import sys

import pytest
from openood_tiny import (
    cifar10_tree,
    make_net,
    need_openood,
    tree_with_data,
    write_benchmark,
    write_checkpoint,
)
from processes import run
from script_module import script_module

from nac_openood.benchmark.run.results import NetworkInfo, Results, Row, SetInfo

upstream = script_module("upstream")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of OpenOOD's source tree with the pull request."""
    root, clone = need_openood(scripts=True), tmp_path_factory.mktemp("upstream") / "OpenOOD"
    for name in ("openood", "configs", "scripts"):
        shutil.copytree(root / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "main.py", clone)
    for name in upstream.write(clone):
        assert (clone / name).is_file()
    return clone


@pytest.mark.openood
def test_without_the_package_the_error_says_how_to_install_it(clone):
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from nac_openood.plugin.compat import compat; patches = compat(); patches.__enter__()\n"
        "from openood.evaluation_api.postprocessor import get_postprocessor as get\n"
        "found = [type(get('configs', n, 'cifar10')).__module__ for n in ('nac', 'nac_plus')]\n"
        "assert found == ['nac_openood.plugin.postprocessor'] * 2, found\n"
        "sys.modules['nac_openood'] = None  # as if it were not installed\n"
        "get('configs', 'msp', 'cifar10')\n"
        "get('configs', 'nac_plus', 'cifar10')\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=clone)
    assert (
        "ImportError: The postprocessor nac_plus needs a package: pip install nac-openood"
        in (done.stderr.strip().splitlines()[-1])
    )


@pytest.mark.openood
def test_it_scores_as_the_plugin_does(clone, tmp_path):
    data = write_benchmark(tmp_path / "data")
    tree = tree_with_data(clone, tmp_path, data)
    write_checkpoint(tree / "results" / "run", make_net(data, blocks=2))
    (tmp_path / "plain").mkdir()
    plain = cifar10_tree(tmp_path / "plain")
    shutil.copy(clone / "configs/postprocessors/nac.yml", tree / "configs/postprocessors")
    words = ["run", "scripts/eval_ood.py", "--root", "results/run", "--save-csv"]
    words += ["--id-data", "cifar10", "--postprocessor", "nac"]
    assert run(words, cwd=plain).returncode == 0
    # a process of its own: others have imported the OpenOOD of OPENOOD_SRC
    command = [sys.executable, "-m", "nac_openood", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree)
    assert done.returncode == 0, done.stderr
    assert "OpenOOD has a postprocessor 'nac' of its own" in done.stderr
    tables = [where / "results/run/ood/nac.csv" for where in (tree, plain)]
    assert tables[0].read_text() == tables[1].read_text()


@pytest.mark.openood
def test_a_second_pull_request_is_refused(clone, capsys):
    assert upstream.main(["write", str(clone)]) == 1
    assert "has a NACPostprocessor already" in capsys.readouterr().err


def test_other_trees_are_refused(tmp_path):
    with pytest.raises(upstream.UpstreamError, match="source tree of OpenOOD"):
        upstream.write(tmp_path)
    with pytest.raises(upstream.UpstreamError, match=r"utils\.py has another form.*by hand"):
        upstream.registered("postprocessors = []", "utils.py", upstream._IMPORT, "    ")


# -- rows for the leaderboard ----------------------------------------------------------------


def results(folder, *, near=("cifar100", "tin"), skipped=0, status="ok"):
    far = ("mnist", "svhn", "texture", "places365")
    sets = [SetInfo("cifar10", "id", 9000, skipped)]
    sets += [SetInfo(n, "near", 9000) for n in near] + [SetInfo(n, "far", 9000) for n in far]
    rows = []
    for number in range(3):
        metrics = {"nearood": {"AUROC": 90.0 + number}, "farood": {"AUROC": 94.0}}
        rows.append(Row("nac", "NAC", f"s{number}", "nac_openood", status, metrics=metrics))
    runs = tuple(NetworkInfo(f"s{n}", f"s{n}/best.ckpt", 95.0 + n / 10) for n in range(3))
    found = Results(
        folder, "cifar10", "resnet18_32x32", "", "", {}, {}, tuple(sets), runs, tuple(rows)
    )
    found.save()
    return str(folder)


def test_rows_have_openoods_mean_and_deviation(tmp_path, capsys):
    words = ["rows", results(tmp_path), "--description", "100 epochs", "--method", "nac"]
    assert upstream.main(words) == 0
    head, row = csv.reader(capsys.readouterr().out.splitlines())
    # numpy.std of 90, 91, 92, as OpenOOD's scripts compute it
    assert dict(zip(head, row)) == {
        "Training": "CrossEntropy",
        "Postprocessor": "NAC",
        "Near-OOD_AUROC": "91.00 ± 0.82",
        "Far-OOD_AUROC": "94.00 ± 0.00",
        "ID_Accuracy": "95.10 ± 0.08",
        "Outlier_Data": "No",
        "Arch": "ResNet18",
        "Additional_Description": "100 epochs",
    }
    assert upstream.text([74.4321]) == "74.43" and upstream.text([None]) == "/"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"near": ("cifar100",)}, "is not a comparison on the test sets of OpenOOD"),
        ({"skipped": 3}, "3 images were skipped"),
        ({"status": "failed"}, "nac has results for 0 of 3 networks"),
    ],
)
def test_rows_of_another_benchmark_are_refused(tmp_path, capsys, change, error):
    words = ["rows", results(tmp_path, **change), "--description", "x", "--method", "nac"]
    assert upstream.main(words) == 1
    assert error in capsys.readouterr().err
