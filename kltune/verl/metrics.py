"""verl's metric names, releases 0.3 to 0.9, and the step record that they become.

The one place that knows them. Where verl renamed a metric, the newer name comes first; a run logs
one of them. Names that only contain one of these (``actor/prefix_ppo_kl``) are other metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kltune.domain.steps import KlSource, Step

#: Number of the step record to verl's names of it.
METRICS: dict[str, tuple[str, ...]] = {
    "reference_kl": (
        "actor/reward_kl_penalty",  # >= 0.4, with algorithm.use_kl_in_reward
        "critic/kl",  # <= 0.3, and forks of it
        "actor/kl_loss",  # with actor.use_kl_loss
    ),
    "update_kl": ("actor/ppo_kl",),
    "coefficient": (
        "actor/reward_kl_penalty_coeff",  # >= 0.4
        "critic/kl_coeff",  # <= 0.3
    ),
    "score": ("critic/score/mean",),
    "score_min": ("critic/score/min",),
    "score_max": ("critic/score/max",),
    "reward": ("critic/rewards/mean",),
    "entropy": (
        "actor/entropy",  # >= 0.4
        "actor/entropy_loss",  # <= 0.3: the entropy itself, higher is more random
    ),
    "grad_norm": ("actor/grad_norm",),
    "value_loss": ("critic/vf_loss",),
    "policy_loss": ("actor/pg_loss",),
    "response_length": ("response_length/mean",),
    "clip_ratio": ("response_length/clip_ratio",),
    "throughput": ("perf/throughput",),
    "seconds": ("timing_s/step", "perf/time_per_step", "timing/step"),
    "mismatch_kl": (
        "rollout_corr/kl",  # >= 0.6.1
        "mismatch/mismatch_kl",  # 0.6.0
        "mismatch/kl",
    ),
    "mismatch_prob": ("training/rollout_probs_diff_mean",),  # >= 0.4.1
}

_KL_SOURCES = {
    "actor/reward_kl_penalty": KlSource("actor/reward_kl_penalty"),
    "critic/kl": KlSource("critic/kl", caveat="read three decimals where verl is 0.4.1 or older"),
    "actor/kl_loss": KlSource(
        "actor/kl_loss",
        caveat=(
            "follows loss_agg_mode, and its scale the verl release: one micro-batch in 0.3 and "
            "0.4, divided by gradient accumulation in 0.6, summed over mini-batches in 0.7 (and "
            "0.0 there when the KL loss is off), exact from 0.8"
        ),
    ),
}

_VALIDATION = ("val-core/", "val/test_score/")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the names of a run's metrics mean; the same at most steps of a run.

    Attributes:
        names: number of the step record to the metric that it is read from.
        kl_source: of the reference KL among them.
        validation: names of validation scores.
    """

    names: Mapping[str, str]
    kl_source: KlSource | None
    validation: tuple[str, ...]

    def record(
        self,
        step: int,
        numbers: Mapping[str, float],
        validation: Mapping[str, float],
        raw: Mapping[str, float],
    ) -> Step:
        """Return a step record.

        Args:
            step: verl's global step.
            numbers: value of each number of the step record that ``names`` holds.
            validation: value of each validation score.
            raw: every number by metric name; kept, not copied.
        """
        return Step(
            step=step,
            kl_source=self.kl_source,
            names=self.names,
            validation=validation,
            sources={},
            raw=raw,
            **numbers,
        )


def meaning(metrics: Collection[str]) -> Meaning:
    """Return what the metrics of one record mean."""
    found = {}
    for number, candidates in METRICS.items():
        name = next((name for name in candidates if name in metrics), None)
        if name is not None:
            found[number] = name
    return Meaning(
        names=found,
        kl_source=_KL_SOURCES.get(found.get("reference_kl", "")),
        validation=tuple(name for name in metrics if name.startswith(_VALIDATION)),
    )


def step_record(step: int, data: Mapping[str, float]) -> Step:
    """Return the step record of one line of verl's metrics.

    Args:
        step: verl's global step.
        data: number by verl's metric name; NaN and infinity as such, booleans as 0 and 1. Kept,
            not copied.
    """
    means = meaning(data.keys())
    numbers = {number: data[name] for number, name in means.names.items()}
    return means.record(step, numbers, {name: data[name] for name in means.validation}, data)
