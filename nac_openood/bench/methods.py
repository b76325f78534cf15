"""The methods of the paper's tables by OpenOOD's name, with the name that the paper prints."""

from __future__ import annotations

from typing import Mapping, Sequence

from nac_openood.errors import NACError

NAC = "nac"

#: The 21 baselines in the paper's order, and NAC.
METHODS: Mapping[str, str] = {
    "openmax": "OpenMax",
    "msp": "MSP",
    "temp_scaling": "TempScale",
    "odin": "ODIN",
    "mds": "MDS",
    "mds_ensemble": "MDSEns",
    "rmds": "RMDS",
    "gram": "Gram",
    "ebo": "EBO",
    "opengan": "OpenGAN",
    "gradnorm": "GradNorm",
    "react": "ReAct",
    "mls": "MLS",
    "klm": "KLM",
    "vim": "VIM",
    "knn": "KNN",
    "dice": "DICE",
    "rankfeat": "RankFeat",
    "ash": "ASH",
    "she": "SHE",
    "gen": "GEN",
    NAC: "NAC",
}


#: Methods that never look at training data: a pass over it would be for nothing.
UNTRAINED = frozenset(
    {"msp", "temp_scaling", "odin", "ebo", "opengan", "gradnorm", "react", "mls", "rankfeat"}
    | {"ash", "gen"}
)


class Absent(NACError):
    """A method cannot run here, through no fault of its own: the message says what it lacks."""


def checked_methods(names: Sequence[str]) -> list[str]:
    """The names without repetition; an unknown one is an error that lists what there is."""
    names = [name.lower() for name in names]
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise NACError(f"unknown methods {unknown}; there are {', '.join(METHODS)}.")
    return list(dict.fromkeys(names))
