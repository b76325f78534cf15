"""compat: each patch does its work, leaves no trace, and keeps off machines with a GPU."""

import io
import multiprocessing
import subprocess
import sys
import warnings
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from openood_tiny import need_openood
from torch import nn, overrides

from nac_openood.plugin import compat

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
numpy_2 = pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="needs NumPy 2")


_stack = ExitStack()


def apply_compat(on_cpu=False):
    return _stack.enter_context(compat.compat(on_cpu))


@pytest.fixture(autouse=True)
def clean():
    assert not compat.applied
    yield
    _stack.close()


def state():
    """Everything the patches may change."""
    return {
        "numpy": {n for n in ("sctypes", "float", "int", "product") if n in vars(np)},
        "torch": (torch.load, torch.ones, torch.eye, torch.cuda.FloatTensor),
        "tensor": {n for n in ("cuda", "to") if n in vars(torch.Tensor)},
        "module": nn.Module.cuda,
        "workers": multiprocessing.get_start_method(allow_none=True),
    }


def test_patches_are_applied_once_and_removed_without_a_trace():
    before = state()
    first, during = apply_compat(), state()
    assert compat.applied == set(first)
    with compat.compat() as inner:  # keeps what was there before
        assert inner == apply_compat() == () and state() == during
    assert compat.applied == set(first)
    _stack.close()
    assert state() == before and not compat.applied
    with pytest.raises(RuntimeError, match="crash"), compat.compat():
        raise RuntimeError("crash")
    assert state() == before


def test_what_is_not_needed_is_not_applied(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(compat, "_missing_in_numpy", list)
    monkeypatch.setattr(compat, "_start_method", lambda: "fork")
    before = state()
    assert apply_compat() == () and state() == before
    assert apply_compat(on_cpu=True) == ("cuda-to-cpu",)


@numpy_2
def test_numpy_gets_back_what_it_dropped():
    assert "numpy-names" in apply_compat()
    assert np.float64 in np.sctypes["float"]
    assert set(np.sctypes) == {"int", "uint", "float", "complex", "others"}
    assert (np.int(2.5), np.float(1), np.product([2, 3])) == (2, 1.0, 6)


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
        lambda: torch.eye(2, device="cuda"),
        lambda: nn.Parameter(torch.ones(1, device="cuda") * 1.5),
        lambda: nn.Linear(2, 2).cuda().weight,
    ],
)
def test_cuda_becomes_cpu(make):
    with pytest.raises((RuntimeError, AssertionError)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make()
    assert "cuda-to-cpu" in apply_compat()
    assert make().device.type == "cpu"


@no_gpu
def test_what_is_not_about_cuda_is_untouched():
    def run():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        return net(torch.randn(2, 3, 8, 8))

    before = run()
    apply_compat()
    assert torch.equal(run(), before)
    assert overrides._len_torch_function_stack() == 0  # no mode, which would see every call
    x = torch.tensor([3.0], requires_grad=True)
    (x.cuda() ** 2).backward()
    assert x.grad is not None and x.grad.item() == 6.0
    assert x.to(torch.int64).tolist() == [3]
    assert x.to(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    assert x.to("meta").device.type == torch.ones(2, device="meta").device.type == "meta"
    assert x.to("cpu", torch.float64, True).dtype == torch.float64


@no_gpu
def test_float_tensors_of_cuda_are_made_on_the_cpu():
    apply_compat()
    made = torch.cuda.FloatTensor([1, 2])
    assert made.dtype == torch.float32 and made.tolist() == [1.0, 2.0]
    # networks of OpenOOD ask this to choose their parallel branch
    assert not isinstance(made, torch.cuda.FloatTensor)


@no_gpu
@pytest.mark.parametrize("location", [{}, {"map_location": "cuda:0"}])
def test_a_checkpoint_of_a_gpu_loads(monkeypatch, location):
    file = io.BytesIO()
    with monkeypatch.context() as gpu:
        gpu.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"weight": torch.ones(2)}, file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(file, **location)
    apply_compat()
    file.seek(0)
    assert torch.load(file, **location)["weight"].tolist() == [1.0, 1.0]
    file.seek(0)
    assert torch.load(file, "meta")["weight"].device.type == "meta"


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_workers_are_forked_where_python_would_not():
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        assert "fork-workers" in apply_compat()
        assert multiprocessing.get_start_method() == "fork"
        _stack.close()
        assert multiprocessing.get_start_method() == "forkserver"
    finally:
        multiprocessing.set_start_method(before, force=True)


# ---- OpenOOD itself


@pytest.mark.openood
@numpy_2
def test_openood_imports_on_numpy_2_with_compat_only():
    code = """
import sys, nac_openood
sys.path.append(sys.argv[1])
try:
    nac_openood.register()
except nac_openood.NACError as error:
    assert "np.sctypes" in str(error) and "register(compat=True)" in str(error), error
else:
    raise AssertionError("it imports without compat")
nac_openood.register(compat=True)
"""
    command = [sys.executable, "-c", code, str(need_openood())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
