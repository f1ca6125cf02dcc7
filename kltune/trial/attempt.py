"""Follows one verl process from its start to its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kltune.domain.attempts import Attempt, AttemptEnding, Change
from kltune.domain.crashes import crash_finding
from kltune.domain.findings import Action, Finding, Kind, Severity
from kltune.domain.history import Setup
from kltune.domain.judgement import Judge
from kltune.domain.kl import next_coefficient
from kltune.domain.outcome import NOT_IN_EFFECT
from kltune.domain.steps import Step
from kltune.domain.waiting import never_started
from kltune.launchers.base import JobState, JobStatus, Launcher
from kltune.readers import drain
from kltune.readers.console import ConsoleReader
from kltune.readers.jsonl import JsonlReader
from kltune.trial.records import AttemptRecord, AttemptResult
from kltune.trial.spec import TrialSpec
from kltune.verl.compose import value_at
from kltune.verl.keys import Key
from kltune.verl.printed_config import not_in_effect, printed_config
from kltune.verl.reward_notes import RewardNotes
from kltune.workspace import AttemptDir

#: Bytes at the start of a console log in which verl prints its configuration.
_CONFIG_BYTES = 4 << 20


@dataclass(slots=True)
class AttemptRun:
    """One verl process: what it was started with, and what has been seen of it.

    Attributes:
        steps: its step records by step; a repeated step replaces the earlier one.
        proposals: milder actions that warnings proposed.
        rewards: what its reward sources gave.
        overrides, composed: what it was given, and the configuration that this should make.
    """

    spec: TrialSpec
    record: AttemptRecord
    directory: AttemptDir
    launcher: Launcher
    overrides: Mapping[str, Any]
    composed: Mapping[str, Any]
    on_step: Callable[[Step], None]
    on_finding: Callable[[Finding], None]
    on_note: Callable[[str], None]
    steps: dict[int, Step] = field(default_factory=dict)
    proposals: set[Action] = field(default_factory=set)
    rewards: RewardNotes = field(init=False)

    def __post_init__(self) -> None:
        self.rewards = RewardNotes(self.directory.rewards, self.spec.rows)

    def follow(self) -> Generator[None, None, AttemptResult]:
        """Read and judge until the process ends, a critical finding ends it, or Ctrl-C does.

        Yields after every look at the process, to whoever knows how long to wait for the next.
        """
        console = ConsoleReader(str(self.directory.console))
        metrics = JsonlReader(str(self.directory.metrics))
        adaptive = self.record.change.settings.adaptive
        limit = value_at(self.composed, self.spec.release.path(Key.MAX_RESPONSE_LENGTH) or "")
        judge = Judge(
            self.spec.profile,
            Setup(adaptive=adaptive, kl_in_reward=True, response_limit=limit),
        )
        verified = False
        interrupted = False
        critical: Finding | None = None
        last_news = time.monotonic()
        try:
            while True:
                status = self.launcher.status(self.record.handle)
                self.launcher.collect(self.record.handle, self.directory.console)
                # In this order: what was written before the end must be read after it.
                fresh = self._read(metrics, console)
                for step in fresh:
                    last_news = time.monotonic()
                    self.on_step(step)
                    critical = critical or self._judge(judge, step)
                if fresh and not verified:
                    verified, fault = self._verify()
                    critical = critical or fault
                if status.state is JobState.PENDING:
                    last_news = time.monotonic()
                    critical = critical or self._wait(status)
                critical = critical or self._idle(judge, time.monotonic() - last_news)
                if critical is not None or status.state.is_terminal:
                    break
                yield
        except KeyboardInterrupt:
            interrupted = True
        # A process that ended by itself may have left some of Ray behind.
        self.launcher.cancel(self.record.handle)
        self._read(metrics, console)
        console.close()
        metrics.close()
        if interrupted:
            return self._end(AttemptEnding.INTERRUPTED, None)
        if critical is not None:
            return self._end(AttemptEnding.STOPPED, critical)
        if self.steps and not verified:
            self.on_note("verl printed no configuration: overrides could not be read back")
        if status.state is JobState.SUCCEEDED and (self._last_step or 0) >= self.spec.steps:
            return self._end(AttemptEnding.COMPLETED, None, exit_code=0)
        return self._crashed(status, console)

    def interrupt(self) -> AttemptResult:
        """End the process without waiting for it, wherever it is."""
        self.launcher.cancel(self.record.handle, grace_s=0)
        return self._end(AttemptEnding.INTERRUPTED, None)

    def _read(self, metrics: JsonlReader, console: ConsoleReader) -> list[Step]:
        """Return new step records: from verl's file where it writes one, else from the console."""
        from_console = list(drain(console, writer_ended=False))
        from_file = list(drain(metrics, writer_ended=False))
        fresh = from_file if from_file or self.directory.metrics.exists() else from_console
        fresh = [self.rewards.complete(step) for step in fresh]
        for step in fresh:
            # A run of days must not keep a hundred numbers of each of its steps.
            self.steps[step.step] = replace(step, raw={})
        return fresh

    def _judge(self, judge: Judge, step: Step) -> Finding | None:
        critical = None
        for finding in judge.see(step):
            if self._cooling_down(step) and finding.kind is not Kind.NON_FINITE:
                continue
            self.on_finding(finding)
            if finding.severity is Severity.CRITICAL and critical is None:
                critical = finding
            elif finding.action in (Action.PACK_SEQUENCES, Action.PENALTY_K1):
                self.proposals.add(finding.action)
        return critical

    def _cooling_down(self, step: Step) -> bool:
        if self.record.number == 1 or self.record.change == Change(self.spec.trial.settings):
            return False
        return step.step <= (self.record.change.resume_step or 0) + self.spec.cooldown

    def _verify(self) -> tuple[bool, Finding | None]:
        """Read back the configuration that the run prints, and compare it with ours.

        Returns:
            Whether it was printed yet: Ray brings the lines of other processes later than verl
            writes its metrics. And what is wrong with it.
        """
        with self.directory.console.open("rb") as stream:
            printed = printed_config(stream.read(_CONFIG_BYTES).split(b"\n"))
        if printed is None:
            return False, None
        faults = not_in_effect(self.overrides, self.composed, printed)
        if not faults:
            self.on_note(f"verl's own configuration holds all {len(self.overrides)} overrides")
            return True, None
        finding = Finding(
            rule=NOT_IN_EFFECT,
            severity=Severity.CRITICAL,
            kind=Kind.CONFIGURATION,
            action=Action.STOP,
            step=None,
            metric="configuration",
            value=float(len(faults)),
            threshold=0.0,
            message="verl trains with other settings than it was given: " + "; ".join(faults),
        )
        self.on_finding(finding)
        return True, finding

    def _wait(self, status: JobStatus) -> Finding | None:
        waited_s = time.time() - self.record.planned
        finding = never_started(waited_s, self.spec.pending_s, status.detail)
        if finding is not None:
            self.on_finding(finding)
        return finding

    def _idle(self, judge: Judge, seconds: float) -> Finding | None:
        critical = None
        for finding in judge.idle(seconds):
            self.on_finding(finding)
            if finding.severity is Severity.CRITICAL:
                critical = finding
        return critical

    def _crashed(self, status: JobStatus, console: ConsoleReader) -> AttemptResult:
        evidence, last = console.evidence, self._last_step
        words = evidence.first_traceback or evidence.last_lines
        finding = None
        if status.state is JobState.SUCCEEDED:
            finding = _ended_early(last, self.spec.steps)
        else:
            code = -9 if status.state is JobState.LOST else status.exit_code or 1
            crash = evidence.crash(code)
            if crash is not None and status.detail and not crash.line:
                crash = replace(crash, line=status.detail)
            finding = crash_finding(crash, last) if crash is not None else None
        return self._end(AttemptEnding.CRASHED, finding, status.exit_code, words[-40:])

    def _end(
        self,
        ending: AttemptEnding,
        finding: Finding | None,
        exit_code: int | None = None,
        words: tuple[str, ...] = (),
    ) -> AttemptResult:
        used = [s.coefficient for s in self.steps.values() if s.coefficient is not None]
        checkpoint = self._good_checkpoint(finding)
        attempt = Attempt(
            change=self.record.change,
            ending=ending,
            last_step=self._last_step,
            finding=finding,
            proposals=tuple(sorted(self.proposals, key=lambda action: action.value)),
            coefficient=used[-1] if used else None,
            good_checkpoint=checkpoint,
            resume_coefficient=self._coefficient_after(checkpoint),
        )
        return AttemptResult(attempt, self._seconds(ending), exit_code, words)

    def _seconds(self, ending: AttemptEnding) -> float:
        """Return the wall time from the plan to the end of the process.

        A process may have ended long before anybody looked: then its last sign of life counts.
        """
        end = time.time()
        if ending in (AttemptEnding.COMPLETED, AttemptEnding.CRASHED):
            end = min(end, self.directory.console.stat().st_mtime)
        return max(0.0, end - self.record.planned)

    @property
    def _last_step(self) -> int | None:
        return max((s for s in self.steps if s > 0), default=None)

    def _coefficient_after(self, checkpoint: int | None) -> float | None:
        """Return the coefficient of the step after a checkpoint, logged or computed."""
        if checkpoint is None:
            return None
        following, saved = self.steps.get(checkpoint + 1), self.steps.get(checkpoint)
        if following is not None and following.coefficient is not None:
            return following.coefficient
        settings = self.record.change.settings
        if saved is None or saved.coefficient is None or saved.reference_kl is None:
            return None
        if settings.target_kl is None or settings.horizon is None:
            return saved.coefficient
        return next_coefficient(
            saved.coefficient,
            saved.reference_kl,
            settings.target_kl,
            self.spec.rows,
            settings.horizon,
        )

    def _good_checkpoint(self, finding: Finding | None) -> int | None:
        """Return the step of the last whole checkpoint from before the trouble began.

        A divergence begins where the reference KL first passed the value that the rule compares
        with, which is before the step at which the rule was sure.
        """
        saved = sorted(
            int(p.name.removeprefix("global_step_"))
            for p in self.directory.checkpoints.glob("global_step_*")
            if (p / "actor").is_dir()
        )
        tracker = self.directory.checkpoints / "latest_checkpointed_iteration.txt"
        try:
            whole = int(tracker.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return self.record.change.resume_step
        limit = math.inf
        if finding is not None and finding.kind is not Kind.INFRASTRUCTURE:
            limit = finding.step or 0
            over = [
                s.step
                for s in self.steps.values()
                if finding.threshold is not None
                and s.reference_kl is not None
                and not s.reference_kl <= finding.threshold
            ]
            limit = min([limit, *over])
        # A checkpoint of step N is made after update N, whose KL is logged at step N + 1.
        good = [n for n in saved if n <= whole and n + 1 < limit]
        return good[-1] if good else self.record.change.resume_step


def _ended_early(last_step: int | None, planned: int) -> Finding:
    """Return the finding of a run that ended as if all were well, before its last step."""
    where = "before its first step" if last_step is None else f"after step {last_step}"
    return Finding(
        rule="ended-early",
        severity=Severity.CRITICAL,
        kind=Kind.CRASH,
        action=Action.INSPECT,
        step=last_step,
        metric="log",
        value=None if last_step is None else float(last_step),
        threshold=float(planned),
        message=f"the run ended without an error {where}, of {planned} steps",
    )
