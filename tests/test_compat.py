"""compat: each patch does its work, leaves no trace, and keeps off machines with a GPU."""

from __future__ import annotations

import io
import multiprocessing
import subprocess
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
import torch
from openood_tiny import (
    BASELINES,
    REAL_OPENOOD,
    make_net,
    need_openood,
    read_list,
    write_benchmark,
    write_configs,
)
from torch import nn, overrides

from nac_openood.errors import NACError
from nac_openood.plugin import compat, patches
from nac_openood.plugin.compat import PATCHES, Patch, apply_compat, remove_compat

GPU_PATCHES = {"cuda-to-cpu", "cuda-float-tensor", "load-on-cpu"}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    assert not compat.applied
    yield
    remove_compat()


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Applies the patch of a name alone, needed or not, and takes it back afterwards."""
    with ExitStack() as undo:

        def apply(name: str) -> None:
            [found] = [patch for patch in PATCHES if patch.name == name]
            found.apply(undo)

        yield apply


def world() -> dict[str, object]:
    """Everything the patches may change."""
    return {
        "numpy": {n for n in ("sctypes", "float", "int", "product") if n in vars(np)},
        "load": torch.load,
        "FloatTensor": torch.cuda.FloatTensor,
        "modes": overrides._len_torch_function_stack(),
        "workers": multiprocessing.get_start_method(allow_none=True),
    }


# ---- the list


def test_every_patch_has_a_name_of_its_own_and_a_reason() -> None:
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)
    assert all(patch.reason for patch in PATCHES)
    assert {patch.name for patch in PATCHES} >= GPU_PATCHES


def test_removing_leaves_the_world_as_it_was() -> None:
    before = world()
    applied = apply_compat()
    assert tuple(compat.applied) == applied
    remove_compat()
    assert world() == before
    assert not compat.applied


def test_applying_twice_is_applying_once() -> None:
    before = world()
    first, during = apply_compat(), world()
    assert apply_compat() == ()
    assert world() == during
    remove_compat(first)
    assert world() == before


def test_the_block_keeps_patches_that_were_there_before() -> None:
    outer = apply_compat()
    with compat.compat() as inner:
        assert inner == ()
    assert tuple(compat.applied) == outer


def test_the_block_restores_after_a_crash() -> None:
    before = world()
    with pytest.raises(RuntimeError, match="crash"), compat.compat():
        raise RuntimeError("crash")
    assert world() == before


def test_a_patch_that_fails_takes_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(undo: ExitStack) -> None:
        raise RuntimeError("no")

    broken = Patch("broken", "a test", lambda: True, fail)
    monkeypatch.setattr(compat, "PATCHES", (*PATCHES, broken))
    before = world()
    with pytest.raises(RuntimeError, match="no"):
        apply_compat()
    assert world() == before
    assert not compat.applied


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(NACError, match=r"Expected names of compat patches, .* but got nonsense"):
        remove_compat(["nonsense"])


def test_what_is_not_needed_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(patches, "missing_in_numpy", lambda names: [])
    monkeypatch.setattr(patches, "workers_are_spawned", lambda: False)
    before = world()
    assert apply_compat() == ()
    assert world() == before


def test_a_machine_with_cuda_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = world()
    assert not GPU_PATCHES & set(apply_compat())
    after = world()
    assert {k: after[k] for k in ("load", "FloatTensor", "modes")} == {
        k: before[k] for k in ("load", "FloatTensor", "modes")
    }


@no_gpu
def test_a_machine_without_cuda_gets_all_three() -> None:
    assert set(apply_compat()) >= GPU_PATCHES


# ---- NumPy


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 has them")
def test_numpy_gets_back_what_it_dropped(patch: Any) -> None:
    patch("numpy-sctypes")
    patch("numpy-aliases")
    assert np.float64 in np.sctypes["float"]
    assert set(np.sctypes) == {"int", "uint", "float", "complex", "others"}
    assert np.int(2.5) == 2
    assert np.float(1) == 1.0
    assert np.product([2, 3]) == 6


def test_names_numpy_has_are_not_replaced() -> None:
    with ExitStack() as undo:
        patches.add_to_numpy({"prod": None, "float64": None}, undo)
        assert np.prod([2, 3]) == 6
    assert np.prod([2, 3]) == 6


# ---- no GPU


@no_gpu
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2).cuda(),
        lambda: torch.ones(2).cuda(0, non_blocking=True),
        lambda: torch.ones(2).to("cuda"),
        lambda: torch.ones(2).to("cuda:1", torch.float64),
        lambda: torch.ones(2).to(device="cuda"),
        lambda: torch.ones(2).to(torch.device("cuda", 1)),
        lambda: torch.ones(2).to(0),
        lambda: torch.ones(2, device="cuda"),
        lambda: torch.tensor([1.0], device="cuda"),
        lambda: torch.as_tensor([1.0], device=torch.device("cuda:0")),
        lambda: torch.eye(2, device="cuda"),
        lambda: torch.randn_like(torch.ones(2), device="cuda"),
        lambda: torch.ones(2).new_zeros(3, device="cuda"),
        lambda: nn.Parameter(torch.ones(1, device="cuda") * 1.5),
        lambda: nn.Linear(2, 2, device="cuda").weight,
        lambda: nn.Linear(2, 2).cuda().weight,
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("cuda")[1].running_mean,
        lambda: nn.Linear(2, 2).to(device="cuda", dtype=torch.float64).weight,
    ],
)
def test_cuda_becomes_cpu(patch: Any, make: Any) -> None:
    with pytest.raises((RuntimeError, AssertionError)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make()
    patch("cuda-to-cpu")
    assert make().device.type == "cpu"


@no_gpu
def test_what_is_not_about_cuda_is_untouched(patch: Any) -> None:
    patch("cuda-to-cpu")
    x = torch.tensor([1.5, 2.5])
    assert x.to(torch.int64).tolist() == [1, 2]
    assert x.to(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    assert x.to("meta").device.type == "meta"
    assert torch.zeros(2, device="meta").device.type == "meta"
    assert x.to("cpu", torch.float64, True).dtype == torch.float64
    with torch.device("meta"):
        assert torch.zeros(2).device.type == "meta"


@no_gpu
def test_gradients_flow_through_cuda(patch: Any) -> None:
    patch("cuda-to-cpu")
    x = torch.tensor([3.0], requires_grad=True)
    (x.cuda() ** 2).backward()
    assert x.grad is not None
    assert x.grad.item() == 6.0


def test_results_and_random_numbers_are_the_same(patch: Any) -> None:
    def run() -> torch.Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        return net(torch.randn(2, 3, 8, 8))

    before = run()
    patch("cuda-to-cpu")
    assert torch.equal(run(), before)


def test_the_mode_can_be_taken_from_below_another(patch: Any) -> None:
    class Other(overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            Other.seen += 1
            return func(*args, **(kwargs or {}))

    undo = ExitStack()
    patches.redirect_cuda(undo)
    other = Other()
    with other:
        undo.close()
        torch.ones(1)
    assert Other.seen == 1
    assert overrides._len_torch_function_stack() == 0


@no_gpu
def test_float_tensors_of_cuda_are_made_on_the_cpu(patch: Any) -> None:
    patch("cuda-float-tensor")
    made = torch.cuda.FloatTensor([1, 2])
    assert made.dtype == torch.float32
    assert made.tolist() == [1.0, 2.0]
    # Networks of OpenOOD ask this to choose their parallel branch.
    assert not isinstance(made, torch.cuda.FloatTensor)


@no_gpu
@pytest.mark.parametrize("location", [{}, {"map_location": "cuda:0"}])
def test_a_checkpoint_of_a_gpu_loads(
    monkeypatch: pytest.MonkeyPatch, patch: Any, location: dict
) -> None:
    file = io.BytesIO()
    with monkeypatch.context() as gpu:
        gpu.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"weight": torch.ones(2)}, file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(file, **location)
    patch("load-on-cpu")
    file.seek(0)
    assert torch.load(file, **location)["weight"].tolist() == [1.0, 1.0]


def test_a_place_given_for_loading_is_kept(patch: Any) -> None:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    patch("load-on-cpu")
    assert torch.load(file, "meta").device.type == "meta"


def test_a_replacement_by_somebody_else_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", torch.load)  # restored at the end, whatever happens

    def theirs() -> None: ...

    with ExitStack() as undo:
        patches.load_on_cpu(undo)
        torch.load = theirs
    assert torch.load is theirs


# ---- workers


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_workers_are_forked_where_python_would_not() -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        assert "fork-workers" in apply_compat()
        assert multiprocessing.get_start_method() == "fork"
        remove_compat()
        assert multiprocessing.get_start_method() == "forkserver"
    finally:
        multiprocessing.set_start_method(before, force=True)


# ---- OpenOOD itself


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return write_benchmark(folder / "data"), write_configs(folder / "configs")


def evaluate(benchmark: tuple[Path, Path], name: str) -> Any:
    from openood.evaluation_api import Evaluator

    data, configs = benchmark
    net = make_net(data).cuda()
    return Evaluator(
        net,
        "cifar10",
        data_root=str(data),
        config_root=str(configs),
        postprocessor_name=name,
        num_workers=0,
    )


@pytest.mark.parametrize("name", [pytest.param(name, marks=REAL_OPENOOD) for name in BASELINES])
def test_a_baseline_of_the_paper_runs(benchmark: tuple[Path, Path], name: str) -> None:
    need_openood()
    with compat.compat():
        evaluator = evaluate(benchmark, name)
        table = evaluator.eval_ood(progress=False)
    assert list(table.index) == [
        *("cifar100", "tin", "nearood"),
        *("mnist", "svhn", "texture", "places365", "farood"),
    ]
    assert np.isfinite(table.to_numpy()).all()
    assert (table["ACC"] == 100).all()
    confidence = evaluator.scores["id"]["test"][1]
    assert confidence.shape[0] == 10
    assert np.isfinite(confidence).all()
    assert len(np.unique(confidence)) > 1


@pytest.mark.openood
@pytest.mark.parametrize(
    ("name", "score"),
    [
        pytest.param("msp", lambda z: z.softmax(1).amax(1), marks=REAL_OPENOOD),
        pytest.param("mls", lambda z: z.amax(1), marks=REAL_OPENOOD),
        pytest.param("ebo", lambda z: z.logsumexp(1), marks=REAL_OPENOOD),
    ],
)
def test_the_scores_are_those_of_plain_torch(
    benchmark: tuple[Path, Path], name: str, score: Any
) -> None:
    need_openood()
    with compat.compat():
        evaluator = evaluate(benchmark, name)
        evaluator.eval_ood(progress=False)
        net = evaluator.net.cpu()
    images, _ = read_list(benchmark[0], "test_svhn")
    with torch.no_grad():
        expected = score(net(images)).numpy()
    got = evaluator.scores["ood"]["far"]["svhn"][1]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@no_gpu
@pytest.mark.openood
@pytest.mark.parametrize("name", [pytest.param("msp", marks=REAL_OPENOOD)])
def test_without_compat_nothing_runs_on_a_cpu(benchmark: tuple[Path, Path], name: str) -> None:
    need_openood()
    with compat.compat():
        evaluator = evaluate(benchmark, name)
    with pytest.raises((RuntimeError, AssertionError)):
        evaluator.eval_ood(progress=False)


@pytest.mark.openood
@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="needs NumPy 2")
def test_openood_imports_on_numpy_2_with_compat_only() -> None:
    code = """
import sys
from nac_openood.plugin.compat import apply_compat
sys.path.append(sys.argv[1])
try:
    import openood.evaluation_api
except AttributeError as error:
    assert "np.sctypes" in str(error), error
else:
    raise AssertionError("it imports without compat")
apply_compat()
import openood.evaluation_api
"""
    command = [sys.executable, "-c", code, str(need_openood())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
