"""Hyperparameter search without the network: one pass makes readings, the rest is arithmetic.

`space` says what to try, `tables` scores every layer candidate once, `joint` combines them as the
detector would, `leaderboard` keeps the best, `strategies` decide what to look at, `result` is what
comes out, and `run` ties them together. `surrogate` makes stand-ins for OOD validation data.
`recipe` sets a detector up with all of it, and `advise` tells how it compares with simpler methods.
"""

from nac_openood.search.joint import OBJECTIVES
from nac_openood.search.result import Candidate, LayerPoint, SearchResult
from nac_openood.search.run import default_guard, search
from nac_openood.search.space import PAPER_SPACE, paper_space
from nac_openood.search.strategies import STRATEGIES, Budget
from nac_openood.search.surrogate import (
    SURROGATE_LABEL,
    SURROGATES,
    SurrogateLoader,
    surrogate_ood,
)

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
