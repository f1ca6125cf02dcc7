"""The search: which KL settings to try next."""

from kltune.search.points import Points, SearchSpace, Seen, curve_points
from kltune.search.study import Proposal, Search, violations

__all__ = [
    "Points",
    "Proposal",
    "Search",
    "SearchSpace",
    "Seen",
    "curve_points",
    "violations",
]
