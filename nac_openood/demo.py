"""The whole main job on images that come with installed libraries: see `bench.embedded`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from nac_openood.bench.checkpoints import Checkpoint
from nac_openood.bench.methods import METHODS
from nac_openood.compare.backends import AUTO, chosen_backend, scorers

if TYPE_CHECKING:
    from nac_openood.compare.study import Study

#: The demo's networks: what `--arch` calls them, and what `bench.networks.build` does.
NETWORKS = {"resnet": "resnet_embedded", "vit": "vit_embedded"}
#: The methods that look at more than features and take most of the time, and the one that needs
#: a GAN to be trained first.
_SLOW = ("odin", "mds_ensemble", "gram", "rankfeat", "opengan")


def demo_study(
    out: Path,
    *,
    arch: str = "resnet",
    backend: str = AUTO,
    quick: bool = False,
    seed: int = 0,
    command: str = "nac-openood demo",
    progress: Optional[bool] = None,
    say: Callable[[str], None] = lambda text: None,
) -> Study:
    """Digits 0 to 7 against digits 8 and 9 (near) and photographs (far), by NAC and 21 baselines.

    Args:
        out: the folder of results.
        arch: one of `NETWORKS`; it is trained on the spot, or taken from the cache.
        backend: whose baselines; see `compare.backends`.
        quick: leave out the methods that take most of the time.
        seed: of the training and of everything else drawn at random.
        command: that makes the same again.
        progress: progress bars; None shows them on a terminal.
        say: is told what is going on.
    """
    # here, for the command line asks for `NETWORKS` whatever it is to run
    from nac_openood.bench.embedded import embedded_sets
    from nac_openood.bench.trained import trained
    from nac_openood.compare.nac import NACScorer
    from nac_openood.compare.study import Study

    # shifted digits count as known in full-spectrum detection only, which this is not
    sets = replace(embedded_sets(say), shifted={})
    say(f"a small network for digits 0 to 7 ({arch}): from the cache, or trained now")
    net = trained(NETWORKS[arch], seed=seed, progress=progress)
    methods = [m for m in METHODS if not (quick and m in _SLOW)]
    return Study(
        sets=sets,
        arch=NETWORKS[arch],
        network=lambda run: net,
        runs=(Checkpoint(f"{arch}-s{seed}", "trained on the spot"),),
        methods=tuple(methods),
        make=scorers(chosen_backend(backend, say), NACScorer),
        out=out,
        seed=seed,
        command=command,
        progress=progress,
    )
