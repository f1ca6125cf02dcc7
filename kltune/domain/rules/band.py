"""The band of a search trial: one that has left it for good teaches the search nothing more."""

from __future__ import annotations

from kltune.domain.findings import Action, Kind
from kltune.domain.history import History
from kltune.domain.rules.base import Alarm, Limits, Rule, critical


def _above_band(run: History, limits: Limits) -> Alarm | None:
    recent = run["reference_kl"].last(int(limits["above_band_steps"]))
    bound = limits["above_band_factor"] * limits["band_high"]
    if not run.has("reference_kl") or not recent or min(recent) <= bound:
        return None
    text = (
        f"reference KL is above {bound:g} nats/token for the last {len(recent)} steps (now "
        f"{recent[-1]:.3g}); the band ends at {limits['band_high']:g}"
    )
    return critical("reference_kl", recent[-1], bound, text)


KL_ABOVE_BAND = Rule(
    id="kl-above-band",
    watches="reference KL of a search trial",
    why=(
        "KL climbs almost monotonically, so a trial far above the band does not return to it, and "
        "its remaining GPU hours say nothing new."
    ),
    fires="`above_band_steps` steps in a row above `above_band_factor` times `band_high`",
    kind=Kind.DIVERGENCE,
    action=Action.STOP,
    check=_above_band,
)
