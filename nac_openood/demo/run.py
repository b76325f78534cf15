"""The whole job on images that come with installed libraries: see `demo.embedded`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nac_openood.benchmark.methods.table import AUTO_BACKEND, METHODS

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from nac_openood.benchmark.run.results import Results
    from nac_openood.progress import Say
    from nac_openood.sources.sets import Datasets

#: The networks of the demo, and their names for `sources.networks.build`.
NETWORKS = {"resnet": "resnet_embedded", "vit": "vit_embedded"}


def run_demo(
    out: Path,
    *,
    arch: str = "resnet",
    backend: str = AUTO_BACKEND,
    quick: bool = False,
    seed: int = 0,
    command: str = "nac-openood demo",
    say: Say = lambda text: None,
) -> Results:
    """Compare NAC with the baselines on digits 0 to 7 against digits 8 and 9 and photographs.

    Args:
        out: folder of the results.
        arch: one of `NETWORKS`, which is trained now or taken from the cache.
        backend: whose baselines run, as in `compare`.
        quick: leave out the slow methods.
        seed: random seed, also of the training.
        command: the command that repeats the demo.
        say: is told what is going on.
    """
    # imported here, so that the command line can list `NETWORKS` without torch
    from nac_openood.benchmark.api import compare

    net, sets = network_and_sets(arch, seed, say)
    return compare(
        {f"{arch}-s{seed}": net},
        **vars(sets),
        arch=NETWORKS[arch],
        methods=[name for name, method in METHODS.items() if not (quick and method.slow)],
        backend=backend,
        out=out,
        seed=seed,
        command=command,
        say=say,
    )


def network_and_sets(arch: str, seed: int, say: Say) -> tuple[nn.Module, Datasets]:
    """One of `NETWORKS`, trained now or taken from the cache, and the sets of the demo."""
    from dataclasses import replace

    from nac_openood.demo.embedded import embedded_sets
    from nac_openood.demo.trained import trained

    # shifted digits count as in-distribution in full-spectrum detection only
    sets = replace(embedded_sets(say), shifted={})
    say(f"a small network for digits 0 to 7 ({arch}): trained now, or taken from the cache")
    return trained(NETWORKS[arch], seed=seed), sets
