"""The rollout engine does not sample what is trained. KL settings cannot repair that."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning


def _mismatch(run: History, limits: Limits) -> Alarm | None:
    for number, unit in (("mismatch_kl", "nats/token"), ("mismatch_prob", "mean difference")):
        if not run.has(number):
            continue
        course = run[number]
        gross, limit = limits[f"{number}_gross"], limits[number]
        now = course.now
        if now is not None and abs(now) >= gross and course.recent[-1][0] == run.step.step:
            text = f"rollout engine and trained policy differ by {abs(now):.3g} ({unit})"
            return critical(number, abs(now), gross, text)
        recent = [abs(value) for value in course.last(3)]
        if recent and min(recent) >= limit:
            text = (
                f"rollout engine and trained policy differ by {recent[-1]:.3g} ({unit}), 3 steps"
            )
            return warning(number, recent[-1], limit, text)
    return None


ROLLOUT_MISMATCH = Rule(
    id="rollout-mismatch",
    watches="KL and mean probability difference between rollout engine and trained policy",
    why=(
        "Gradients from answers of another policy destroy the run, and look like a KL problem; "
        "kernels, quantisation, sampling filters and stale weights cause it."
    ),
    fires=(
        "at once from `mismatch_kl_gross` or `mismatch_prob_gross`; a warning for three steps "
        "over `mismatch_kl` or `mismatch_prob`"
    ),
    kind=Kind.MISMATCH,
    action=Action.STOP,
    check=_mismatch,
)
