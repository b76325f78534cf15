"""The diagnosis: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

import configparser
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from nac_openood.plugin import doctor
from nac_openood.plugin.doctor import MISSING, OK, WARNING, Check


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> object:
        return None if name in modules else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def dependency(module: str) -> doctor.Dependency:
    [found] = [d for d in doctor.DEPENDENCIES if d.module == module]
    return found


def test_every_dependency_and_folder_is_checked(tmp_path: Path) -> None:
    checks = doctor.examine(data_root=tmp_path, results_root=tmp_path)
    names = {"python", "torch", "GPU", "numpy", "OpenOOD", "pytorch-ood", "checkpoints"}
    names |= {"faiss", "cv2", "imgaug", "libmr", "diffdist", "gdown", "statsmodels"}
    names |= {"foolbox", "timm", "pandas", "scipy"}
    names |= {"data: benchmark_imglist", "data: images_classic", "data: images_largescale"}
    assert names == set(by_name(checks))
    assert {check.status for check in checks} <= {OK, MISSING, WARNING}
    assert all(bool(check.fix) == (check.status != OK) for check in checks)


def test_the_extra_installs_what_the_doctor_looks_for() -> None:
    """All but libmr, which has to be built by hand; the extra has what its build needs."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    extra = set(config["options.extras_require"]["openood"].split())
    wanted = {d.requirement for d in doctor.DEPENDENCIES if d.module != "libmr"}
    assert extra == wanted | {"Cython", "setuptools>=70.1"}
    assert all("'nac-openood[openood]'" in dependency(d).fix for d in ("faiss", "scipy"))


def test_a_missing_dependency_says_who_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "faiss")
    check = doctor.examine_dependency(dependency("faiss"))
    assert check.status == MISSING
    assert check.detail == "not installed; needed for KNN and others"
    assert check.fix.endswith("-m pip install 'nac-openood[openood]'")


def test_libmr_is_built_with_what_it_forgets_to_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "libmr")
    first, then = doctor.examine_dependency(dependency("libmr")).fix.split(" && ")
    assert "pip install Cython numpy" in first
    assert then.endswith("pip install --no-build-isolation libmr")


def test_an_installed_dependency_shows_its_version() -> None:
    check = doctor.examine_dependency(dependency("scipy"))
    assert (check.status, check.detail) == (OK, metadata.version("scipy"))


def test_openood_is_found_by_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "openood")
    (tmp_path / "openood").mkdir()
    (tmp_path / "openood" / "__init__.py").touch()
    monkeypatch.setenv("OPENOOD_SRC", str(tmp_path))
    check = doctor.examine_openood()
    assert (check.status, check.detail) == (OK, str(tmp_path))


@pytest.mark.parametrize("named", [False, True])
def test_a_missing_openood_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: bool
) -> None:
    hide(monkeypatch, "openood")
    monkeypatch.delenv("OPENOOD_SRC", raising=False)
    if named:
        monkeypatch.setenv("OPENOOD_SRC", str(tmp_path))
    check = doctor.examine_openood()
    assert check.status == MISSING
    assert check.fix.startswith("git clone https://github.com/Jingkang50/OpenOOD")
    assert ("OPENOOD_SRC=" in check.detail) == named


@pytest.mark.parametrize("version", ["1.23.5", "1.24.0", "2.4.1"])
def test_numpy_that_needs_compat_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    check = doctor.examine_numpy()
    assert check.status == (OK if version == "1.23.5" else WARNING)
    assert version in check.detail


def test_pytorch_ood_is_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "0.4.0")
    assert doctor.examine_pytorch_ood() == Check("pytorch-ood", OK, "0.4.0")
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    check = doctor.examine_pytorch_ood()
    assert check.status == WARNING
    assert check.fix.endswith("'nac-openood[baselines]'")


def test_a_broken_torch_does_not_break_the_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = by_name(doctor.examine_platform())["torch"]
    assert found.status == MISSING
    assert "cannot be imported" in found.detail


def test_cuda_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {i}")
    cuda = by_name(doctor.examine_platform())["GPU"]
    assert (cuda.status, cuda.detail, cuda.fix) == (OK, "GPU 0, GPU 1", "")


def test_no_cuda_is_a_warning_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda = by_name(doctor.examine_platform())["GPU"]
    assert cuda.status == WARNING
    assert "nac-openood run" in cuda.fix


def test_data_and_checkpoints_that_are_there(tmp_path: Path) -> None:
    for folder in ("benchmark_imglist/cifar10", "images_classic/svhn", "images_largescale"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    (tmp_path / "results" / "my_run" / "s0").mkdir(parents=True)
    (tmp_path / "results" / "my_run" / "s0" / "best.ckpt").touch()
    lists, classic, large = doctor.examine_data(tmp_path / "data")
    assert (lists.status, classic.status, large.status) == (OK, OK, WARNING)
    assert "svhn" in classic.detail
    assert "is empty" in large.detail
    checkpoints = doctor.examine_checkpoints(tmp_path / "results")
    assert checkpoints.status == OK
    assert "my_run" in checkpoints.detail


def test_data_and_checkpoints_that_are_not(tmp_path: Path) -> None:
    lists, classic, large = doctor.examine_data(tmp_path / "my data")
    assert (lists.status, classic.status, large.status) == (MISSING, MISSING, WARNING)
    assert f"--datasets cifar-10 --save_dir '{tmp_path / 'my data'}'" in classic.fix
    assert "--datasets imagenet-1k" in large.fix
    checkpoints = doctor.examine_checkpoints(tmp_path)
    assert checkpoints.status == MISSING
    assert checkpoints.fix.endswith(f"--save_dir ./data {tmp_path}")


def test_an_import_that_fails_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_IMPORT", "import no_such_module_anywhere")
    check = doctor.examine_import()
    assert check.status == MISSING
    assert check.detail == "ModuleNotFoundError: No module named 'no_such_module_anywhere'"


def test_an_import_that_works_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_IMPORT", "import json")
    assert doctor.examine_import().status == OK


def test_a_table_with_each_fix_once_below_it() -> None:
    table = doctor.checks_text(
        [
            Check("a", OK, "1.0"),
            Check("long name", MISSING, "gone", "pip install both"),
            Check("b", WARNING, "old", "pip install both"),
            Check("c", MISSING, "empty", "fill it"),
        ]
    )
    assert table.splitlines() == [
        "ok       a          1.0",
        "missing  long name  gone",
        "warning  b          old",
        "missing  c          empty",
        "",
        "How to fix it:",
        "  long name, b:",
        "      pip install both",
        "  c:",
        "      fill it",
    ]
    assert doctor.checks_text([Check("a", OK, "1.0")]) == "ok       a  1.0"


def test_the_current_folder_is_not_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    assert "planted" not in doctor.examine_import().detail
