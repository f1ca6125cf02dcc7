"""A trial as a row of a table, the same on the terminal and in a report."""

from __future__ import annotations

from kltune.domain.outcome import Band, Outcome
from kltune.domain.trials import Trial

ROW_NAMES = (
    "trial",
    "kl_coef",
    "target",
    "KL",
    "band",
    "coef",
    "score",
    "valid.",
    "ended",
    "time",
)


def row_of(trial: Trial, outcome: Outcome | None, band: Band) -> tuple[str, ...]:
    """Return a trial as the cells of ``ROW_NAMES``."""
    summary = outcome.summary if outcome is not None else None
    kl = summary.kl if summary else None
    place = ""
    if kl is not None and kl == kl:
        place = "inside" if band.holds(kl) else "above" if kl > band.low else "below"
    target = trial.settings.target_kl
    return (
        trial.name,
        f"{trial.settings.kl_coef:.4g}",
        "fixed" if target is None else f"{target:.3g}",
        short(kl),
        place,
        short(summary.coefficient if summary else None),
        short(summary.score if summary else None),
        short(summary.validation if summary else None),
        outcome.ending.value if outcome is not None else "unfinished",
        clock(outcome.seconds) if outcome is not None else "",
    )


def short(value: float | None) -> str:
    """Return a number with four digits; nothing for None."""
    return "" if value is None else f"{value:.4g}"


def clock(seconds: float) -> str:
    """Return a length of time as minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
