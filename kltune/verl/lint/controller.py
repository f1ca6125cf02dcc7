"""Checks of the adaptive controller.

After each step verl multiplies the coefficient by
``1 + clip(KL/target_kl - 1, ±0.2) · rows/horizon``
(verl/trainer/ppo/core_algos.py, AdaptiveKLController; Ziegler et al. 2019, section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.lint.subject import KL_CTRL, Subject

_CLIP = 0.2
_TARGET = f"{KL_CTRL}.target_kl"
_HORIZON = f"{KL_CTRL}.horizon"
#: Rows of a step times this is a horizon that moves the coefficient by at most 2 % a step.
_CALM = 10


def target_kl_range(s: Subject) -> Iterator[LintFinding]:
    """`target_kl` is not positive: verl divides by it."""
    target = s.number(_TARGET)
    if _acts(s) and target is not None and target <= 0:
        yield LintFinding(
            "target-kl-range",
            Level.ERROR,
            f"target_kl is {target:g}: the controller divides by it and raises "
            "ZeroDivisionError after the first step" if target == 0
            else f"target_kl is {target:g}: with a negative target the controller turns around",
            {_TARGET: target},
            fix={_TARGET: 0.02},
        )  # fmt: skip


def target_kl_unit(s: Subject) -> Iterator[LintFinding]:
    """`target_kl` looks like nats per sequence (TRL's 6); verl means nats per token."""
    target, length = s.number(_TARGET), s.number("data.max_response_length")
    if _acts(s) and target is not None and target >= 0.5:
        yield LintFinding(
            "target-kl-unit",
            Level.ERROR if target >= 2 else Level.WARNING,
            f"target_kl={target:g} is in nats per token: over {length or 1:g} tokens that is "
            f"{target * (length or 1):.0f} nats per sequence, a policy without any likeness to "
            "the reference. Was it taken from a library that sums over the sequence?",
            {_TARGET: target, "data.max_response_length": length},
            fix={_TARGET: 0.02},
        )


def target_kl_default(s: Subject) -> Iterator[LintFinding]:
    """The adaptive controller is on with verl's default target of 0.1."""
    target = s.number(_TARGET)
    if _acts(s) and target is not None and not s.given(_TARGET):
        yield LintFinding(
            "target-kl-default",
            Level.INFO,
            f"target_kl is verl's default {target:g} nats per token; the protocol uses 0.02 on "
            "one node and 0.015 on several",
            {_TARGET: target},
            fix={_TARGET: 0.02},
        )


def target_outside_band(s: Subject) -> Iterator[LintFinding]:
    """`target_kl` lies outside the band that the calibration wants."""
    target = s.number(_TARGET)
    if _acts(s) and s.band is not None and target is not None:
        low, high = s.band
        if not low <= target <= high:
            yield LintFinding(
                "target-outside-band",
                Level.WARNING,
                f"target_kl={target:g} lies outside the wanted band {low:g} to {high:g} nats per "
                "token: a controller that works leaves the band",
                {_TARGET: target},
                fix={_TARGET: math.sqrt(low * high) if low > 0 else high / 2},
            )


def target_estimator(s: Subject) -> Iterator[LintFinding]:
    """The controller compares `target_kl` with an estimator that is no KL (abs, mse)."""
    penalty = s.value("algorithm.kl_penalty")
    if _acts(s) and str(penalty).rstrip("+") in ("abs", "mse", "k2"):
        yield LintFinding(
            "target-estimator",
            Level.WARNING,
            f"with kl_penalty={penalty} the controller compares target_kl, and kltune its band, "
            "with a number that is no estimate of KL in nats"
            + (" (|log ratio| is far larger)" if penalty == "abs" else " (biased away from 0)"),
            {"algorithm.kl_penalty": penalty},
            fix={"algorithm.kl_penalty": "low_var_kl"},
        )


def k1_controller(s: Subject) -> Iterator[LintFinding]:
    """The controller is fed k1, which is negative at times and then lowers the coefficient."""
    penalty = s.value("algorithm.kl_penalty")
    if _acts(s) and str(penalty).rstrip("+") in ("kl", "k1"):
        yield LintFinding(
            "k1-controller",
            Level.INFO,
            f"kl_penalty={penalty} (k1) is noisy and can be negative: the controller then lowers "
            "the coefficient at full speed",
            {"algorithm.kl_penalty": penalty},
            fix={"algorithm.kl_penalty": "low_var_kl"},
        )


def horizon_sign_flip(s: Subject) -> Iterator[LintFinding]:
    """`horizon` is not positive, or so small that the coefficient can reach 0 or turn negative."""
    horizon, rows = s.number(_HORIZON), s.rows
    if not _acts(s) or horizon is None:
        return
    if horizon <= 0 or (rows and _CLIP * rows >= horizon):
        fix = {_HORIZON: rows * _CALM if rows else 10000}
        why = (
            "verl asserts that it is positive"
            if horizon <= 0
            else f"a step of {rows} rows multiplies the coefficient by "
            f"{1 - _CLIP * (rows or 0) / horizon:.2g} when KL is low, as it is at the start"
        )
        yield LintFinding(
            "horizon-sign-flip",
            Level.ERROR,
            f"horizon={horizon:g}: {why}; it counts sequences and must be above rows / 5",
            {_HORIZON: horizon, "rows per step": rows},
            fix=fix,
        )


def horizon_coarse(s: Subject) -> Iterator[LintFinding]:
    """`horizon` is below two steps' rows: the coefficient jumps by more than 10 % a step."""
    horizon, rows = s.number(_HORIZON), s.rows
    if _acts(s) and horizon and rows and _CLIP * rows < horizon < 2 * rows:
        yield LintFinding(
            "horizon-coarse",
            Level.WARNING,
            f"horizon={horizon:g} against {rows} rows per step: the coefficient moves by up to "
            f"±{100 * _CLIP * rows / horizon:.0f} % a step and will swing",
            {_HORIZON: horizon, "rows per step": rows},
            fix={_HORIZON: rows * _CALM},
        )


def horizon_slow(s: Subject) -> Iterator[LintFinding]:
    """`horizon` is so large that the coefficient cannot move within the run."""
    horizon, rows = s.number(_HORIZON), s.rows
    if not _acts(s) or not horizon or not rows or horizon <= _CLIP * rows:
        return
    growth = math.log1p(_CLIP * rows / horizon)
    steps = s.count("trainer.total_training_steps")
    half, ten = math.ceil(math.log(1.5) / growth), math.ceil(math.log(10) / growth)
    if half > (steps or 200):
        yield LintFinding(
            "horizon-slow",
            Level.WARNING,
            f"horizon={horizon:g} against {rows} rows per step: at full speed the coefficient "
            f"needs {half} steps for x1.5 and {ten} for x10"
            + (f"; this run has {steps}" if steps else "; it is fixed in all but name"),
            {_HORIZON: horizon, "rows per step": rows},
            fix={_HORIZON: rows * _CALM},
        )


def penalty_dominates(s: Subject) -> Iterator[LintFinding]:
    """At its target KL the penalty would outweigh a reward of 1."""
    coefficient, target = s.number(f"{KL_CTRL}.kl_coef"), s.number(_TARGET)
    length = s.number("data.max_response_length")
    if s.reward_kl and coefficient and target and length and s.adaptive:
        penalty = coefficient * target * length
        if penalty > 1:
            yield LintFinding(
                "penalty-dominates",
                Level.WARNING,
                f"at target_kl a response of {length:g} tokens pays {penalty:.3g} in penalty: "
                "more than a right answer earns, so that the policy would only learn to stay",
                {f"{KL_CTRL}.kl_coef": coefficient, _TARGET: target},
                fix={f"{KL_CTRL}.kl_coef": 0.001},
            )


def resume_loses_coefficient(s: Subject) -> Iterator[LintFinding]:
    """A resumed run starts at `kl_coef` again: verl does not save the controller."""
    mode = s.value("trainer.resume_mode")
    saves = (s.count("trainer.save_freq") or -1) > 0
    if _acts(s) and (mode == "resume_path" or (mode == "auto" and saves and s.script)):
        yield LintFinding(
            "resume-loses-coefficient",
            Level.WARNING,
            "no verl saves the controller: a resumed run starts at kl_coef="
            f"{s.value(f'{KL_CTRL}.kl_coef')} again, whatever it had become. Pass the last "
            "actor/reward_kl_penalty_coeff on (`kltune train` does)",
            {"trainer.resume_mode": mode, f"{KL_CTRL}.type": "adaptive"},
        )


def _acts(s: Subject) -> bool:
    return s.reward_kl and s.adaptive


CHECKS = (
    target_kl_range,
    target_kl_unit,
    target_kl_default,
    target_outside_band,
    target_estimator,
    k1_controller,
    horizon_sign_flip,
    horizon_coarse,
    horizon_slow,
    penalty_dominates,
    resume_loses_coefficient,
)
