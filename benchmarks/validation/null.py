"""False verdicts: 1,000 comparisons of settings that do not differ, and what a real gain needs.

    python benchmarks/validation/null.py

Simulated: problems of different difficulty, a policy per seed that is better or worse on each
problem than the settings' average (training noise), answers drawn from it. Both arms of a null
comparison have the same settings, and so the same average; only luck differs. The share of false
verdicts is to stay below the stated level: 5 % in all, 2.5 % "improved".
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy

from kltune.validation import Finding, Results, Tally, compare

RUNS = 1000


def policies(
    rng: numpy.random.Generator, seeds: int, problems: int, shift: float
) -> numpy.ndarray:
    """Return the chance of a right answer by policy and problem.

    Logits: difficulty of a problem with deviation 2, luck of a training as a whole with deviation
    0.15 (about 3 points of pass@1), and on each problem with deviation 1.
    """
    difficulty = rng.normal(0.5, 2.0, problems)
    luck = rng.normal(0, 0.15, (seeds, 1)) + rng.normal(0, 1.0, (seeds, problems))
    return 1 / (1 + numpy.exp(-(difficulty + luck + shift)))


def arm(rng: numpy.random.Generator, chances: numpy.ndarray, samples: int) -> list[Results]:
    """Draw answers."""
    right = rng.binomial(samples, chances)
    return [Results({str(i): Tally(int(r), samples) for i, r in enumerate(row)}) for row in right]


def verdicts(seeds: int, problems: int, samples: int, shift: float) -> dict[str, float]:
    """Return the share of each verdict over ``RUNS`` comparisons."""
    counts = dict.fromkeys(Finding, 0)
    for number in range(RUNS):
        rng = numpy.random.default_rng([seeds, problems, samples, number])
        both = policies(rng, 2 * seeds, problems, 0.0)
        logit = numpy.log(both[seeds:] / (1 - both[seeds:])) + shift
        old = arm(rng, both[:seeds], samples)
        new = arm(rng, 1 / (1 + numpy.exp(-logit)), samples)
        counts[compare(old, new).finding] += 1
    return {finding.value: count / RUNS for finding, count in counts.items()}


designs = [
    (1, 256, 1),
    (2, 256, 1),
    (3, 256, 1),
    (5, 256, 1),
    (5, 1319, 1),
    (5, 30, 1),
    (5, 30, 32),
]
result = {
    f"{s} seeds, {p} problems, {n} samples": {
        "no difference": verdicts(s, p, n, 0.0),
        "a gain of about 10 points": verdicts(s, p, n, 0.65),
    }
    for s, p, n in designs
}
print(json.dumps(result, indent=2))
Path(__file__).with_name("null.json").write_text(json.dumps(result, indent=2) + "\n")
