"""The diagnosis: what is installed, what is missing, and how to fix it."""

import configparser
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import pytest

from nac_openood.plugin import doctor
from nac_openood.plugin.doctor import MISSING, OK, WARNING, Check


def by_name(checks):
    return {check.name: check for check in checks}


def hide(monkeypatch, *modules):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in modules else real(name)
    )


def test_every_dependency_and_folder_is_checked(tmp_path):
    checks = doctor.examine(data_root=tmp_path, results_root=tmp_path)
    names = {"python", "torch", "GPU", "numpy", "OpenOOD", "pytorch-ood", "checkpoints"}
    names |= {"data: benchmark_imglist", "data: images_classic", "data: images_largescale"}
    assert names | set(doctor.DEPENDENCIES) == set(by_name(checks))
    assert {check.status for check in checks} <= {OK, MISSING, WARNING}
    assert all(bool(check.fix) == (check.status != OK) for check in checks)


def test_the_extra_installs_what_the_doctor_looks_for():
    """All but libmr, which has to be built by hand; the extra has what its build needs."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    extra = set(config["options.extras_require"]["openood"].split())
    wanted = {what for module, (what, _) in doctor.DEPENDENCIES.items() if module != "libmr"}
    assert extra == wanted | {"Cython", "setuptools>=70.1"}


def test_a_missing_dependency_says_who_needs_it(monkeypatch):
    hide(monkeypatch, "faiss", "libmr")
    monkeypatch.setattr(doctor, "_version", {"scipy": metadata.version("scipy")}.get)
    found = by_name(doctor.examine_packages())
    assert found["pytorch-ood"].status == WARNING
    assert found["pytorch-ood"].fix.endswith("'nac-openood[baselines]'")
    assert found["scipy"] == Check("scipy", OK, metadata.version("scipy"))
    assert found["faiss"][1:3] == (MISSING, "not installed; needed for KNN and others")
    assert found["faiss"].fix.endswith("-m pip install 'nac-openood[openood]'")
    first, then = found["libmr"].fix.split(" && ")
    assert "pip install Cython numpy" in first
    assert then.endswith("pip install --no-build-isolation libmr")


@pytest.mark.parametrize("case", ["nowhere", "empty", "there"])
def test_openood_is_found_by_the_variable(monkeypatch, tmp_path, case):
    hide(monkeypatch, "openood")
    monkeypatch.setenv("OPENOOD_SRC", "" if case == "nowhere" else str(tmp_path))
    if case == "there":
        (tmp_path / "openood").mkdir()
        (tmp_path / "openood" / "__init__.py").touch()
    check = by_name(doctor.examine_packages())["OpenOOD"]
    if case == "there":
        assert check == Check("OpenOOD", OK, str(tmp_path))
        return
    assert check.status == MISSING
    assert check.fix.startswith("git clone https://github.com/Jingkang50/OpenOOD")
    assert ("OPENOOD_SRC=" in check.detail) == (case == "empty")


@pytest.mark.parametrize("version", ["1.23.5", "1.24.0", "2.4.1"])
def test_numpy_that_needs_compat_is_a_warning(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    check = by_name(doctor.examine_platform())["numpy"]
    assert check.status == (OK if version == "1.23.5" else WARNING)
    assert version in check.detail


def test_a_broken_torch_does_not_break_the_diagnosis(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = by_name(doctor.examine_platform())["torch"]
    assert found.status == MISSING and "cannot be imported" in found.detail


def test_data_and_checkpoints(tmp_path):
    for folder in ("benchmark_imglist/cifar10", "images_classic/svhn", "images_largescale"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    (tmp_path / "results" / "my_run" / "s0").mkdir(parents=True)
    (tmp_path / "results" / "my_run" / "s0" / "best.ckpt").touch()
    lists, classic, large = doctor.examine_data(tmp_path / "data")
    assert (lists.status, classic.status, large.status) == (OK, OK, WARNING)
    assert "svhn" in classic.detail and "is empty" in large.detail
    checkpoints = doctor.examine_checkpoints(tmp_path / "results")
    assert checkpoints.status == OK and "my_run" in checkpoints.detail

    lists, classic, large = doctor.examine_data(tmp_path / "my data")
    assert (lists.status, classic.status, large.status) == (MISSING, MISSING, WARNING)
    assert f"--datasets cifar-10 --save_dir '{tmp_path / 'my data'}'" in classic.fix
    assert "--datasets imagenet-1k" in large.fix
    checkpoints = doctor.examine_checkpoints(tmp_path)
    assert checkpoints.status == MISSING
    assert checkpoints.fix.endswith(f"--save_dir ./data {tmp_path}")


def test_an_import_that_fails_is_shown_by_its_last_line(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)  # which is not imported from
    assert "planted" not in doctor.examine_import().detail
    monkeypatch.setattr(doctor, "_IMPORT", "import json")
    assert doctor.examine_import().status == OK
    monkeypatch.setattr(doctor, "_IMPORT", "import no_such_module")
    detail = "ModuleNotFoundError: No module named 'no_such_module'"
    assert doctor.examine_import()[1:3] == (MISSING, detail)


def test_a_table_with_each_fix_once_below_it():
    table = doctor.checks_text(
        [
            Check("a", OK, "1.0"),
            Check("long name", MISSING, "gone", "pip install both"),
            Check("b", WARNING, "old", "pip install both"),
        ]
    )
    rows = "ok       a          1.0", "missing  long name  gone", "warning  b          old"
    fixes = "", "How to fix it:", "  long name, b:", "      pip install both"
    assert table.splitlines() == [*rows, *fixes]
    assert doctor.checks_text([Check("a", OK, "1.0")]) == "ok       a  1.0"
