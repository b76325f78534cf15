"""The diagnosis: what is there, what is not, and the command that mends it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from nac_openood.plugin import compat, doctor
from nac_openood.plugin.doctor import MISSING, OK, WARNING, Finding


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> object:
        return None if name in modules else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_every_dependency_and_folder_is_looked_at(tmp_path: Path) -> None:
    findings = doctor.examine(data_root=tmp_path, results_root=tmp_path)
    names = {"python", "torch", "cuda", "torchvision", "numpy", "openood", "checkpoints"}
    names |= {"faiss", "cv2", "imgaug", "libmr", "diffdist", "json5", "gdown", "statsmodels"}
    names |= {"foolbox", "git", "timm", "pandas", "scipy", "matplotlib"}
    names |= {"data: benchmark_imglist", "data: images_classic", "data: images_largescale"}
    assert names <= set(by_name(findings))
    assert {finding.status for finding in findings} <= {OK, MISSING, WARNING}
    assert all(finding.fix for finding in findings if finding.status != OK)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("faiss", "-m pip install faiss-cpu"),
        ("cv2", "-m pip install opencv-python-headless"),
        ("imgaug", "-m pip install imgaug==0.4.0"),
        ("git", "-m pip install GitPython"),
        ("libmr", "-m pip install --no-build-isolation libmr"),
    ],
)
def test_a_missing_dependency_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, module: str, command: str
) -> None:
    hide(monkeypatch, module)
    [dependency] = [d for d in doctor.DEPENDENCIES if d.module == module]
    finding = doctor.examine_dependency(dependency)
    assert finding.status == MISSING
    assert finding.fix.endswith(command)


def test_libmr_is_built_with_what_it_forgets_to_declare() -> None:
    [libmr] = [d for d in doctor.DEPENDENCIES if d.module == "libmr"]
    first, then = libmr.command.split(" && ")
    assert "Cython numpy" in first
    assert "--no-build-isolation libmr" in then


def test_one_command_installs_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "faiss", "imgaug", "libmr")
    wanted = [d for d in doctor.DEPENDENCIES if d.module in ("faiss", "imgaug", "libmr", "scipy")]
    command = doctor.install_command([doctor.examine_dependency(d) for d in wanted])
    assert "pip install faiss-cpu imgaug==0.4.0 && " in command
    assert command.endswith("--no-build-isolation libmr")
    assert "scipy" not in command


def test_nothing_missing_needs_no_command() -> None:
    assert doctor.install_command([Finding("faiss", OK, "1.0")]) == ""


def test_an_installed_dependency_shows_its_version() -> None:
    [scipy] = [d for d in doctor.DEPENDENCIES if d.module == "scipy"]
    finding = doctor.examine_dependency(scipy)
    assert finding.status == OK
    assert finding.fix == ""
    assert finding.detail.endswith("(scipy)")


def test_openood_is_found_by_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "openood")
    (tmp_path / "openood").mkdir()
    (tmp_path / "openood" / "__init__.py").touch()
    finding = doctor.examine_openood({"OPENOOD_SRC": str(tmp_path)})
    assert finding.status == OK
    assert str(tmp_path) in finding.detail


@pytest.mark.parametrize("named", [False, True])
def test_a_missing_openood_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: bool
) -> None:
    hide(monkeypatch, "openood")
    finding = doctor.examine_openood({"OPENOOD_SRC": str(tmp_path)} if named else {})
    assert finding.status == MISSING
    assert finding.fix.startswith("git clone https://github.com/Jingkang50/OpenOOD")
    assert ("OPENOOD_SRC=" in finding.detail) == named


def test_numpy_that_needs_compat_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_missing", lambda names: list(names))
    assert doctor.examine_numpy().status == WARNING
    monkeypatch.setattr(compat, "_missing", lambda names: [])
    assert doctor.examine_numpy().status == OK


def test_numpy_needs_compat_also_while_compat_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "applied_patches", lambda: ("numpy-sctypes",))
    monkeypatch.setattr(compat, "_missing", lambda names: [])
    assert doctor.examine_numpy().status == WARNING


def test_cuda_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {i}")
    cuda = by_name(doctor.examine_platform())["cuda"]
    assert (cuda.status, cuda.detail, cuda.fix) == (OK, "GPU 0, GPU 1", "")


def test_no_cuda_is_a_warning_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda = by_name(doctor.examine_platform())["cuda"]
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
    monkeypatch.setattr(doctor, "_EVALUATION", "import no_such_module_anywhere")
    finding = doctor.examine_import()
    assert finding.status == MISSING
    assert finding.detail == "ModuleNotFoundError: No module named 'no_such_module_anywhere'"


def test_an_import_that_works_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_EVALUATION", "import json")
    assert doctor.examine_import().status == OK


def test_the_columns_are_aligned() -> None:
    table = doctor.render(
        [Finding("a", OK, "1.0"), Finding("long name", MISSING, "gone", "pip install it")]
    )
    assert table.splitlines() == [
        "ok       a          1.0",
        "missing  long name  gone",
        "                    -> pip install it",
    ]
    assert doctor.render([]) == ""
