"""The score that is trained on rises, and what it stands for falls."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical
from kltune.domain.rules.departures import score_rising


def _reward_hacking(run: History, limits: Limits) -> Alarm | None:
    course = run["held_out"]
    recent, best = course.last(2), course.highest
    if not (run.has("held_out") and recent) or best is None or best <= 0:
        return None
    bound, now = (1 - limits["held_out_loss"]) * best, max(recent)
    if now > bound or not score_rising(run, limits):
        return None
    start, score = run["score"].start, run["score"].level(3)
    text = (
        f"the training score rose from {start:.4g} to {score:.4g} while the validation score fell "
        f"from {best:.4g} to {recent[-1]:.4g}: verify the reward, it can be had without the task"
    )
    return critical("held_out", now, bound, text)


REWARD_HACKING = Rule(
    id="reward-hacking",
    watches="validation score against training score",
    why=(
        "A reward that can be gamed is; the score that is trained on then says nothing. Only a "
        "score that is not trained on shows it (Gao et al. 2022)."
    ),
    fires=(
        "two validations in a row have lost `held_out_loss` of the best one while the training "
        "score has risen by more than `score_noise` times its noise"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_reward_hacking,
)
