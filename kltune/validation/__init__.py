"""Is it really better? Statistics of per-problem results, as pure functions."""

from kltune.validation.answers import tally
from kltune.validation.comparison import Comparison, Finding, compare
from kltune.validation.hacking import Curve, Observed, Point, curve
from kltune.validation.level import Level, level
from kltune.validation.results import Results, Tally, pass_at_k

__all__ = [
    "Comparison",
    "Curve",
    "Finding",
    "Level",
    "Observed",
    "Point",
    "Results",
    "Tally",
    "compare",
    "curve",
    "level",
    "pass_at_k",
    "tally",
]
