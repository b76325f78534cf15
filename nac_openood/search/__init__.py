"""Hyperparameter search without the network: one pass makes readings, the rest is arithmetic.

`run` is the search, and `tables` scores every candidate. `loaders`
makes surrogates for OOD validation data. `recipe` sets up a detector with all of these, and
`advise` compares it with simpler methods.
"""

from nac_openood.search.loaders import (
    SURROGATE_LABEL,
    SURROGATES,
    SurrogateLoader,
    surrogate_ood,
)
from nac_openood.search.run import (
    PAPER_SPACE,
    STRATEGIES,
    Budget,
    Candidate,
    SearchResult,
    default_guard,
    paper_space,
    search,
)
from nac_openood.search.tables import OBJECTIVES

#: The name of a `Candidate` of one layer in the first versions.
LayerPoint = Candidate

__all__ = [
    "OBJECTIVES",
    "PAPER_SPACE",
    "STRATEGIES",
    "SURROGATES",
    "SURROGATE_LABEL",
    "Budget",
    "Candidate",
    "LayerPoint",
    "SearchResult",
    "SurrogateLoader",
    "default_guard",
    "paper_space",
    "search",
    "surrogate_ood",
]
