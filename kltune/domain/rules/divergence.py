"""The policy runs away: from the reference, or from itself in one update."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning
from kltune.domain.rules.departures import (
    entropy_fallen,
    entropy_risen,
    gradient_risen,
    kl_above_best,
    kl_rising,
    length_fallen,
    length_risen,
    mismatched,
    score_fallen,
    score_rising,
    score_slipped,
)

_OTHERS = (length_fallen, length_risen, entropy_fallen, entropy_risen, gradient_risen)


def _kl_divergence(run: History, limits: Limits) -> Alarm | None:
    if not run.has("reference_kl") or mismatched(run, limits) is not None:
        return None
    risen = kl_rising(run, limits)
    score = score_fallen(run, limits)
    above = kl_above_best(run, limits)
    if score is not None and (kl := risen or above) is not None:
        return critical(kl.number, kl.value, kl.bound, f"{kl.text}; {score.text}")
    far = above is not None and above.value >= limits["kl_excess"] * above.bound
    if above is not None and far and (slipped := score_slipped(run, limits)) is not None:
        text = f"{above.text}; {slipped.text}"
        return critical(above.number, above.value, above.bound, text)
    if risen is None:
        return None
    excess = risen.value / risen.bound
    if excess >= limits["kl_excess"] and not score_rising(run, limits):
        others = [found.text for ask in _OTHERS if (found := ask(run, limits)) is not None]
        if others or excess >= limits["kl_alone"]:
            text = "; ".join((risen.text, *others[:1], "the score does not rise"))
            return critical(risen.number, risen.value, risen.bound, text)
    return warning(risen.number, risen.value, risen.bound, risen.text)


def _update_kl(run: History, limits: Limits) -> Alarm | None:
    recent = [abs(value) for value in run["update_kl"].last(3)]
    limit = limits["update_kl"]
    if not run.has("update_kl") or not recent or min(recent) <= limit:
        return None
    now = recent[-1]
    text = f"one update moves the policy by {now:.3g} nats/token for the third step in a row"
    score = score_fallen(run, limits)
    if score is not None:
        return critical("update_kl", now, limit, f"{text}; {score.text}")
    return warning("update_kl", now, limit, text)


def _negative_kl(run: History, limits: Limits) -> Alarm | None:
    recent = run["reference_kl"].last(5)
    limit = limits["negative_kl"]
    if not run.has("reference_kl") or not recent or max(recent) >= limit:
        return None
    text = (
        f"reference KL is below {limit:g} for the fifth step in a row (now {recent[-1]:.3g}); a "
        "true KL is not: check top_p, top_k, temperature and the tokenizer of the rollout"
    )
    return warning("reference_kl", recent[-1], limit, text)


KL_DIVERGENCE = Rule(
    id="kl-divergence",
    watches="reference KL, with score, length, entropy and gradient norm",
    why="A policy that runs away from its reference and loses its score does not come back.",
    fires=(
        "median of three steps above `kl_growth` times its level 5 to 20 steps before and above "
        "`kl_floor`, or above `kl_far_growth` times its start and above `kl_far`; critical when "
        "the score has fallen too (then `kl_growth` times the KL at the best score is enough), or "
        "has lost `score_slip` of its level, more than `score_slip_noise` times its noise, at "
        "`kl_excess` times as much KL, or "
        "when KL is `kl_excess` times beyond that bound and length, entropy or gradient norm has "
        "left its range while the score does not rise, or `kl_alone` times; quiet while rollout "
        "engine and trained policy differ, which is `rollout-mismatch`"
    ),
    kind=Kind.DIVERGENCE,
    action=Action.RAISE_COEFFICIENT,
    check=_kl_divergence,
)

UPDATE_KL = Rule(
    id="update-kl",
    watches="update KL, with the score",
    why="Clipping keeps it under 0.005 in published good runs; above, updates tear the policy.",
    fires="its size is above `update_kl` for three steps; critical when the score has fallen too",
    kind=Kind.DIVERGENCE,
    action=Action.RAISE_COEFFICIENT,
    check=_update_kl,
)

NEGATIVE_KL = Rule(
    id="negative-kl",
    watches="reference KL",
    why=(
        "The k1 estimate is noisy about 0; one that stays negative means that the sampled policy "
        "is not the one that is trained, and it drives an adaptive coefficient down."
    ),
    fires="below `negative_kl` for five steps in a row",
    kind=Kind.MISMATCH,
    action=Action.INSPECT,
    check=_negative_kl,
)
