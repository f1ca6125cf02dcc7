"""False declines: 1,000 curves whose pass@1 does not fall, and what a real fall needs to be seen.

    python benchmarks/validation/declines.py

Simulated as in ``null.py``, with a course of its own for each training: from validation to
validation its level moves by chance, about 2 points of pass@1. The share of false declines is to
stay below the stated level of 5 %; a decline is what makes an export leave the search's winner.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy

from kltune.domain.steps import Step
from kltune.validation import Observed, Results, Tally, curve

RUNS = 1000
VALIDATIONS = range(0, 70, 10)

#: In logits; a move of 0.1 is about 2 points.
LUCK = 0.1


def run(rng: numpy.random.Generator, difficulty: numpy.ndarray, fall: float) -> Observed:
    """Return a training whose settings lose ``fall`` (logits) in the second half."""
    steps = [Step(n, reference_kl=0.0005 * n, score=0.5) for n in range(1, 61)]
    walk = rng.normal(0, LUCK, len(VALIDATIONS)).cumsum()
    own = difficulty + rng.normal(0, 1.0, len(difficulty))
    results = {}
    for n, luck in zip(VALIDATIONS, walk, strict=True):
        chances = 1 / (1 + numpy.exp(-(own + luck - fall * max(0, n - 30) / 30)))
        right = rng.random(len(difficulty)) < chances
        results[n] = Results({str(i): Tally(int(r), 1) for i, r in enumerate(right)})
    return Observed(steps, results)


def declines(seeds: int, problems: int, fall: float) -> float:
    """Return the share of ``RUNS`` arms that are found to decline."""
    found = 0
    for number in range(RUNS):
        rng = numpy.random.default_rng([seeds, problems, number])
        difficulty = rng.normal(0.5, 2.0, problems)
        drawn = curve([run(rng, difficulty, fall) for _ in range(seeds)])
        found += drawn is not None and drawn.declined
    return found / RUNS


designs = [(1, 256), (2, 256), (3, 256), (5, 256), (5, 1319)]
result = {
    f"{seeds} seeds, {problems} problems": {
        "no fall": declines(seeds, problems, 0.0),
        "a fall of about 10 points": declines(seeds, problems, 0.65),
        "a fall of about 20 points": declines(seeds, problems, 1.3),
    }
    for seeds, problems in designs
}
print(json.dumps(result, indent=2))
Path(__file__).with_name("declines.json").write_text(json.dumps(result, indent=2) + "\n")
