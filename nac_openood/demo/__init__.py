"""The demo: images that come with installed libraries, and small networks trained on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nac_openood.detector.batches import Say
    from nac_openood.sources.sets import Datasets

#: The networks of the demo, and their names for `sources.networks.build`.
NETWORKS = {"resnet": "resnet_embedded", "vit": "vit_embedded"}


def run_demo(
    out: Path,
    *,
    arch: str = "resnet",
    quick: bool = False,
    seed: int = 0,
    say: Say = lambda text: None,
    **options: Any,
) -> Any:
    """Compare NAC with the baselines on digits 0 to 7 against digits 8 and 9 and photographs.

    Args:
        out: folder of the results.
        arch: one of `NETWORKS`, which is trained now or loaded from the cache.
        quick: leave out the slow methods.
        seed: random seed, also of the training.
        say: function that is called with status messages.
        options: `backend` and `command` of `compare`.

    Returns:
        The `Results` of the comparison.
    """
    from nac_openood.benchmark.api import compare
    from nac_openood.benchmark.methods.table import METHODS

    net, sets = network_and_sets(arch, seed, say)
    methods = [name for name, method in METHODS.items() if not (quick and method.slow)]
    same: dict[str, Any] = {**vars(sets), "out": out, "seed": seed, "say": say, **options}
    return compare({f"{arch}-s{seed}": net}, arch=NETWORKS[arch], methods=methods, **same)


def network_and_sets(arch: str, seed: int, say: Say) -> tuple[Any, Datasets]:
    """One of `NETWORKS`, trained now or loaded from the cache, and the datasets of the demo."""
    from nac_openood.demo.embedded import embedded_sets
    from nac_openood.demo.trained import trained

    # shifted digits count as in-distribution in full-spectrum detection only
    sets = replace(embedded_sets(say), shifted={})
    say(f"a small network for digits 0 to 7 ({arch}): trained now, or loaded from the cache")
    return trained(NETWORKS[arch], seed=seed), sets
