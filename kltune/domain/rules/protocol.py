"""The rows of the protocol's table, literally. They judge the reference KL by absolute numbers.

Every published good PPO run of verl with a fixed coefficient passes ``max_kl`` within its first
40 steps; the rules make sense where a controller holds the KL at its target.
"""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning

_WINDOW = 20


def _max_kl(run: History, limits: Limits) -> Alarm | None:
    kl, limit = run.step.reference_kl, limits["max_kl"]
    if kl is None or not kl > limit:
        return None
    return critical("reference_kl", kl, limit, f"reference KL {kl:.4g} is above {limit:g}")


def _kl_variance(run: History, limits: Limits) -> Alarm | None:
    values = [value for _, value in run["reference_kl"].recent][-_WINDOW:]
    if not run.has("reference_kl") or len(values) < 2:
        return None
    # Plain sums: those of the statistics module raise where a run has gone to 1e308.
    mean, limit = sum(values) / len(values), limits["kl_variance"]
    variance = sum((value - mean) * (value - mean) for value in values) / len(values)
    if not variance > limit:
        return None
    text = f"variance of the reference KL over {len(values)} steps is {variance:.4g}"
    return warning("reference_kl", variance, limit, f"{text}, above {limit:g}")


def _reward_spike(run: History, limits: Limits) -> Alarm | None:
    before = run.previous.score if run.previous else None
    now, limit = run.step.score, limits["reward_spike"]
    if now is None or before is None or before == 0:
        return None
    rise = (now - before) / abs(before)
    if not rise > limit:
        return None
    text = f"score rose by {rise:.0%} in one step, from {before:.4g} to {now:.4g}"
    return warning("score", rise, limit, f"{text}; above {limit:.0%}")


MAX_KL = Rule(
    id="max-kl",
    watches="reference KL",
    why="The protocol holds the policy within 0.05 nats per token of the reference.",
    fires="the reference KL of one step is above `max_kl`",
    kind=Kind.DIVERGENCE,
    action=Action.RAISE_COEFFICIENT,
    check=_max_kl,
)

KL_VARIANCE = Rule(
    id="kl-variance",
    watches="reference KL",
    why="The protocol reads a scattered KL as shards that disagree.",
    fires=f"its variance over the last {_WINDOW} steps is above `kl_variance`",
    kind=Kind.DIVERGENCE,
    action=Action.PACK_SEQUENCES,
    check=_kl_variance,
)

REWARD_SPIKE = Rule(
    id="reward-spike",
    watches="raw score",
    why="The protocol takes a jump of the reward for a reward model that is being exploited.",
    fires="the score rises by more than `reward_spike` of its last value in one step",
    kind=Kind.DIVERGENCE,
    action=Action.PENALTY_K1,
    check=_reward_spike,
)
