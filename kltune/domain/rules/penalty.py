"""The KL penalty outweighs the score, so that training serves the penalty."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical, warning
from kltune.domain.rules.departures import score_fallen


def _penalty_dominates(run: History, limits: Limits) -> Alarm | None:
    rewards, scores = run["reward"].last(3), run["score"].last(3)
    if not (run.has("reward") and run.has("score") and rewards and scores):
        return None
    penalty = min(s - r for s, r in zip(scores, rewards, strict=True))
    high, low = run["score_max"].highest, run["score_min"].lowest
    scale = high - low if high is not None and low is not None else max(map(abs, scores))
    share = limits["penalty_share"]
    if scale <= 0 or penalty < share * scale:
        return None
    text = f"the KL penalty takes {penalty:.3g} of a score that spans {scale:.3g}"
    start, now = run["reward"].start, run["reward"].level(3)
    score = score_fallen(run, limits)
    if score is not None and start is not None and now is not None and now > start:
        text += f"; reward rose from {start:.4g} to {now:.4g} while {score.text}"
        return critical("reward", penalty, share * scale, text)
    return warning("reward", penalty, share * scale, text)


PENALTY_DOMINATES = Rule(
    id="penalty-dominates",
    watches="score minus reward, which is the KL penalty of a whole answer",
    why=(
        "When the penalty outweighs the score, the cheapest policy is one that says little; the "
        "reward rises while the score dies."
    ),
    fires=(
        "for three steps the penalty is above `penalty_share` of the score's whole range; "
        "critical when the reward rises while the score has fallen"
    ),
    kind=Kind.COLLAPSE,
    action=Action.STOP,
    check=_penalty_dominates,
)
