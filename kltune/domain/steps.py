"""The step record: one training step of a verl run, in kltune's own names and units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class KlSource:
    """Where a reference KL was read, which decides what its number means.

    Attributes:
        metric: verl's own metric name, e.g. ``actor/reward_kl_penalty``.
        estimator: ``k1``, ``k2``, ``k3``, ``abs`` or ``""`` where the log does not tell.
        unit: ``nats/token`` unless the run aggregates otherwise.
        caveat: what can mislead about this number in this verl version; ``""`` if nothing.
    """

    metric: str
    estimator: str = ""
    unit: str = "nats/token"
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run. ``None`` means "not logged"; NaN and infinity are kept as such.

    Attributes:
        step: verl's global step, counted from 1; 0 is the validation before training.
        reference_kl: KL(policy ‖ reference), nats per response token, before this step's update.
        kl_source: what ``reference_kl`` was read from; None when there is none.
        update_kl: verl's ``actor/ppo_kl``, nats per token: the policy against itself one update
            earlier. Not a reference KL.
        coefficient: the KL coefficient β *used* in this step, reward units per nat.
        score: mean raw score of the sequences, without any KL penalty, reward units.
        score_min, score_max: lowest and highest raw score of a sequence in the batch.
        reward: mean reward after the KL penalty, reward units.
        entropy: mean policy entropy, nats per token.
        grad_norm: gradient norm of the actor before clipping.
        value_loss: critic loss; None without a critic.
        policy_loss: actor loss.
        response_length: mean response length, tokens.
        clip_ratio: share of responses cut at the length limit, 0 to 1.
        throughput: tokens per second per GPU.
        seconds: wall time of the step.
        mismatch_kl: KL between training policy and rollout engine, nats per token.
        mismatch_prob: mean |p_rollout - p_training| over response tokens.
        names: verl's own metric name of each number that was logged, by its name here.
        validation: validation score by verl's own metric name.
        sources: mean over the step's answers of what each reward source gave, before weight and
            cap, by its name; ``acc`` is the share that verl's own scorer found right. Empty where
            kltune's reward function was not used.
        raw: every number of the record by verl's own metric name.
    """

    step: int
    reference_kl: float | None = None
    kl_source: KlSource | None = None
    update_kl: float | None = None
    coefficient: float | None = None
    score: float | None = None
    score_min: float | None = None
    score_max: float | None = None
    reward: float | None = None
    entropy: float | None = None
    grad_norm: float | None = None
    value_loss: float | None = None
    policy_loss: float | None = None
    response_length: float | None = None
    clip_ratio: float | None = None
    throughput: float | None = None
    seconds: float | None = None
    mismatch_kl: float | None = None
    mismatch_prob: float | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, float] = field(default_factory=dict)
    raw: Mapping[str, float] = field(default_factory=dict)

    @property
    def held_out(self) -> float | None:
        """Mean of the validation scores; None at a step that made none.

        Of several numbers on the same answers (best or majority of N) the plain means count.
        """
        means = [v for name, v in self.validation.items() if "/mean@" in name]
        found = means or list(self.validation.values())
        return math.fsum(found) / len(found) if found else None

    def non_finite(self) -> Iterator[tuple[str, float]]:
        """Yield (verl's metric name, value) for every NaN or infinite number of the record."""
        return ((name, value) for name, value in self.raw.items() if not math.isfinite(value))


#: Names of the step record that hold one number each.
NUMBERS: tuple[str, ...] = tuple(
    f.name
    for f in fields(Step)
    if f.name not in {"step", "kl_source", "names", "validation", "sources", "raw"}
)


def values(steps: Sequence[Step], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of one number of the record, for the steps that logged it."""
    found = ((s.step, getattr(s, name)) for s in steps)
    return [(step, value) for step, value in found if value is not None]
