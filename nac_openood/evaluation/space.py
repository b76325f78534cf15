"""The settings that NAC-ME is searched over: the paper's table, by dataset."""

from __future__ import annotations

from typing import Any, Mapping, Sequence, Union

from nac_openood.core.layer_config import IntegralConfig, refuse_unknown
from nac_openood.errors import NACError
from nac_openood.search.space import grid_points

_BINS, _FULL = (50, 1000), (1, 500, 5000, 10000)

#: Table 13 of the paper; `all` has every steepness of it, for other data.
SPACES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "vlcs": {"n_bins": _BINS, "steepness": (1.0, 500.0, 5000.0), "full_count": _FULL},
    "pacs": {"n_bins": _BINS, "steepness": (0.01, 0.1, 0.5), "full_count": _FULL},
    "officehome": {"n_bins": _BINS, "steepness": (0.01, 1.0, 100.0), "full_count": _FULL},
    "terraincognita": {"n_bins": _BINS, "steepness": (0.01, 0.1), "full_count": (5, 10, 30, 50)},
    "all": {
        "n_bins": _BINS,
        "steepness": (0.01, 0.1, 0.5, 1.0, 100.0, 500.0, 5000.0),
        "full_count": _FULL,
    },
}

Space = Union[str, Mapping[str, Sequence[Any]], IntegralConfig]


def space_named(name: str) -> str:
    """The space for a dataset by the name of its folder: `office_home` is `officehome`.

    Datasets that the paper does not have take `all`.
    """
    plain = "".join(sign for sign in name.lower() if sign.isalnum())
    return plain if plain in SPACES else "all"


def integral_candidates(space: Space) -> list[IntegralConfig]:
    """All settings of a space, in a fixed order; of equally good ones the first is chosen.

    Args:
        space: a name in `SPACES`, lists of values by setting, or one `IntegralConfig`.
    """
    if isinstance(space, IntegralConfig):
        return [space]
    if isinstance(space, str):
        if space not in SPACES:
            raise NACError(f"`space` must be one of {list(SPACES)}, lists or a config: {space!r}.")
        return integral_candidates(SPACES[space])
    refuse_unknown(space, ("n_bins", "steepness", "full_count", "layout"), "setting")
    empty = [name for name, values in space.items() if isinstance(values, str) or not len(values)]
    if empty or not space:
        raise NACError(
            f"`space` needs a list of values for each setting; {empty or 'all'} is empty."
        )
    return [IntegralConfig(**point) for point in grid_points(space)]
