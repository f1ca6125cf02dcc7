"""What the run's metrics do not allow to judge."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind, Severity
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule


def _no_reference_kl(run: History, limits: Limits) -> Alarm | None:
    if run.trained < limits["coverage_steps"] or not run.step.names:
        return None
    if not run.seen & {"score", "reward", "policy_loss", "response_length"}:
        return None
    course = run["reference_kl"]
    if "reference_kl" not in run.seen:
        text = (
            "the reference KL cannot be judged: the run logs none (the update KL compares the "
            "policy with itself); set algorithm.use_kl_in_reward=True with kl_coef=0 to observe it"
        )
        return Alarm(Severity.INFO, "reference_kl", None, None, text)
    zeros = course.last(int(limits["flat_steps"]))
    if zeros and course.highest == course.lowest == 0.0:
        text = (
            f"the reference KL cannot be judged: {run.name('reference_kl')} is 0 at every step; "
            "verl 0.7 logs that when no KL is computed, and older releases print three decimals"
        )
        return Alarm(Severity.INFO, "reference_kl", 0.0, None, text)
    return None


NO_REFERENCE_KL = Rule(
    id="no-reference-kl",
    watches="which metrics are there",
    why="Silence about KL must not read as a good KL.",
    fires="none after `coverage_steps` training steps, or exactly 0 for the first `flat_steps`",
    kind=Kind.UNJUDGED,
    action=Action.NONE,
    check=_no_reference_kl,
)
