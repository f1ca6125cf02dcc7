"""verl's metric names, releases 0.3 to 0.9, and the step record that they become."""

from __future__ import annotations

from collections.abc import Mapping

from kltune.domain.steps import KlSource, Step

_REFERENCE_KL = ("actor/reward_kl_penalty", "critic/kl", "actor/kl_loss")


def step_record(step: int, data: Mapping[str, float]) -> Step:
    """Return the step record of one line of verl's metrics.

    Args:
        step: verl's global step.
        data: number by verl's metric name; NaN and infinity as such, booleans as 0 and 1.
    """
    kl_metric = next((name for name in _REFERENCE_KL if name in data), None)

    def first(*names: str) -> float | None:
        return next((data[name] for name in names if name in data), None)

    return Step(
        step=step,
        reference_kl=data[kl_metric] if kl_metric else None,
        kl_source=KlSource(kl_metric) if kl_metric else None,
        update_kl=first("actor/ppo_kl"),
        coefficient=first("actor/reward_kl_penalty_coeff", "critic/kl_coeff"),
        score=first("critic/score/mean"),
        reward=first("critic/rewards/mean"),
        entropy=first("actor/entropy", "actor/entropy_loss"),
        grad_norm=first("actor/grad_norm"),
        value_loss=first("critic/vf_loss"),
        policy_loss=first("actor/pg_loss"),
        response_length=first("response_length/mean"),
        clip_ratio=first("response_length/clip_ratio"),
        throughput=first("perf/throughput"),
        seconds=first("timing_s/step"),
        mismatch_kl=first("rollout_corr/kl"),
        mismatch_prob=first("training/rollout_probs_diff_mean"),
        validation={k: v for k, v in data.items() if k.startswith("val-core/")},
        raw=dict(data),
    )
