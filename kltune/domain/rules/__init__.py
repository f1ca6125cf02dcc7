"""Anomaly rules: each one small pure question about a run's history."""

from kltune.domain.rules.band import KL_ABOVE_BAND
from kltune.domain.rules.base import Alarm, Limits, Rule
from kltune.domain.rules.collapse import (
    ENTROPY_BLOW_UP,
    ENTROPY_COLLAPSE,
    GRADIENT_BLOW_UP,
    LENGTH_BLOW_UP,
    LENGTH_COLLAPSE,
    SCORE_COLLAPSE,
)
from kltune.domain.rules.controller import COEFFICIENT_RUNAWAY, INERT_CONTROLLER
from kltune.domain.rules.coverage import NO_REFERENCE_KL
from kltune.domain.rules.dead_run import DEAD_RUN
from kltune.domain.rules.divergence import KL_DIVERGENCE, NEGATIVE_KL, UPDATE_KL
from kltune.domain.rules.hacking import REWARD_HACKING
from kltune.domain.rules.mismatch import ROLLOUT_MISMATCH
from kltune.domain.rules.non_finite import NON_FINITE
from kltune.domain.rules.penalty import PENALTY_DOMINATES
from kltune.domain.rules.protocol import KL_VARIANCE, MAX_KL, REWARD_SPIKE
from kltune.domain.rules.truncation import TRUNCATION

#: The protocol's table; its fourth row, the crash, is read from the log and not from the metrics.
PROTOCOL_RULES = (MAX_KL, KL_VARIANCE, REWARD_SPIKE)

#: Relative and persistent rules, for anybody's run.
ROBUST_RULES = (
    NON_FINITE,
    KL_DIVERGENCE,
    UPDATE_KL,
    SCORE_COLLAPSE,
    LENGTH_COLLAPSE,
    LENGTH_BLOW_UP,
    ENTROPY_COLLAPSE,
    ENTROPY_BLOW_UP,
    GRADIENT_BLOW_UP,
    PENALTY_DOMINATES,
    REWARD_HACKING,
    ROLLOUT_MISMATCH,
    DEAD_RUN,
    TRUNCATION,
    NEGATIVE_KL,
    INERT_CONTROLLER,
    COEFFICIENT_RUNAWAY,
    NO_REFERENCE_KL,
)

#: What ends a search trial.
SEARCH_RULES = (KL_ABOVE_BAND, *ROBUST_RULES)

__all__ = ["PROTOCOL_RULES", "ROBUST_RULES", "SEARCH_RULES", "Alarm", "Limits", "Rule"]
