"""Confirmation: which trial is the best, and whether it holds on seeds it was not chosen on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band, Ending, Outcome
from kltune.domain.trials import Role, Trial

#: Added to the seed of the search, once for every confirmation.
FRESH_SEED = 1000

#: Candidates that are confirmed: one that fails makes room for the next, once.
CANDIDATES = 2


def fresh_seeds(seed: int, confirmations: int) -> tuple[int, ...]:
    """Return the seeds of so many confirmations."""
    return tuple(seed + FRESH_SEED * n for n in range(1, confirmations + 1))


def objective(trial: Trial) -> float:
    """Return what trials are ranked by; minus infinity where there is no number."""
    found = trial.outcome.summary.objective if trial.outcome else None
    return float("-inf") if found is None or found != found else found


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What confirms a winner.

    Attributes:
        band: wanted average reference KL, nats per token.
        seeds: fresh ones.
    """

    band: Band
    seeds: tuple[int, ...]

    def winner(self, history: Sequence[Trial]) -> Trial | None:
        """Return the best feasible trial that no fresh seed has put outside the band.

        A reference of the user's may win as well as a trial of the search.
        """
        feasible = [
            t
            for t in history
            if t.role in (Role.REFERENCE, Role.SEARCH)
            and t.outcome is not None
            and t.outcome.feasible(self.band)
        ]
        ranked = sorted(feasible, key=objective, reverse=True)[:CANDIDATES]
        for candidate in ranked:
            if self.holds(candidate, history) is not False:
                return candidate
        return ranked[0] if ranked else None

    def holds(self, candidate: Trial, history: Sequence[Trial]) -> bool | None:
        """Whether the candidate's fresh runs held the band; None while they are not complete."""
        runs = self._runs(candidate, history)
        if len(runs) < len(self.seeds):
            return None
        kls = [o.summary.kl for o in runs if o.summary.kl is not None]
        healthy = all(o.ending is Ending.COMPLETED and not o.critical for o in runs)
        if not runs:
            return True
        return healthy and len(kls) == len(runs) and self.band.holds(fmean(kls))

    def missing(
        self, points: Mapping[Role, KlSettings], history: Collection[Trial]
    ) -> Trial | None:
        """Return the next trial of a confirmation that was not started; None once all were.

        Args:
            points: settings to confirm, by what they are.
            history: the trials so far.
        """
        begun = {(t.role, t.seed, t.settings.key()) for t in history}
        for seed in self.seeds:
            for role, settings in points.items():
                if (role, seed, settings.key()) not in begun:
                    number = sum(t.role is role for t in history) + 1
                    return Trial(f"{role.value}-{number}", role, settings, seed)
        return None

    def verdict(self, winner: Trial, history: Sequence[Trial]) -> tuple[bool, str]:
        """Return whether the winner is calibrated, and one sentence with the numbers."""
        runs = self._runs(winner, history)
        seen = runs or [o for o in [winner.outcome] if o is not None]
        kls = [o.summary.kl for o in seen if o.summary.kl is not None]
        number = f"average reference KL {fmean(kls):.4f} nats/token" if kls else "no reference KL"
        where = (
            f"on {len(runs)} fresh seed(s)"
            if runs
            else "in the search (no confirmation asked for)"
        )
        holds = bool(self.holds(winner, history))
        sides = "inside" if holds else "not held inside"
        return holds, f"{number} {where}, {sides} the band {self.band}"

    def _runs(self, candidate: Trial, history: Sequence[Trial]) -> list[Outcome]:
        return [
            t.outcome
            for t in history
            if t.role is Role.CONFIRM_WINNER
            and t.outcome is not None
            and t.settings.key() == candidate.settings.key()
        ]
