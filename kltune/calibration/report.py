"""Everything that a report shows of a workspace, finished or not, as values.

It is read without a lock and changes nothing, so whoever works in the workspace is not disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kltune.calibration.drift import remembered
from kltune.calibration.export import exported_overrides
from kltune.calibration.peak import Choice, choose
from kltune.calibration.profiling import StepProfile
from kltune.calibration.recalibration import Earlier, earlier, history
from kltune.calibration.record import BASELINE, Calibration
from kltune.calibration.scaled import STAGE as SCALE
from kltune.calibration.scaled import NodeResult, is_of_others
from kltune.calibration.status import Status, read_status, sentence
from kltune.calibration.validation import ValidationReport, read_validation, report_record
from kltune.domain.curve import CurvePoint
from kltune.domain.findings import Finding
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band
from kltune.domain.trials import Role, Trial
from kltune.search import Seen, curve_points
from kltune.trial.records import (
    AttemptRecord,
    AttemptResult,
    TrialRecord,
    as_json,
    parse,
    read,
    read_trial,
)
from kltune.trial.run import read_steps
from kltune.verl.command import kl_overrides
from kltune.verl.overrides import bare
from kltune.verl.releases import release_of
from kltune.verl.secrets import redact_values
from kltune.workspace import TrialDir, Workspace, read_json


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What is drawn of a step; see ``kltune.domain.steps.Step``."""

    step: int
    reference_kl: float | None
    coefficient: float | None
    score: float | None
    held_out: float | None


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    """What an attempt runs, and how it ended; None while it has not."""

    record: AttemptRecord
    result: AttemptResult | None


@dataclass(frozen=True, slots=True)
class FindingTold:
    """A finding and the number of the attempt that it was made in."""

    attempt: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Run:
    """A trial with its course.

    Attributes:
        stage: that it belongs to.
        trial: with its outcome, if it has ended.
        started: seconds since 1970; 0 for a trial of another machine that shares the study.
        attempts, findings: oldest first.
        steps: each step once; what a later attempt made again replaces the earlier one's.
    """

    stage: str
    trial: Trial
    started: float
    attempts: tuple[AttemptSeen, ...] = ()
    findings: tuple[FindingTold, ...] = ()
    steps: tuple[StepNumbers, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One of verl's KL settings before and after, each with its origin; None: not set."""

    key: str
    before: Any
    before_origin: str
    after: Any
    after_origin: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A line of the journal as a sentence; ``time`` in seconds since 1970."""

    time: float
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a workspace has come to.

    Attributes:
        status: trials, spending and verdict, as ``kltune status`` shows them.
        calibration: the result; None before the baseline's end.
        choice: the settings to train with; None where there are none.
        settings: verl's KL settings, from the user's own to the choice.
        runs: trials of all stages, stage by stage, in the order in which they were started.
        curve: points of reference KL over coefficient that the search went by.
        nodes, profiles: of the scale stage, fewest nodes first; what was scaled from an earlier
            winner of the baseline is not among them.
        validation: of base model, reference and calibrated settings.
        history: calibrations of the workspace, oldest first; empty where this is the first.
        journal: decisions, oldest first.
        overrides, origins: the user's verl overrides, secrets hidden, and where they come from.
        data: fingerprint of the training data in one line; empty where it is not known.
        made_with: kltune's own settings, secrets hidden.
    """

    status: Status
    calibration: Calibration | None
    choice: Choice | None
    settings: tuple[Setting, ...]
    runs: tuple[Run, ...]
    curve: tuple[CurvePoint, ...]
    nodes: tuple[NodeResult, ...]
    profiles: tuple[StepProfile, ...]
    validation: ValidationReport | None
    history: tuple[Earlier, ...]
    journal: tuple[Decision, ...]
    overrides: Mapping[str, Any]
    origins: Mapping[str, str]
    data: str
    made_with: Mapping[str, Any]

    @property
    def band(self) -> Band:
        """Wanted average reference KL, nats per token."""
        return self.status.band

    def of(self, stage: str) -> tuple[Run, ...]:
        """Return the runs of a stage."""
        return tuple(run for run in self.runs if run.stage == stage)


def read_report(workspace: Workspace) -> Report:
    """Return what a report shows of a workspace.

    Raises:
        NotCalibratedError: nothing was ever started in it.
        LaunchError: a file was written by another version of kltune, or by hand.
    """
    status = read_status(workspace)
    calibration = read(workspace.calibration, Calibration)
    validation = read_validation(workspace)
    choice = None
    if calibration is not None and calibration.settings is not None:
        choice = choose(calibration, validation)
    decisions = workspace.decisions()
    runs = _runs(workspace, calibration, decisions)
    made_with = read_json(workspace.identity)["made_with"]
    data = remembered(workspace)

    def current(found: NodeResult | StepProfile) -> bool:
        """Whether it was scaled from the settings that the baseline has now."""
        settings = calibration.settings if calibration is not None else None
        return not is_of_others(workspace, found.nodes, settings)

    return Report(
        status=status,
        calibration=calibration,
        choice=choice,
        settings=_settings(calibration, choice),
        runs=runs,
        curve=_curve([run.trial for run in runs if run.stage == BASELINE], status.band),
        nodes=tuple(found for found in _results(workspace, SCALE, NodeResult) if current(found)),
        profiles=tuple(p for p in _results(workspace, "profile-", StepProfile) if current(p)),
        validation=validation,
        history=tuple(history(workspace)) if earlier(workspace) else (),
        journal=tuple(
            Decision(entry["time"], told)
            for entry in decisions
            if (told := _told(entry, workspace.journal))
        ),
        overrides=redact_values(
            made_with.get("verl.overrides", {}) if calibration is None else calibration.overrides
        ),
        origins={} if calibration is None else calibration.origins,
        data=data.describe() if data is not None else "",
        made_with=redact_values(
            {name: value for name, value in made_with.items() if name != "verl.overrides"}
        ),
    )


def report_json(report: Report) -> dict[str, Any]:
    """Return a report as what JSON can hold, secrets hidden; NaN and infinity are kept."""
    record = as_json(report)
    if report.validation is not None:
        record["validation"] = report_record(report.validation)
    return redact_values(record)


def _runs(
    workspace: Workspace, calibration: Calibration | None, decisions: Sequence[Mapping[str, Any]]
) -> tuple[Run, ...]:
    found = [
        (stage, directory, record)
        for stage in workspace.stages()
        for directory in workspace.trials(stage)
        if (record := read(directory.trial, TrialRecord)) is not None
    ]
    told: dict[int, list[FindingTold]] = {n: [] for n in range(len(found))}
    for entry in decisions:
        if entry["what"] != "finding":
            continue
        # One that was set aside may have had the name before: it had begun, and told, earlier.
        of = (entry.get("stage"), entry["trial"])
        begun = [
            n
            for n, (stage, _, record) in enumerate(found)
            if (stage, record.name) == of and record.started <= entry["time"]
        ]
        for number in begun:
            finding = parse(entry["finding"], Finding, workspace.journal)
            told[number].append(FindingTold(entry["attempt"], finding))
    runs = [
        _run(stage, directory, record, told[n])
        for n, (stage, directory, record) in enumerate(found)
    ]
    here = {run.trial.name for run in runs if run.stage == BASELINE}
    trials = calibration.trials if calibration is not None else ()
    elsewhere = [Run(BASELINE, trial, 0.0) for trial in trials if trial.name not in here]
    return (*elsewhere, *runs)


def _run(stage: str, directory: TrialDir, record: TrialRecord, told: list[FindingTold]) -> Run:
    attempts = []
    findings = list(told)
    for number, place in enumerate(directory.attempts(), 1):
        plan = read(place.plan, AttemptRecord)
        if plan is None:  # set aside a moment ago by whoever works here
            break
        result = read(place.result, AttemptResult)
        attempts.append(AttemptSeen(plan, result))
        # A crash is seen by whoever reads the log at the end; no rule has told of it before.
        if result is not None and result.attempt.finding is not None:
            crash = FindingTold(number, result.attempt.finding)
            findings += [] if crash in findings else [crash]
    return Run(
        stage=stage,
        trial=read_trial(directory),
        started=record.started,
        attempts=tuple(attempts),
        findings=tuple(findings),
        steps=tuple(
            StepNumbers(s.step, s.reference_kl, s.coefficient, s.score, s.held_out)
            for s in read_steps(directory)
        ),
    )


def _results(workspace: Workspace, prefix: str, kind: Any) -> list[Any]:
    found = (
        read(workspace.stage_result(stage), kind)
        for stage in workspace.stages()
        if stage.startswith(prefix)
    )
    return sorted((result for result in found if result is not None), key=lambda r: int(r.nodes))


def _settings(calibration: Calibration | None, choice: Choice | None) -> tuple[Setting, ...]:
    if calibration is None:
        return ()
    release = release_of(calibration.verl)

    def plain(settings: KlSettings | None) -> dict[str, Any]:
        found = {} if settings is None else kl_overrides(settings, release)
        return {bare(key): value for key, value in found.items()}

    before = plain(calibration.reference)
    after = plain(choice.settings if choice else None)
    origins = exported_overrides(calibration, choice)[1] if choice else {}
    return tuple(
        Setting(
            key,
            before.get(key),
            calibration.origins.get(key, "verl's default") if key in before else "",
            after.get(key),
            origins.get(key, "") if key in after else "",
        )
        for key in {**before, **after}
    )


def _curve(trials: Sequence[Trial], band: Band) -> tuple[CurvePoint, ...]:
    seen = [
        Seen(t.settings, t.outcome)
        for t in trials
        if t.outcome is not None and t.role in (Role.REFERENCE, Role.SEARCH)
    ]
    return tuple(sorted(curve_points(seen, band), key=lambda point: point.coefficient))


def _told(entry: Mapping[str, Any], journal: Path) -> str | None:
    """Return an entry as a sentence, with what made the search try a setting."""
    if entry["what"] == "proposal":
        settings = parse(entry["settings"], KlSettings, journal)
        return f"{entry['trial']}: tries {settings.describe()} ({entry['source']})"
    return sentence(entry)
