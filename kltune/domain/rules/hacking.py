"""The score that is trained on rises, and what it stands for falls."""

from __future__ import annotations

from kltune.domain.course import SMOOTHED
from kltune.domain.findings import Action, Kind
from kltune.domain.history import History, source_number
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning
from kltune.domain.rules.departures import score_rising

_ADVICE = ": verify the reward, it can be had without the task"

#: The reward source that is verl's own scorer: the share of right answers.
_RIGHT = "acc"


def _reward_hacking(run: History, limits: Limits) -> Alarm | None:
    if not (run.has("held_out") or run.step.sources) or not score_rising(run, limits):
        return None
    return _held_out_fallen(run, limits) or _one_source_alone(run, limits)


def _held_out_fallen(run: History, limits: Limits) -> Alarm | None:
    course = run["held_out"]
    recent, best = course.last(2), course.highest
    if not (run.has("held_out") and recent) or best is None or best <= 0:
        return None
    bound, now = (1 - limits["held_out_loss"]) * best, max(recent)
    if now > bound:
        return None
    text = (
        f"{_score_rose(run)} while the validation score fell from {best:.4g} to {recent[-1]:.4g}"
        f"{_ADVICE}"
    )
    return critical("held_out", now, bound, text)


def _one_source_alone(run: History, limits: Limits) -> Alarm | None:
    """Whether some reward sources rise in training at the cost of the truth, or of the others.

    A bonus that falls while answers become right is none of that, so that without verl's own
    scorer among the sources there is a warning at most.
    """
    sources = run.step.sources
    risen = [name for name in sources if name != _RIGHT and _risen(run, name, limits)]
    fallen = [(name, lost) for name in sources if (lost := _lost(run, name, limits)) is not None]
    if _RIGHT in sources:
        fallen = [(name, lost) for name, lost in fallen if name == _RIGHT]
    elif len(risen) > 1:
        return None
    if not risen or not fallen:
        return None
    name, (best, bound, now) = fallen[0]
    course = run[source_number(risen[0])]
    text = (
        f"{_score_rose(run)} by {' and '.join(risen)} alone ({risen[0]} from {course.start:.4g} "
        f"to {course.level(SMOOTHED):.4g}) while {name} fell from {best:.4g} to {now:.4g} in "
        f"training{_ADVICE}"
    )
    raised = critical if name == _RIGHT else warning
    return raised(source_number(name), now, bound, text)


def _risen(run: History, source: str, limits: Limits) -> bool:
    course = run[source_number(source)]
    start, now, noise = course.start, course.level(SMOOTHED), course.noise
    if start is None or now is None or noise is None:
        return False
    return now - start > limits["score_slip_noise"] * noise


def _lost(run: History, source: str, limits: Limits) -> tuple[float, float, float] | None:
    """Return (best, bound, now) of a source that has lost its level beyond its noise."""
    course = run[source_number(source)]
    best, now, noise = course.peak, course.level(SMOOTHED), course.noise
    if best is None or now is None or noise is None or best <= 0:
        return None
    bound = best - max(limits["held_out_loss"] * best, limits["score_slip_noise"] * noise)
    return (best, bound, now) if now < bound else None


def _score_rose(run: History) -> str:
    course = run["score"]
    return f"the training score rose from {course.start:.4g} to {course.level(3):.4g}"


REWARD_HACKING = Rule(
    id="reward-hacking",
    watches="validation score, and each reward source, against training score",
    why=(
        "A reward that can be gamed is; the score that is trained on then says nothing. Only a "
        "score that is not trained on shows it (Gao et al. 2022), or a source that is right."
    ),
    fires=(
        "the training score has risen by more than `score_noise` times its noise while two "
        "validations in a row have lost `held_out_loss` of the best one; or while verl's own "
        "scorer, as one of the reward sources, has lost as much of its best level in training and "
        "another source has risen, each by more than `score_slip_noise` times its noise; a "
        "warning where that scorer is not among them, and one source rises alone while another "
        "has lost as much"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_reward_hacking,
)
