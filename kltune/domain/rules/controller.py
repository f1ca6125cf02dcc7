"""The adaptive KL controller: one that does nothing, and one that has run away."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning


def _inert(run: History, limits: Limits) -> Alarm | None:
    if not run.setup.adaptive or not run.step.names:
        return None
    steps = int(limits["inert_steps"])
    if run.trained >= steps and "coefficient" not in run.seen:
        text = (
            "an adaptive KL controller was asked for and no coefficient is logged: it does "
            "nothing while algorithm.use_kl_in_reward is False"
        )
        return warning("coefficient", 0.0, 0.0, text)
    recent = run["coefficient"].last(steps)
    kls = run["reference_kl"].last(steps)
    if recent and kls and any(kls) and min(recent) == max(recent):
        text = f"the adaptive coefficient is exactly {recent[-1]:g} for the last {steps} steps"
        return warning("coefficient", recent[-1], recent[0], text)
    return None


def _run_away(run: History, limits: Limits) -> Alarm | None:
    course = run["coefficient"]
    start, now = course.start, course.now
    if not run.has("coefficient") or now is None:
        return None
    if now < 0:
        text = (
            f"the KL coefficient is {now:.3g}: below 0 it rewards divergence; the horizon must be "
            "above a fifth of the sequences of a step"
        )
        return critical("coefficient", now, 0.0, text)
    factor = limits["coefficient_growth"]
    if start is None or start <= 0 or now < factor * start:
        return None
    text = f"the KL coefficient grew from {start:.3g} to {now:.3g} and the target is not reached"
    return warning("coefficient", now, factor * start, text)


INERT_CONTROLLER = Rule(
    id="inert-controller",
    watches="the KL coefficient, where the configuration is known to ask for adaptive control",
    why="Users tune target_kl for weeks in runs in which nothing reads it.",
    fires="no coefficient is logged, or it never moves, for `inert_steps` steps",
    kind=Kind.CONFIGURATION,
    action=Action.INSPECT,
    check=_inert,
)

COEFFICIENT_RUNAWAY = Rule(
    id="coefficient-runaway",
    watches="the KL coefficient",
    why=(
        "A controller that cannot reach its target raises the coefficient without end; with more "
        "than five horizons of sequences in a step its sign flips."
    ),
    fires="`coefficient_growth` times its start: a warning; below 0: critical",
    kind=Kind.CONFIGURATION,
    action=Action.STOP,
    check=_run_away,
)
