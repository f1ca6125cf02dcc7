"""Checks of the KL settings: what is without effect, and what means something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.lint.subject import ACTOR, KL_CTRL, Subject

_ON = {"algorithm.use_kl_in_reward": True}
_K1 = ("kl", "k1")


def kl_ctrl_inert(s: Subject) -> Iterator[LintFinding]:
    """`algorithm.kl_ctrl.*` or `kl_penalty` is set while the KL penalty in the reward is off."""
    given = {k: v for k, v in s.given(KL_CTRL, "algorithm.kl_penalty").items() if _says_kl(k, v)}
    if not given or s.reward_kl or (s.loss_kl and s.adaptive):
        return
    alone = not s.loss_kl
    yield LintFinding(
        "kl-ctrl-inert",
        Level.ERROR if alone else Level.WARNING,
        f"{', '.join(given)} is without effect while the KL penalty in the reward is off"
        + ("; this run would have no KL at all" if alone else "; the KL loss is what acts here"),
        {**given, "algorithm.use_kl_in_reward": s.value("algorithm.use_kl_in_reward")},
        fix=_ON if alone else {},
        drop=() if alone else tuple(given),
        safe=not alone,
    )


def _says_kl(key: str, value: Any) -> bool:
    return not (key.endswith((".kl_coef", ".type")) and value in (0, 0.0, "0", "0.0", "fixed"))


def kl_loss_adaptive(s: Subject) -> Iterator[LintFinding]:
    """An adaptive controller is asked for, but only the KL loss is on, which has none."""
    if s.loss_kl and s.adaptive and not s.reward_kl:
        yield LintFinding(
            "kl-loss-adaptive",
            Level.ERROR,
            "algorithm.kl_ctrl.type=adaptive moves only the coefficient of the penalty in the "
            "reward, which is off; verl has no controller for kl_loss_coef, it stays "
            f"{s.value(f'{ACTOR}.kl_loss_coef')}",
            {**s.given(KL_CTRL), f"{ACTOR}.use_kl_loss": True},
            fix={**_ON, f"{ACTOR}.use_kl_loss": False},
        )


def kl_loss_coef_inert(s: Subject) -> Iterator[LintFinding]:
    """`kl_loss_coef` or `kl_loss_type` is set while the KL loss is off."""
    given = s.given(f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
    if s.loss_kl or not given or all(value in (0, 0.0) for value in given.values()):
        return
    if not any(key.endswith("coef") for key in given) and s.reward_kl:
        return
    alone = not s.reward_kl
    yield LintFinding(
        "kl-loss-coef-inert",
        Level.ERROR if alone else Level.WARNING,
        f"{', '.join(given)} is without effect while {ACTOR}.use_kl_loss is False"
        + ("; this run would have no KL at all" if alone else ""),
        {**given, f"{ACTOR}.use_kl_loss": s.value(f"{ACTOR}.use_kl_loss")},
        fix={f"{ACTOR}.use_kl_loss": True} if alone else {},
        drop=() if alone else tuple(given),
        safe=not alone,
    )


def kl_both_on(s: Subject) -> Iterator[LintFinding]:
    """KL acts twice, in the reward and in the loss."""
    probe = s.number(f"{KL_CTRL}.kl_coef") == 0 and not s.adaptive
    if s.reward_kl and s.loss_kl and not probe and s.number(f"{ACTOR}.kl_loss_coef") != 0:
        yield LintFinding(
            "kl-both-on",
            Level.WARNING,
            "KL acts twice, in the reward and in the loss: neither coefficient means what it "
            "does alone, and a controller sees the effect of both",
            {
                f"{KL_CTRL}.kl_coef": s.value(f"{KL_CTRL}.kl_coef"),
                f"{ACTOR}.kl_loss_coef": s.value(f"{ACTOR}.kl_loss_coef"),
            },
            fix={f"{ACTOR}.use_kl_loss": False},
        )


def kl_both_off(s: Subject) -> Iterator[LintFinding]:
    """Neither KL is on: no reference model, no reference KL in the log."""
    if s.reward_kl or s.loss_kl:
        return
    meant = s.given("algorithm.use_kl_in_reward") and s.given(f"{ACTOR}.use_kl_loss")
    yield LintFinding(
        "kl-both-off",
        Level.INFO if meant else Level.WARNING,
        "KL is off in the reward and in the loss: no reference model is loaded and no reference "
        "KL is logged. If that is meant, the fix logs it without changing the reward",
        {"algorithm.use_kl_in_reward": False, f"{ACTOR}.use_kl_loss": False},
        fix={**_ON, f"{KL_CTRL}.kl_coef": 0, "algorithm.kl_penalty": "low_var_kl"},
    )


def kl_coefficient_range(s: Subject) -> Iterator[LintFinding]:
    """A coefficient that is negative, or 0 under the adaptive controller, which multiplies it."""
    coefficient = s.number(f"{KL_CTRL}.kl_coef")
    why = ""
    if coefficient is not None and coefficient < 0:
        why = "a negative coefficient rewards drift"
    elif coefficient == 0 and s.adaptive:
        why = "the adaptive controller multiplies it, so 0 stays 0 for ever"
    if s.reward_kl and why:
        yield LintFinding(
            "kl-coefficient-range",
            Level.ERROR,
            f"kl_coef is {coefficient:g}: {why}",
            {f"{KL_CTRL}.kl_coef": coefficient},
            fix={f"{KL_CTRL}.kl_coef": 0.001},
        )
    loss = s.number(f"{ACTOR}.kl_loss_coef")
    if s.loss_kl and loss is not None and loss < 0:
        yield LintFinding(
            "kl-coefficient-range",
            Level.ERROR,
            f"kl_loss_coef is {loss:g}: a negative coefficient rewards drift",
            {f"{ACTOR}.kl_loss_coef": loss},
            fix={f"{ACTOR}.kl_loss_coef": 0.001},
        )


def kl_controller_unknown(s: Subject) -> Iterator[LintFinding]:
    """`kl_ctrl.type` is neither fixed nor adaptive: verl raises after it has started Ray."""
    kind = s.value(f"{KL_CTRL}.type")
    if s.reward_kl and kind not in ("fixed", "adaptive"):
        yield LintFinding(
            "kl-controller-unknown",
            Level.ERROR,
            f"kl_ctrl.type is {kind!r}, verl knows fixed and adaptive; it raises "
            "NotImplementedError without a word, after Ray has started",
            {f"{KL_CTRL}.type": kind},
            fix={f"{KL_CTRL}.type": "adaptive"},
        )


def kl_estimator_unknown(s: Subject) -> Iterator[LintFinding]:
    """An estimator that this verl does not have: it raises after the first rollout."""
    used = {"algorithm.kl_penalty": s.reward_kl, f"{ACTOR}.kl_loss_type": s.loss_kl}
    for key, on in used.items():
        value = s.value(key)
        if on and value not in s.release.estimators:
            yield LintFinding(
                "kl-estimator-unknown",
                Level.ERROR,
                f"{key} is {value!r}; verl {s.release.version} has "
                f"{', '.join(s.release.estimators)}, and raises only after the first rollout",
                {key: value},
                fix={key: "low_var_kl"},
            )


def k1_loss(s: Subject) -> Iterator[LintFinding]:
    """The KL loss uses the k1 estimator, whose expected gradient is zero."""
    kind = s.value(f"{ACTOR}.kl_loss_type")
    if s.loss_kl and kind in _K1:
        yield LintFinding(
            "k1-loss",
            Level.ERROR,
            f"kl_loss_type={kind} (k1) as a loss has an expected gradient of zero: it adds noise "
            "and holds nothing (arXiv:2510.01555)",
            {f"{ACTOR}.kl_loss_type": kind},
            fix={f"{ACTOR}.kl_loss_type": "low_var_kl"},
        )


def kl_loss_unit(s: Subject) -> Iterator[LintFinding]:
    """`loss_agg_mode` changes the unit of the KL loss, hence what `kl_loss_coef` means."""
    mode = s.value(f"{ACTOR}.loss_agg_mode")
    if s.loss_kl and mode not in (None, "token-mean", "seq-mean-token-mean"):
        length = s.count("data.max_response_length")
        yield LintFinding(
            "kl-loss-unit",
            Level.WARNING,
            f"loss_agg_mode={mode} does not average over tokens: actor/kl_loss is no longer "
            "nats per token, and kl_loss_coef is up to "
            f"{length or 'max_response_length'} times as strong as under token-mean",
            {f"{ACTOR}.loss_agg_mode": mode, "data.max_response_length": length},
        )


def bypass_changes_kl(s: Subject) -> Iterator[LintFinding]:
    """With `rollout_correction.bypass_mode` the reward KL is measured on the rollout engine."""
    key = "algorithm.rollout_correction.bypass_mode"
    if s.reward_kl and s.value(key):
        yield LintFinding(
            "bypass-changes-kl",
            Level.WARNING,
            "bypass_mode takes the rollout engine's log probs for the old policy's: the KL in "
            "the reward is then rollout engine against reference, mismatch included",
            {key: True},
        )


def ppo_kl_coef_inert(s: Subject) -> Iterator[LintFinding]:
    """`policy_loss.ppo_kl_coef` is set, which matters only for `loss_mode=kl_cov`."""
    given = s.given(f"{ACTOR}.policy_loss.ppo_kl_coef")
    mode = s.value(f"{ACTOR}.policy_loss.loss_mode")
    if given and mode != "kl_cov":
        yield LintFinding(
            "ppo-kl-coef-inert",
            Level.WARNING,
            f"ppo_kl_coef acts only with loss_mode=kl_cov, here it is {mode}",
            {**given, f"{ACTOR}.policy_loss.loss_mode": mode},
            drop=tuple(given),
            safe=True,
        )


def clip_ratio_inert(s: Subject) -> Iterator[LintFinding]:
    """`clip_ratio` is set, but verl reads `clip_ratio_low` and `_high`, which have defaults."""
    given = s.given(f"{ACTOR}.clip_ratio")
    value = s.number(f"{ACTOR}.clip_ratio")
    sides = {
        f"{ACTOR}.clip_ratio_{side}": s.number(f"{ACTOR}.clip_ratio_{side}")
        for side in ("low", "high")
    }
    wrong = {k: v for k, v in sides.items() if v is not None and v != value}
    if given and value is not None and wrong and not s.given(*sides):
        yield LintFinding(
            "clip-ratio-inert",
            Level.ERROR,
            f"clip_ratio={value:g} is not what clips: verl reads clip_ratio_low and "
            f"clip_ratio_high, which stay {next(iter(wrong.values())):g}",
            {**given, **wrong},
            fix=dict.fromkeys(wrong, value),
        )


CHECKS = (
    kl_ctrl_inert,
    kl_loss_adaptive,
    kl_loss_coef_inert,
    kl_both_on,
    kl_both_off,
    kl_coefficient_range,
    kl_controller_unknown,
    kl_estimator_unknown,
    k1_loss,
    kl_loss_unit,
    bypass_changes_kl,
    ppo_kl_coef_inert,
    clip_ratio_inert,
)
