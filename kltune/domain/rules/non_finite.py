"""Numbers that are NaN or infinite."""

from __future__ import annotations

import math

from kltune.domain.findings import Action, Kind, Severity
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule

#: Numbers that training cannot go on without.
_VITAL = (
    "reference_kl", "update_kl", "coefficient", "score", "reward", "entropy", "policy_loss",
    "value_loss", "response_length",
)  # fmt: skip

#: verl skips the update of a step whose gradient norm is not finite (from 0.4), and half
#: precision overflows now and then; the mismatch is measured, not trained on.
_EXCUSED_ONCE = ("grad_norm", "mismatch_kl")


def _non_finite(run: History, limits: Limits) -> Alarm | None:
    del limits
    for number in (*_VITAL, *_EXCUSED_ONCE):
        value = getattr(run.step, number)
        if value is None or math.isfinite(value):
            continue
        again = run.previous is not None and not _is_finite(getattr(run.previous, number))
        if number in _VITAL or again:
            words = " again" if again else ""
            return _alarm(
                Severity.CRITICAL, number, value, f"{run.name(number)} is {value}{words}"
            )
        text = f"{run.name(number)} is {value} once; a second time in a row would be critical"
        return _alarm(Severity.WARNING, number, value, text)
    # Others are undefined at times in good runs: the explained variance of constant returns, a
    # correlation of constants, the utilisation of an unknown device.
    for name, value in run.step.non_finite():
        return _alarm(Severity.INFO, name, value, f"{name} is {value}; training does not need it")
    return None


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _alarm(severity: Severity, number: str, value: float, text: str) -> Alarm:
    return Alarm(severity, number, value, None, text)


NON_FINITE = Rule(
    id="non-finite",
    watches="every number of a step",
    why="verl never stops at NaN: it skips the update and goes on for days, with exit code 0.",
    fires=(
        "KL, loss, entropy, score or length is NaN or infinite; the gradient norm or the rollout "
        "mismatch for two steps in a row (once: a warning); any other metric: a note"
    ),
    kind=Kind.NON_FINITE,
    action=Action.STOP,
    check=_non_finite,
)
