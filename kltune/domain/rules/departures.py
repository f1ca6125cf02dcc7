"""Has a number left the range that the run itself set? The questions that several rules share.

A single series misleads: answers shrink, entropy falls and the reference KL climbs in good runs
too. What no good run shows is one of them together with a score that falls for good. So each
question here is about one number, compared with what it was when the score was at its best, and
the rules join two answers before they call it critical.
"""

from __future__ import annotations

from dataclasses import dataclass

from kltune.domain.history import History
from kltune.domain.rules.base import Limits


@dataclass(frozen=True, slots=True)
class Departure:
    """A number outside the run's own range.

    Attributes:
        number: its name in the step record.
        value: level now.
        bound: what it was compared with.
        text: a clause with the numbers, e.g. ``length fell from 1759 to 623 tokens``.
    """

    number: str
    value: float
    bound: float
    text: str


def score_fallen(run: History, limits: Limits) -> Departure | None:
    """Whether the score has lost its level, beyond its noise, for several steps.

    Measured on the way from the lowest possible score to the best level that the run has held,
    since scores live in [0, 1], in [-1, 1], or without bounds.
    """
    course = run["score"]
    recent = course.last(int(limits["score_steps"]))
    best = _best_score(run)
    if not recent or best is None:
        return None
    now = max(recent)
    floor = _score_floor(run)
    scale = _score_scale(run, best, floor)
    noise = course.noise or 0.0
    half = max(
        limits["score_loss"] * (best - floor),
        limits["score_noise"] * noise,
        limits["score_scale"] * scale,
    )
    # Without bounds the floor is an outlier's score; a drop far beyond the noise tells as much.
    plain = max(limits["score_noise_far"] * noise, limits["score_scale"] * scale)
    drop = best - now
    bound = best - (min(half, plain) if noise else half)
    if drop <= 0 or now > bound:
        return None
    return Departure("score", now, bound, f"score fell from {best:.4g} to {now:.4g} and stays")


def score_slipped(run: History, limits: Limits) -> Departure | None:
    """Whether the score has lost a part of its level that is more than chance.

    Less than ``score_fallen`` asks for, and so never evidence by itself.
    """
    course = run["score"]
    now, best, noise = course.level(5), _best_score(run), course.noise
    if now is None or best is None or noise is None:
        return None
    part = limits["score_slip"] * (best - _score_floor(run))
    bound = best - max(part, limits["score_slip_noise"] * noise)
    if now >= best or now > bound:
        return None
    return Departure("score", now, bound, f"score slipped from {best:.4g} to {now:.4g}")


def score_rising(run: History, limits: Limits) -> bool:
    """Whether the score is beyond its noise above the run's start: what good runs do."""
    course = run["score"]
    start, now, noise = course.start, course.level(3), course.noise
    if start is None or now is None or noise is None:
        return False
    return now - start > limits["score_noise"] * noise and score_fallen(run, limits) is None


def kl_rising(run: History, limits: Limits) -> Departure | None:
    """Whether the reference KL runs away: fast, a multiple of what it was some steps ago, or far.

    A KL that starts at 0 climbs by design; ``kl_floor`` and ``kl_far`` are for those.
    """
    course = run["reference_kl"]
    now, start, earlier = course.level(3), course.start, course.earlier(5, 20)
    if now is None or start is None:
        return None
    before = max(start, earlier) if earlier is not None else start
    fast = max(limits["kl_growth"] * before, limits["kl_floor"])
    far = max(limits["kl_far_growth"] * start, limits["kl_far"])
    if now <= min(fast, far):
        return None
    text = f"reference KL rose from {before:.3g} to {now:.3g} nats/token"
    return Departure("reference_kl", now, min(fast, far), text)


