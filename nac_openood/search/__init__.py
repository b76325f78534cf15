"""Hyperparameter search without the network: one pass makes readings, the rest is arithmetic.

`run` is the search, and `tables` scores every candidate. `loaders` makes surrogates for OOD
validation data. `recipe` sets up a detector with all of these, and `advise` compares it with
simpler methods.
"""

from nac_openood.search.loaders import SURROGATE_LABEL as SURROGATE_LABEL
from nac_openood.search.loaders import SURROGATES as SURROGATES
from nac_openood.search.loaders import SurrogateLoader as SurrogateLoader
from nac_openood.search.loaders import surrogate_ood as surrogate_ood
from nac_openood.search.run import PAPER_SPACE as PAPER_SPACE
from nac_openood.search.run import STRATEGIES as STRATEGIES
from nac_openood.search.run import Budget as Budget
from nac_openood.search.run import Candidate as Candidate
from nac_openood.search.run import SearchResult as SearchResult
from nac_openood.search.run import default_guard as default_guard
from nac_openood.search.run import paper_space as paper_space
from nac_openood.search.run import search as search
from nac_openood.search.tables import OBJECTIVES as OBJECTIVES
