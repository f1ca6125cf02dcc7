"""Times two commands in turn, so that a drift of the machine's speed hits both alike."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence


def seconds_of(argv: Sequence[str], **options: object) -> float:
    """Return the wall time of one command, seconds."""
    began = time.perf_counter()
    subprocess.run(
        argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )
    return time.perf_counter() - began


def paired(
    first: Callable[[], float], second: Callable[[], float], runs: int
) -> dict[str, object]:
    """Return medians of both, and of the ratio first/second of each pair."""
    pairs = []
    for number in range(runs):
        # Who goes first alternates: the second finds warmer caches.
        order = (first, second) if number % 2 == 0 else (second, first)
        times = {call: call() for call in order}
        pairs.append((times[first], times[second]))
    ratios = [a / b for a, b in pairs]
    return {
        "runs": runs,
        "first_s": round(statistics.median(a for a, _ in pairs), 3),
        "second_s": round(statistics.median(b for _, b in pairs), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }
