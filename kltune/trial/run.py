"""Carries a trial out, attempt by attempt, from wherever an earlier kltune left it."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from kltune.domain.attempts import (
    Again,
    AttemptEnding,
    Change,
    Over,
    next_attempt,
)
from kltune.domain.events import (
    AttemptStarted,
    FindingSeen,
    Note,
    Observer,
    StepSeen,
    TrialEnded,
    TrialStarted,
)
from kltune.domain.findings import Finding, Kind, Severity
from kltune.domain.outcome import Ending, Outcome, summarize
from kltune.domain.steps import Step
from kltune.errors import LaunchError
from kltune.launchers.base import JobState, Launcher
from kltune.readers import drain
from kltune.readers.console import ConsoleReader
from kltune.readers.jsonl import JsonlReader
from kltune.trial.attempt import AttemptRun
from kltune.trial.records import AttemptRecord, AttemptResult, TrialRecord, as_json, read, save
from kltune.trial.spec import TrialSpec
from kltune.verl.reward_notes import with_sources
from kltune.workspace import AttemptDir, TrialDir, Workspace

#: A trial that is under way. It yields after every look at its process, and returns what the
#: trial came to; a ``KeyboardInterrupt`` thrown into it ends the process first.
Looks = Generator[None, None, Outcome]


def watch_trial(
    spec: TrialSpec,
    directory: TrialDir,
    workspace: Workspace,
    launcher: Launcher,
    observe: Observer,
) -> Looks:
    """Run a trial to its end, one look at a time.

    May be called again after a kill at any moment: attempts that ended stay as they are, one that
    still runs is followed, one that was planned and never started is started.

    Raises:
        LaunchError: an attempt could not be started.
        SettingsError: verl does not know an override.
        KeyboardInterrupt: passed on after the running attempt was ended.
    """
    return _TrialRun(spec, directory, workspace, launcher, observe).run()


def is_under_way(directory: TrialDir, launcher: Launcher) -> bool:
    """Whether a job of the trial runs or waits, left by a kltune that was killed."""
    attempts = directory.attempts()
    if not attempts or attempts[-1].result.exists():
        return False
    record = read(attempts[-1].plan, AttemptRecord)
    running = (JobState.PENDING, JobState.RUNNING)
    return record is not None and launcher.status(record.handle).state in running


class _TrialRun:
    def __init__(
        self,
        spec: TrialSpec,
        directory: TrialDir,
        workspace: Workspace,
        launcher: Launcher,
        observe: Observer,
    ):
        self.spec = spec
        self.directory = directory
        self.workspace = workspace
        self.launcher = launcher
        self.observe = observe
        self.interrupted = False

    def run(self) -> Looks:
        trial = self.spec.trial
        self._begin()
        done = read(self.directory.outcome, Outcome)
        if done is None:
            self.observe(TrialStarted(trial, self.spec.steps))
        while True:
            results = yield from self._results()
            if done is not None:
                self._decide("trial-ended", outcome=as_json(done))
                return done
            decision = next_attempt(trial.settings, self.spec.limits, [r.attempt for r in results])
            if isinstance(decision, Over):
                return self._end(decision, results)
            number = len(results) + 1
            if results:
                change = as_json(decision.change)
                self._decide(
                    "attempt-again", attempt=number, reason=decision.reason, change=change
                )
            self._start(decision, number)

    def _begin(self) -> None:
        trial = self.spec.trial
        record = read(self.directory.trial, TrialRecord)
        if record is None:
            record = TrialRecord(
                trial.name,
                trial.role,
                trial.settings,
                trial.seed,
                self.spec.steps,
                time.time(),
                self.spec.slot,
            )
            save(self.directory.trial, record)
        elif record.settings.key() != trial.settings.key():
            raise LaunchError(
                f"{self.directory.path}: holds a trial of {record.settings.describe()}, not of "
                f"{trial.settings.describe()}; was this workspace's study removed? Start over "
                "with --fresh"
            )
        elif self.directory.outcome.exists() or is_under_way(self.directory, self.launcher):
            self.spec = replace(self.spec, slot=record.slot)
        else:
            # Its place may be another's by now, or one that there is no more room for.
            save(self.directory.trial, replace(record, slot=self.spec.slot))
        self._decide("trial-started", role=trial.role.value, settings=as_json(trial.settings))

    def _results(self) -> Generator[None, None, list[AttemptResult]]:
        """Return the results of all attempts, after following the one that has none yet."""
        results = []
        for number, directory in enumerate(self.directory.attempts(), 1):
            result = read(directory.result, AttemptResult)
            result = result or (yield from self._follow(directory))
            self._decide(
                "attempt-ended",
                attempt=number,
                ending=result.attempt.ending.value,
                last_step=result.attempt.last_step,
                exit_code=result.exit_code,
                finding=as_json(result.attempt.finding) if result.attempt.finding else None,
            )
            results.append(result)
        if self.interrupted:
            raise KeyboardInterrupt
        return results

    def _start(self, decision: Again, number: int) -> None:
        directory = self.directory.attempt(number)
        overrides = self.spec.overrides(
            directory, decision.change, self._checkpoint(decision.change)
        )
        plan = self.launcher.plan(self.spec.job(directory, overrides))
        # Faults of the configuration show before anything is written.
        self.spec.composed(overrides)
        record = AttemptRecord(
            number,
            plan.handle,
            decision.change,
            self._checkpoint(decision.change),
            decision.reason,
            time.time(),
        )
        save(directory.plan, record)

    def _checkpoint(self, change: Change) -> str | None:
        """Return the newest directory that holds the checkpoint to continue from."""
        if change.resume_step is None:
            return None
        name = f"global_step_{change.resume_step}"
        found = [
            a.checkpoints / name
            for a in self.directory.attempts()
            if (a.checkpoints / name).is_dir()
        ]
        return str(found[-1].resolve()) if found else None

    def _follow(self, directory: AttemptDir) -> Generator[None, None, AttemptResult]:
        record = read(directory.plan, AttemptRecord)
        assert record is not None
        overrides = self.spec.overrides(directory, record.change, record.resume_from)
        trial = self.spec.trial
        run = AttemptRun(
            spec=self.spec,
            record=record,
            directory=directory,
            launcher=self.launcher,
            overrides=overrides,
            composed=self.spec.composed(overrides),
            on_step=lambda step: self.observe(StepSeen(trial, step)),
            on_finding=lambda finding: self._on_finding(record.number, finding),
            on_note=lambda text: self.observe(Note(f"{trial.name}: {text}")),
        )
        try:
            if self.launcher.status(record.handle).state is JobState.UNKNOWN:
                # A kill may have come between the start of the job and its first sign of life.
                self.launcher.cancel(record.handle, grace_s=5)
                job = self.spec.job(directory, overrides)
                self.launcher.submit(self.launcher.plan(job, record.handle))
            started = AttemptStarted(trial, record.number, record.reason, str(directory.console))
            self.observe(started)
            result = yield from run.follow()
        except KeyboardInterrupt:
            # Before the first look, or a second time while the process was asked to end.
            result = run.interrupt()
        save(directory.result, result)
        self.interrupted = result.attempt.ending is AttemptEnding.INTERRUPTED
        return result

    def _on_finding(self, attempt: int, finding: Finding) -> None:
        if finding.severity is not Severity.INFO:
            self._decide("finding", attempt=attempt, finding=as_json(finding))
        self.observe(FindingSeen(self.spec.trial, finding))

    def _end(self, decision: Over, results: list[AttemptResult]) -> Outcome:
        last = results[-1].attempt
        finding = last.finding
        ending = Ending.COMPLETED
        if not decision.completed:
            # One that machines or a wrong command ended says nothing about its settings.
            of_the_training = last.ending is AttemptEnding.STOPPED and (
                finding is None or finding.kind not in (Kind.INFRASTRUCTURE, Kind.CONFIGURATION)
            )
            ending = Ending.STOPPED if of_the_training else Ending.FAILED
        seconds = sum(r.seconds for r in results)
        outcome = Outcome(
            ending=ending,
            reason=decision.reason,
            summary=summarize(self._steps(), self.spec.steps),
            critical=(finding.rule,) if finding is not None and not decision.completed else (),
            seconds=seconds,
            gpu_hours=seconds / 3600 * self.spec.gpus,
            attempts=len(results),
        )
        save(self.directory.outcome, outcome)
        self._decide("trial-ended", outcome=as_json(outcome))
        self.observe(TrialEnded(self.spec.trial, outcome))
        return outcome

    def _steps(self) -> list[Step]:
        return read_steps(self.directory)

    def _decide(self, what: str, **details: object) -> None:
        stage = self.directory.path.parent.name
        self.workspace.decide_once(what, stage=stage, trial=self.spec.trial.name, **details)


def read_steps(directory: TrialDir) -> list[Step]:
    """Return the step records of a trial; a later attempt replaces what it made again.

    An attempt that continued from a checkpoint replaces everything after it.
    """
    steps: dict[int, Step] = {}
    for attempt in directory.attempts():
        record = read(attempt.plan, AttemptRecord)
        resumed = record.change.resume_step if record is not None else None
        steps = {n: s for n, s in steps.items() if resumed is not None and n <= resumed}
        for step in _read_all(attempt):
            steps[step.step] = step
    return [steps[n] for n in sorted(steps)]


def _read_all(attempt: AttemptDir) -> list[Step]:
    readers = ((JsonlReader, attempt.metrics), (ConsoleReader, attempt.console))
    for kind, path in readers:
        if Path(path).exists():
            reader = kind(str(path))
            try:
                found = list(drain(reader))
            finally:
                reader.close()
            if found:
                return with_sources(found, attempt.rewards)
    return []


def last_words(directory: TrialDir) -> tuple[str, ...]:
    """Return what the last attempt of a trial said before it died, for people."""
    for attempt in reversed(directory.attempts()):
        result = read(attempt.result, AttemptResult)
        if result is not None and result.last_words:
            return result.last_words
    return ()
