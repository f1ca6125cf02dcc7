"""The course of one number over a run: its start, its recent values, its best level.

Bounded memory and constant cost per value, so that a rule at step 100,000 costs what it costs at
step 10. Only finite values enter; what is not finite is the business of one rule.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

#: Values that make up the start of a run. A run can go wrong within five steps, so no more.
START = 3
#: Recent values that are kept.
RECENT = 40
#: A level is the median of so many neighbouring values; one outlier does not move it.
SMOOTHED = 5


@dataclass(slots=True)
class Course:
    """The course of one number.

    Attributes:
        first: the first ``START`` values.
        recent: the last ``RECENT`` values with their steps, oldest first.
        peak: highest median of ``SMOOTHED`` neighbouring values so far; None before there is one.
        lowest, highest: extremes of all values so far.
    """

    first: list[tuple[int, float]] = field(default_factory=list)
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    peak: float | None = None
    lowest: float | None = None
    highest: float | None = None

    def add(self, step: int, value: float) -> None:
        """Append a finite value; others are left out."""
        if not math.isfinite(value):
            return
        if len(self.first) < START:
            self.first.append((step, value))
        self.recent.append((step, value))
        self.lowest = value if self.lowest is None else min(self.lowest, value)
        self.highest = value if self.highest is None else max(self.highest, value)
        smoothed = self.level(SMOOTHED)
        if smoothed is not None and (self.peak is None or smoothed > self.peak):
            self.peak = smoothed

    def rewind(self, step: int) -> None:
        """Forget the values of ``step`` and later: the run resumed from before them."""
        self.first = [point for point in self.first if point[0] < step]
        while self.recent and self.recent[-1][0] >= step:
            self.recent.pop()

    @property
    def start(self) -> float | None:
        """Median of the first values; None until there are ``START`` of them."""
        return median(v for _, v in self.first) if len(self.first) == START else None

    @property
    def now(self) -> float | None:
        """The last value."""
        return self.recent[-1][1] if self.recent else None

    def last(self, count: int) -> list[float]:
        """Return the last ``count`` values, oldest first; an empty list if there are fewer."""
        if len(self.recent) < count:
            return []
        return [self.recent[i][1] for i in range(-count, 0)]

    def level(self, count: int) -> float | None:
        """Return the median of the last ``count`` values; None if there are fewer."""
        values = self.last(count)
        return median(values) if values else None

    def earlier(self, nearest: int, farthest: int) -> float | None:
        """Return the median of the values that came ``nearest`` to ``farthest`` values ago."""
        values = [v for _, v in self.recent][-farthest - 1 : len(self.recent) - nearest]
        return median(values) if values else None

    @property
    def noise(self) -> float | None:
        """Standard deviation of a value about its level, from the differences of neighbours.

        Robust (median absolute difference), so neither a trend nor a few spikes swell it.
        """
        values = [v for _, v in self.recent]
        if len(values) <= START:
            return None
        jumps = [abs(b - a) for a, b in pairwise(values)]
        return 1.4826 * median(jumps) / math.sqrt(2)
