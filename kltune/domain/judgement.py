"""Judges a run step by step: rules over its history, findings out."""

from __future__ import annotations

from collections.abc import Sequence

from kltune.domain.findings import Finding, Severity
from kltune.domain.history import History, Setup
from kltune.domain.profiles import Profile
from kltune.domain.rules.stall import STALL, stalled
from kltune.domain.steps import Step

_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class Judge:
    """Judges a live run; the cost of a step does not depend on how long the run is.

    A rule that stays on is reported when it starts, and again when it becomes worse, or after it
    has been quiet for the profile's ``rearm`` steps.

    Args:
        profile: rules and thresholds.
        setup: what is known of the run's configuration.
    """

    def __init__(self, profile: Profile, setup: Setup | None = None):
        self._rules = profile.rules
        self._limits = profile.limits
        self._rearm = profile.rearm
        self._run = History(setup or Setup())
        self._records = 0
        self._reported: dict[str, tuple[int, int]] = {}

    def see(self, step: Step) -> list[Finding]:
        """Return what fires at the next record; one that repeats a step replaces the earlier."""
        self._run.add(step)
        self._records += 1
        found = []
        for rule in self._rules:
            alarm = rule.check(self._run, self._limits)
            if alarm is not None and self._is_news(rule.id, alarm.severity):
                found.append(rule.finding(alarm, self._run))
        return found

    def know(self, setup: Setup) -> None:
        """Take in what the run itself has told of its configuration by now."""
        self._run.setup = setup

    def idle(self, seconds: float) -> list[Finding]:
        """Return what fires when the run has shown no step for so many seconds.

        Args:
            seconds: since the last step, or since the start while there is none.
        """
        finding = stalled(self._run, seconds, self._limits)
        if finding is None or not self._is_news(STALL, finding.severity):
            return []
        return [finding]

    def _is_news(self, rule: str, severity: Severity) -> bool:
        rank = _RANK[severity]
        last, worst = self._reported.get(rule, (-self._rearm - 1, -1))
        quiet = self._records - last > self._rearm
        self._reported[rule] = (self._records, rank if quiet else max(rank, worst))
        return quiet or rank > worst


def judge(steps: Sequence[Step], profile: Profile, setup: Setup | None = None) -> list[Finding]:
    """Return every finding of a whole run, in the order of its records."""
    live = Judge(profile, setup)
    return [finding for step in steps for finding in live.see(step)]
