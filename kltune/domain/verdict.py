"""The verdict on a run, and the record of a replay that holds it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum

from kltune.domain.crashes import CRASH, Crash, crash_finding
from kltune.domain.findings import Finding, Kind, Severity
from kltune.domain.history import Setup
from kltune.domain.judgement import Judge
from kltune.domain.profiles import PROTOCOL, ROBUST, Profile
from kltune.domain.steps import Step

#: Numbers that only reinforcement learning logs.
_RL_NUMBERS = {"score", "reward", "reference_kl", "policy_loss", "response_length", "update_kl"}


class Verdict(Enum):
    """What became of a run.

    ``SUSPECT``: a rule warns, or the run logs no reference KL, so that nobody can say that it is
    fine. ``BROKEN`` never worked or cannot go on; ``COLLAPSED`` worked and went wrong;
    ``CRASHED`` stopped before its time without having gone wrong.
    """

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    COLLAPSED = "collapsed"
    BROKEN = "broken"
    CRASHED = "crashed"
    NO_METRICS = "no-metrics"
    NOT_RL = "not-rl"


def verdict(findings: Iterable[Finding], *, steps: int, is_rl: bool, kl_is_known: bool) -> Verdict:
    """Return the verdict that the findings on a run lead to.

    The first critical finding decides: what follows a collapse is its consequence.

    Args:
        findings: of one profile, in the order in which they were made.
        steps: distinct steps that the run logged.
        is_rl: whether it logged anything that only reinforcement learning logs.
        kl_is_known: whether it logged a reference KL that was not always exactly 0.
    """
    found = list(findings)
    first = next((f for f in found if f.severity is Severity.CRITICAL), None)
    if first is not None:
        if first.rule == CRASH or first.kind is Kind.INFRASTRUCTURE:
            return Verdict.CRASHED
        collapsed = first.kind in {Kind.DIVERGENCE, Kind.COLLAPSE}
        return Verdict.COLLAPSED if collapsed else Verdict.BROKEN
    if not steps:
        return Verdict.NO_METRICS
    if not is_rl:
        return Verdict.NOT_RL
    if not kl_is_known or any(f.severity is Severity.WARNING for f in found):
        return Verdict.SUSPECT
    return Verdict.HEALTHY


class Replay:
    """Judges a whole run under several profiles at once, one record at a time.

    Args:
        profiles: each with its own name.
        setup: what is known of the run's configuration.
    """

    def __init__(
        self, profiles: Sequence[Profile] = (PROTOCOL, ROBUST), setup: Setup | None = None
    ):
        self.findings: dict[str, list[Finding]] = {p.name: [] for p in profiles}
        self._judges = {p.name: Judge(p, setup) for p in profiles}
        self._steps: set[int] = set()
        self._kl: dict[int, float] = {}
        self._kl_metric: str | None = None
        self._is_rl = False

    def see(self, step: Step) -> dict[str, list[Finding]]:
        """Return what fires at the next record, by profile."""
        self._steps.add(step.step)
        self._is_rl = self._is_rl or bool(_RL_NUMBERS & step.names.keys())
        if step.reference_kl is not None:
            self._kl[step.step] = step.reference_kl
            self._kl_metric = step.names.get("reference_kl")
        fired = {name: judge.see(step) for name, judge in self._judges.items()}
        for name, found in fired.items():
            self.findings[name].extend(found)
        return fired

    def idle(self, seconds: float) -> dict[str, list[Finding]]:
        """Return what fires when no record has come for so many seconds, by profile."""
        fired = {name: judge.idle(seconds) for name, judge in self._judges.items()}
        for name, found in fired.items():
            self.findings[name].extend(found)
        return fired

    def know(self, setup: Setup) -> None:
        """Take in what the run itself has told of its configuration by now."""
        for judge in self._judges.values():
            judge.know(setup)

    def crashed(self, crash: Crash) -> None:
        """Add the crash that ended the run to the findings of every profile."""
        finding = crash_finding(crash, max(self._steps, default=None))
        for found in self.findings.values():
            found.append(finding)

    def verdict(self, profile: str) -> Verdict:
        """Return the verdict of one profile on what was seen so far."""
        return verdict(
            self.findings[profile],
            steps=len(self._steps),
            is_rl=self._is_rl,
            kl_is_known=any(kl != 0 for kl in self._kl.values()),
        )

    def record(self, source: str, format: str) -> dict[str, object]:  # noqa: A002
        """Return everything as a value that JSON can hold; what is not finite becomes null.

        Args:
            source: what was read.
            format: of the source.
        """
        finite = [kl for kl in self._kl.values() if math.isfinite(kl)]
        last = self._kl[max(self._kl)] if self._kl else None
        return {
            "source": source,
            "format": format,
            "steps": len(self._steps),
            "first_step": min(self._steps, default=None),
            "last_step": max(self._steps, default=None),
            "kl": {
                "metric": self._kl_metric,
                "mean": _json_number(sum(finite) / len(finite)) if finite else None,
                "max": max(finite, default=None),
                "last": _json_number(last),
            },
            "profiles": {
                name: {
                    "verdict": self.verdict(name).value,
                    "findings": [finding_record(finding) for finding in found],
                }
                for name, found in self.findings.items()
            },
        }


def finding_record(finding: Finding) -> dict[str, object]:
    """Return a finding as a value that JSON can hold."""
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "step": finding.step,
        "metric": finding.metric,
        "value": _json_number(finding.value),
        "threshold": _json_number(finding.threshold),
        "action": finding.action.value,
        "message": finding.message,
    }


def _json_number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
