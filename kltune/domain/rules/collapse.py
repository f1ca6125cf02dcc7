"""Answers, entropy or score fall apart, whether or not the run logs a reference KL.

Each rule warns when its own number has left the level that it had at the best score, and is
critical when the score has fallen as well.
"""

from __future__ import annotations

from collections.abc import Callable

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning
from kltune.domain.rules.departures import (
    Departure,
    entropy_fallen,
    entropy_risen,
    gradient_risen,
    kl_above_best,
    length_fallen,
    length_risen,
    score_fallen,
)

Question = Callable[[History, Limits], Departure | None]


def _joined_with_score(
    question: Question, number: str
) -> Callable[[History, Limits], Alarm | None]:
    def check(run: History, limits: Limits) -> Alarm | None:
        departed = question(run, limits) if run.has(number) else None
        if departed is None:
            return None
        score = score_fallen(run, limits)
        if score is None:
            return warning(departed.number, departed.value, departed.bound, departed.text)
        text = f"{departed.text}; {score.text}"
        return critical(departed.number, departed.value, departed.bound, text)

    return check


def _score_collapse(run: History, limits: Limits) -> Alarm | None:
    score = score_fallen(run, limits) if run.has("score") else None
    if score is None:
        return None
    for question in (kl_above_best, length_fallen, length_risen, entropy_fallen, entropy_risen,
                     gradient_risen):  # fmt: skip
        if (other := question(run, limits)) is not None:
            return critical("score", score.value, score.bound, f"{score.text}; {other.text}")
    return warning("score", score.value, score.bound, score.text)


SCORE_COLLAPSE = Rule(
    id="score-collapse",
    watches="raw score, with every other number",
    why="It is what training is for; the reward after the penalty can rise while it dies.",
    fires=(
        "for `score_steps` steps the score has lost `score_loss` of the way from the lowest score "
        "to its best level, or `score_noise_far` times its noise; critical when KL, length, "
        "entropy or gradient norm has left its range too"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_score_collapse,
)

LENGTH_COLLAPSE = Rule(
    id="length-collapse",
    watches="response length, with the score",
    why="A collapsing policy ends its answers at once. Good runs grow terse too, and gain score.",
    fires=(
        "median of three steps under `length_fall` of the level at the best score; critical with "
        "a fallen score"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_joined_with_score(length_fallen, "response_length"),
)

LENGTH_BLOW_UP = Rule(
    id="length-blow-up",
    watches="response length and the share of answers cut at the limit, with the score",
    why="An answer cut at the limit scores nothing. Reasoning runs grow fivefold, and gain score.",
    fires=(
        "median of three steps over `length_rise` times the level at the best score, or "
        "`clip_ratio` of the answers cut; critical with a fallen score"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_joined_with_score(length_risen, "response_length"),
)

ENTROPY_COLLAPSE = Rule(
    id="entropy-collapse",
    watches="entropy, with the score",
    why="A policy without entropy explores nothing. It falls slowly in good runs too.",
    fires=(
        "median of three steps under `entropy_fall` of the level at the best score; critical with "
        "a fallen score"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_joined_with_score(entropy_fallen, "entropy"),
)

ENTROPY_BLOW_UP = Rule(
    id="entropy-blow-up",
    watches="entropy, with the score",
    why="A policy that turns to noise writes mixed languages and symbols. Humps that pass occur.",
    fires=(
        "median of three steps over `entropy_rise` times the level at the best score; critical "
        "with a fallen score"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_joined_with_score(entropy_risen, "entropy"),
)

GRADIENT_BLOW_UP = Rule(
    id="gradient-blow-up",
    watches="gradient norm of the actor, with the score",
    why="Single spikes of 70 times the median occur in good runs; a level that stays does not.",
    fires="three steps in a row over `gradient_rise` times the level 5 to 20 steps before",
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_joined_with_score(gradient_risen, "grad_norm"),
)
