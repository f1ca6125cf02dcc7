"""The rollout engine does not sample what is trained. KL settings cannot repair that."""

from __future__ import annotations

import math

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning
from kltune.domain.rules.departures import kl_rising, mismatched, score_fallen


def _mismatch(run: History, limits: Limits) -> Alarm | None:
    for number in ("mismatch_kl", "mismatch_prob"):
        value, gross = getattr(run.step, number), limits[f"{number}_gross"]
        if value is not None and math.isfinite(value) and abs(value) >= gross:
            name = run.name(number)
            text = f"rollout engine and trained policy differ by {abs(value):.3g} ({name})"
            return critical(number, abs(value), gross, text)
    apart = mismatched(run, limits)
    if apart is None:
        return None
    harm = score_fallen(run, limits) or kl_rising(run, limits)
    if harm is not None:
        return critical(apart.number, apart.value, apart.bound, f"{apart.text}; {harm.text}")
    return warning(apart.number, apart.value, apart.bound, f"{apart.text} for three steps")


ROLLOUT_MISMATCH = Rule(
    id="rollout-mismatch",
    watches="KL and mean probability difference between rollout engine and trained policy",
    why=(
        "Gradients from answers of another policy destroy the run, and look like a KL problem; "
        "kernels, quantisation, sampling filters and stale weights cause it."
    ),
    fires=(
        "at once from `mismatch_kl_gross` or `mismatch_prob_gross`; for three steps over "
        "`mismatch_kl` or `mismatch_prob`: critical with a fallen score or a rising reference KL, "
        "else a warning"
    ),
    kind=Kind.MISMATCH,
    action=Action.STOP,
    check=_mismatch,
)
