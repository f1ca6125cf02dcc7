"""KL settings of a verl training and the maths of verl's adaptive KL controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: The controller's relative error is clipped to this on both sides.
ERROR_LIMIT = 0.2

#: verl's names for the estimators of KL(policy ‖ reference), by the name used in the literature.
ESTIMATORS: dict[str, str] = {
    "k1": "kl",
    "abs": "abs",
    "k2": "mse",
    "k3": "low_var_kl",
}


class Placement(Enum):
    """Where the KL penalty acts: subtracted from the reward, or added to the actor's loss."""

    REWARD = "reward"
    LOSS = "loss"


@dataclass(frozen=True, slots=True)
class KlSettings:
    """One point of the search: everything kltune may change about the KL of a training.

    Attributes:
        kl_coef: coefficient β at the start, reward units per nat; 0 means "KL off".
        target_kl: reference KL that the adaptive controller aims at, nats per token; None means
            a fixed coefficient.
        horizon: sequences over which an error of 20 % moves the coefficient by 20 %; None keeps
            the user's own.
        estimator: verl's ``kl_penalty`` (or ``kl_loss_type``); None keeps the user's own.
        clip_ratio: PPO clip range; None keeps the user's own.
        placement: where the penalty acts. Only a penalty in the reward can be adaptive.
    """

    kl_coef: float
    target_kl: float | None = None
    horizon: float | None = None
    estimator: str | None = None
    clip_ratio: float | None = None
    placement: Placement = Placement.REWARD

    @property
    def adaptive(self) -> bool:
        """Whether verl's controller moves the coefficient during the run."""
        return self.target_kl is not None

    def key(self) -> tuple[object, ...]:
        """Return what makes two points the same: values to four significant digits."""

        def rounded(value: float | None) -> float | None:
            return None if value is None else float(f"{value:.4g}")

        return (
            rounded(self.kl_coef),
            rounded(self.target_kl),
            rounded(self.horizon),
            self.estimator,
            rounded(self.clip_ratio),
            self.placement.value,
        )

    def describe(self) -> str:
        """Return the settings in one line, for people."""
        parts = [f"kl_coef={self.kl_coef:.4g}"]
        if self.target_kl is not None:
            parts.append(f"target_kl={self.target_kl:.4g}")
        if self.horizon is not None:
            parts.append(f"horizon={self.horizon:.4g}")
        if self.estimator is not None:
            parts.append(f"estimator={self.estimator}")
        if self.clip_ratio is not None:
            parts.append(f"clip_ratio={self.clip_ratio:.4g}")
        if self.placement is Placement.LOSS:
            parts.append("in the loss")
        return " ".join(parts)


def next_coefficient(
    coefficient: float, kl: float, target_kl: float, rows: int, horizon: float
) -> float:
    """Return the coefficient after one step of the adaptive controller.

    verl keeps no controller state in a checkpoint: whoever resumes a run passes this on.

    Args:
        coefficient: β used in this step, reward units per nat.
        kl: this step's reference KL, nats per token; may be negative under estimator k1.
        target_kl: wanted value of ``kl``; > 0.
        rows: sequences of the step (``train_batch_size * rollout.n``).
        horizon: sequences; > 0.

    Source: Ziegler et al. 2019 (arXiv 1909.08593), section 2.2; verl's
    ``AdaptiveKLController``, releases 0.3 to 0.9.
    """
    error = max(-ERROR_LIMIT, min(ERROR_LIMIT, kl / target_kl - 1.0))
    return coefficient * (1.0 + error * rows / horizon)


def smallest_horizon(rows: int) -> float:
    """Return the horizon, in sequences, at and below which one step can turn β negative.

    β is multiplied by at least ``1 - 0.2 * rows / horizon``; verl checks only ``horizon > 0``.
    """
    return ERROR_LIMIT * rows


def reachable(coefficient: float, rows: int, horizon: float, steps: int) -> tuple[float, float]:
    """Return the smallest and largest coefficient that the controller can reach.

    Args:
        coefficient: β at the start.
        rows: sequences of a step.
        horizon: sequences; must be above ``smallest_horizon(rows)``.
        steps: number of controller updates.
    """
    factor = ERROR_LIMIT * rows / horizon
    return coefficient * (1.0 - factor) ** steps, coefficient * (1.0 + factor) ** steps
