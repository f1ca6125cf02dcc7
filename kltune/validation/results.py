"""Results of one run on a set of problems, and what pass@k is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True, slots=True)
class Tally:
    """Answers to one problem, and how many of them are right."""

    right: int
    answers: int

    @property
    def rate(self) -> float:
        """Share of right answers: the problem's pass@1."""
        return self.right / self.answers


@dataclass(frozen=True, slots=True)
class Results:
    """What one run came to on a set of problems.

    Attributes:
        tallies: by problem, the same names in every run.
    """

    tallies: Mapping[str, Tally]

    @property
    def samples(self) -> int:
        """Fewest answers to a problem."""
        return min((t.answers for t in self.tallies.values()), default=0)

    def pass_at(self, k: int) -> float:
        """Return pass@k over all problems.

        Raises:
            ValueError: a problem has fewer than ``k`` answers.
        """
        return fmean(pass_at_k(t.answers, t.right, k) for t in self.tallies.values())


def pass_at_k(answers: int, right: int, k: int) -> float:
    """Return the chance that one of ``k`` answers is right, estimated without bias.

    Args:
        answers: answers that were sampled to the problem; at least ``k``.
        right: right ones among them.
        k: answers that count as one attempt.

    Source: Chen et al. 2021 (arXiv 2107.03374), section 2.1: 1 - C(n - c, k) / C(n, k). verl's own
    ``best@k/mean`` draws with replacement and comes out lower.
    """
    if not 1 <= k <= answers:
        raise ValueError(f"pass@{k}: needs at least {k} answers to each problem, got {answers}")
    return 1.0 - comb(answers - right, k) / comb(answers, k)


def rates(runs: Sequence[Results]) -> numpy.ndarray[Any, numpy.dtype[numpy.float64]]:
    """Return pass@1 by run (rows) and problem (columns).

    Raises:
        ValueError: there is no run, or runs have other problems.
    """
    import numpy

    if not runs or not runs[0].tallies:
        raise ValueError("results: there are none")
    problems = list(runs[0].tallies)
    if any(set(run.tallies) != set(problems) for run in runs):
        raise ValueError("results: runs were validated on different problems")
    return numpy.array([[run.tallies[name].rate for name in problems] for run in runs])
