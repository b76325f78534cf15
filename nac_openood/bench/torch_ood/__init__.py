"""The paper's baselines out of pytorch-ood, an optional library, by OpenOOD's names."""

from __future__ import annotations

from nac_openood.bench.scorer import Scorer
from nac_openood.bench.torch_ood.scorer import TorchOOD
from nac_openood.bench.torch_ood.table import METHODS

__all__ = ["METHODS", "TorchOOD", "make"]


def make(method: str) -> Scorer:
    """The method `method`, one of `METHODS`, not set up yet.

    Raises:
        NACError: for an unknown method; `Absent` where pytorch-ood is missing.
    """
    return TorchOOD(method)
