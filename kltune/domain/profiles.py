"""Profiles: which rules judge a run, and every threshold they use, each with its source."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kltune.domain.rules import PROTOCOL_RULES, ROBUST_RULES, SEARCH_RULES, Rule
from kltune.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that a rule compares with.

    Attributes:
        value: in the unit of what it is compared with.
        source: where the number comes from.
    """

    value: float
    source: str


_PROTOCOL = {
    "max_kl": Threshold(0.05, "protocol, step 3; nats per token"),
    "kl_variance": Threshold(0.01, "protocol, step 3; (nats per token)²"),
    "reward_spike": Threshold(0.20, "protocol, step 3; share of the last score"),
}

_STALL = {
    "stall_first_s": Threshold(3600, "engines of large models take half an hour to load"),
    "stall_floor_s": Threshold(900, "NCCL's watchdog itself gives up after 600 to 1800 s"),
    "stall_factor": Threshold(10, "a validation or checkpoint takes a few steps' time"),
}

_ROBUST = {
    "kl_growth": Threshold(
        2.0, "good runs climb by less than 1.6 in 10 steps once above kl_floor"
    ),
    "kl_floor": Threshold(0.15, "nats per token; below it good runs that start at 0 climb fast"),
    "kl_far_growth": Threshold(3.0, "runs against a teacher start at 0.5 to 0.8 and stay there"),
    "kl_far": Threshold(0.6, "nats per token; good runs that start at 0 end at 0.35 or lower"),
    "kl_excess": Threshold(2.0, "factor; without a fallen score the evidence must be stronger"),
    "kl_alone": Threshold(10.0, "factor; at 1.5 nats per token and more the text is another"),
    "update_kl": Threshold(0.1, "nats per token; 20 times the largest value in good runs, 0.006"),
    "negative_kl": Threshold(-0.01, "nats per token; the noise of k1 about 0 is smaller"),
    "score_steps": Threshold(3, "scores of one batch are noisy; three in a row are not chance"),
    "score_loss": Threshold(0.5, "half of the way from the worst score to the best level"),
    "score_slip": Threshold(0.25, "a quarter of the way; tells nothing unless the KL is far off"),
    "score_slip_noise": Threshold(2.0, "times the noise of one step; 3.6 of a median of five"),
    "score_noise": Threshold(4.0, "standard deviations of one step's score"),
    "score_noise_far": Threshold(8.0, "for scores without bounds, where half the way says little"),
    "score_scale": Threshold(0.05, "share of the range of scores; smaller falls do not matter"),
    "held_out_loss": Threshold(0.2, "share; 250 problems are off by 0.06 of their score"),
    "length_fall": Threshold(0.6, "share; good runs on GSM8K end at 0.65 of their first length"),
    "length_rise": Threshold(2.0, "factor; reasoning runs double in about 40 steps"),
    "clip_ratio": Threshold(0.3, "share; a third of the answers cut; good runs reach 0.4 at most"),
    "entropy_fall": Threshold(0.4, "share; good runs end at 0.35 to 0.5 of their first entropy"),
    "entropy_rise": Threshold(2.0, "factor; humps of 2.5 times the start pass, with a good score"),
    "gradient_rise": Threshold(5.0, "three steps in a row; single spikes of 70 times occur"),
    "penalty_share": Threshold(1.0, "the penalty of an answer equals the whole range of scores"),
    "mismatch_kl": Threshold(0.1, "verl's documentation of rollout correction: alert above 0.1"),
    "mismatch_kl_gross": Threshold(1.0, "nats per token; usual is 0.001 to 0.05"),
    "mismatch_prob": Threshold(0.01, "verl's FAQ: under 0.005 is normal, over 0.01 a problem"),
    "mismatch_prob_gross": Threshold(0.3, "mean |difference| of probabilities; usual is 0.005"),
    "dead_steps": Threshold(5, "GRPO has single steps of equal rewards, not five in a row"),
    "dead_clip_ratio": Threshold(0.99, "every answer cut at the limit"),
    "flat_steps": Threshold(10, "scores printed with three decimals may repeat by chance"),
    "dead_flat_steps": Threshold(20, "a batch of 256 finds a 1 % success every time"),
    "dead_kl": Threshold(0.01, "nats per token; a policy that has not moved in 20 steps"),
    "inert_steps": Threshold(10, "an adaptive coefficient moves at every step unless KL = target"),
    "coefficient_growth": Threshold(10.0, "about 115 steps of +2 %, the usual largest change"),
    "coverage_steps": Threshold(2, "a reference KL is logged from the first step on"),
    **_STALL,
}

_BAND = {
    "band_high": Threshold(0.03, "protocol, step 1; upper end of the band, nats per token"),
    "above_band_factor": Threshold(2.0, "a trial at twice the band's end does not return to it"),
    "above_band_steps": Threshold(5, "KL of one batch is noisy"),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of rules with their thresholds.

    Attributes:
        name: ``protocol``, ``robust`` or ``search``.
        rules: in the order in which their findings are reported.
        thresholds: by name.
        rearm: steps that a rule must be quiet before it is reported again; 1 reports every
            separate event, more reports an episode once.
    """

    name: str
    rules: tuple[Rule, ...]
    thresholds: Mapping[str, Threshold]
    rearm: int

    @property
    def limits(self) -> dict[str, float]:
        """Threshold values by name."""
        return {name: threshold.value for name, threshold in self.thresholds.items()}


PROTOCOL = Profile("protocol", PROTOCOL_RULES, {**_PROTOCOL, **_STALL}, rearm=1)
ROBUST = Profile("robust", ROBUST_RULES, _ROBUST, rearm=10)
SEARCH = Profile("search", SEARCH_RULES, {**_BAND, **_ROBUST}, rearm=10)

PROFILES = {p.name: p for p in (PROTOCOL, ROBUST, SEARCH)}


def profile(name: str, overrides: Mapping[str, float] | None = None) -> Profile:
    """Return a profile, with thresholds of one's own laid over it.

    Args:
        name: a key of ``PROFILES``.
        overrides: threshold by name; one that only other profiles use is left out, so that the
            same settings serve all of them.

    Raises:
        SettingsError: unknown profile or threshold, with near misses; a value that is no number.
    """
    if name not in PROFILES:
        raise SettingsError(f"unknown profile {name!r}{_near(name, PROFILES)}")
    chosen = PROFILES[name]
    faults = []
    thresholds = dict(chosen.thresholds)
    known = {key: None for any_profile in PROFILES.values() for key in any_profile.thresholds}
    for key, value in (overrides or {}).items():
        if key not in known:
            faults.append(f"unknown threshold {key!r}{_near(key, known)}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            faults.append(f"threshold {key}: must be a number, got {value!r}")
        elif key in thresholds:
            thresholds[key] = Threshold(float(value), "set by the user")
    if faults:
        raise SettingsError(faults)
    return replace(chosen, thresholds=thresholds)


def _near(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {', '.join(close)}?" if close else f"; one of {', '.join(known)}"