def kl_above_best(run: History, limits: Limits) -> Departure | None:
    """Whether the reference KL is a multiple of what it was when the score was best."""
    base, now = run.base("reference_kl"), run["reference_kl"].level(3)
    if base is None or now is None:
        return None
    bound = max(limits["kl_growth"] * base, limits["kl_floor"])
    if now <= bound:
        return None
    text = f"reference KL rose from {base:.3g} at the best score to {now:.3g} nats/token"
    return Departure("reference_kl", now, bound, text)


def length_fallen(run: History, limits: Limits) -> Departure | None:
    """Whether answers have become much shorter than they were when the score was best."""
    return _fallen(run, "response_length", limits["length_fall"], "length", "tokens")


def length_risen(run: History, limits: Limits) -> Departure | None:
    """Whether answers have become much longer, or a large part of them now hits the limit."""
    base, now = run.base("clip_ratio"), run["clip_ratio"].level(3)
    if base is not None and now is not None:
        bound = max(limits["clip_ratio"], 2 * base)
        if now >= bound:
            text = f"{now:.0%} of the answers are cut at the length limit, {base:.0%} before"
            return Departure("clip_ratio", now, bound, text)
    return _risen(run, "response_length", limits["length_rise"], "length", "tokens")


def entropy_fallen(run: History, limits: Limits) -> Departure | None:
    """Whether the entropy is a small part of what it was when the score was best."""
    return _fallen(run, "entropy", limits["entropy_fall"], "entropy", "nats/token")


def entropy_risen(run: History, limits: Limits) -> Departure | None:
    """Whether the entropy is a multiple of what it was when the score was best."""
    return _risen(run, "entropy", limits["entropy_rise"], "entropy", "nats/token")


def gradient_risen(run: History, limits: Limits) -> Departure | None:
    """Whether the gradient norm stays at a multiple of its level; single spikes do not count."""
    course = run["grad_norm"]
    recent, earlier = course.last(3), course.earlier(5, 20)
    before = earlier if earlier is not None else course.start
    if not recent or not before or before <= 0:
        return None
    bound, now = limits["gradient_rise"] * before, min(recent)
    if now < bound:
        return None
    text = f"gradient norm rose from {before:.3g} to {now:.3g} and stays"
    return Departure("grad_norm", now, bound, text)


def mismatched(run: History, limits: Limits) -> Departure | None:
    """Whether the rollout engine has sampled from another policy than the trained one."""
    for number, unit in (("mismatch_kl", "nats/token"), ("mismatch_prob", "mean difference")):
        recent = [abs(value) for value in run[number].last(3)]
        if run.has(number) and recent and min(recent) >= limits[number]:
            text = f"rollout engine and trained policy differ by {recent[-1]:.3g} ({unit})"
            return Departure(number, recent[-1], limits[number], text)
    return None


def _fallen(run: History, number: str, share: float, noun: str, unit: str) -> Departure | None:
    base, now = run.base(number), run[number].level(3)
    if base is None or now is None or base <= 0 or now > share * base:
        return None
    return Departure(number, now, share * base, f"{noun} fell from {base:.4g} to {now:.4g} {unit}")


def _risen(run: History, number: str, factor: float, noun: str, unit: str) -> Departure | None:
    base, now = run.base(number), run[number].level(3)
    if base is None or now is None or base <= 0 or now < factor * base:
        return None
    return Departure(
        number, now, factor * base, f"{noun} rose from {base:.4g} to {now:.4g} {unit}"
    )


def _best_score(run: History) -> float | None:
    course = run["score"]
    if course.start is None:
        return None
    return max(course.start, course.peak) if course.peak is not None else course.start


def _score_floor(run: History) -> float:
    """The lowest score that an answer can get, as far as the run has shown.

    A run that logs means only is taken for one that scores from 0, or from -1 up.
    """
    if (shown := run["score_min"].lowest) is not None:
        return shown
    mean = run["score"].lowest or 0.0
    return min(mean, 0.0 if mean >= 0 else -1.0)


def _score_scale(run: History, best: float, floor: float) -> float:
    highest = run["score_max"].highest
    return (best if highest is None else highest) - floor
