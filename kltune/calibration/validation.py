"""Step 4 of the protocol: base model, reference and calibrated settings on held-out problems.

Reference and calibrated settings are trained again, on seeds that nothing was chosen on, as trials
of a stage of their own; verl validates on the way and writes every answer down. The base model is
what a reference trial validates before its first step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kltune.calibration.crews import each_ended, open_crew
from kltune.calibration.fresh import set_stage_aside
from kltune.calibration.identity import identify
from kltune.calibration.preflight import Setup
from kltune.calibration.record import Calibration, read_calibration
from kltune.calibration.specs import rules_of, trial_spec, verl_value
from kltune.calibration.tasks import Tasks, find_tasks
from kltune.domain.attempts import AttemptEnding, Limits
from kltune.domain.events import Note, Observer
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Outcome
from kltune.domain.profiles import ROBUST
from kltune.domain.trials import Role, Trial
from kltune.errors import MetricsError, NotCalibratedError, SettingsError
from kltune.settings import differences
from kltune.trial import TrialSpec
from kltune.trial.records import AttemptResult, as_json, read, save
from kltune.trial.run import read_steps
from kltune.validation import (
    Comparison,
    Curve,
    Finding,
    Level,
    Observed,
    Results,
    compare,
    curve,
    level,
    tally,
)
from kltune.validation.comparison import LEVEL
from kltune.verl.dumps import dumped_steps, read_dump
from kltune.verl.keys import Key
from kltune.workspace import AttemptDir, TrialDir, Workspace, read_json, write_json

STAGE = "validate"

#: Added to the seed of the search: neither the search nor its confirmation has used these.
FRESH_SEED = 100_000

#: Validations on the way to the end, where the configuration asks for none: they make the curve.
VALIDATIONS = 6

#: Results by step of the validation, and by test set.
_ByStep = dict[int, dict[str, Results]]

BASE, REFERENCE, CALIBRATED = "base", "reference", "calibrated"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One test set.

    Attributes:
        problems: their number.
        levels: pass@1 by arm.
        comparisons: of one arm with another, by ``new over old``.
        curves: training score and pass@1 over sqrt(KL), by arm.
    """

    problems: int
    levels: Mapping[str, Level]
    comparisons: Mapping[str, Comparison]
    curves: Mapping[str, Curve]


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What a validation found.

    Attributes:
        finding: calibrated against reference over all test sets.
        reason: one sentence for each test set.
        settings: KL settings by arm, in words.
        seeds: those that are compared.
        left_out: trials whose end was not validated, with the reason.
        tasks: by test set.
        samples: answers to each problem.
        finished: seconds since 1970.
    """

    finding: Finding
    reason: str
    settings: Mapping[str, str]
    seeds: tuple[int, ...]
    left_out: Mapping[str, str]
    tasks: Mapping[str, TaskReport]
    samples: int
    finished: float


@dataclass(slots=True)
class Validation:
    """One validation in one workspace.

    ``run`` may be called again after a kill at any moment, in a new process, and goes on; more
    seeds are added to those that were run.
    """

    setup: Setup
    workspace: Workspace
    observe: Observer

    def run(self) -> ValidationReport:
        """Train and validate both arms on every seed, and return what that shows.

        Raises:
            NotCalibratedError: the workspace holds no calibrated settings.
            SettingsError: the workspace, or an earlier validation in it, was made otherwise.
            LaunchError: an attempt could not be started, or a test set not be fetched.
            KeyboardInterrupt: passed on after the running attempt was ended.
        """
        with self.workspace.locked():
            calibration = read_calibration(self.workspace)
            identify(self.workspace, self.setup.settings)
            if calibration.settings is None:
                raise NotCalibratedError(f"nothing to validate: {calibration.reason}")
            tasks = self.tasks()
            arms = arms_of(calibration)
            self._same_as_before(tasks, arms, calibration.steps)
            cluster = self.setup.settings.content.cluster
            trials = self.trials(arms)
            ended: dict[str, Outcome] = {}
            answers: dict[str, _ByStep] = {}
            with open_crew(cluster, self.workspace, STAGE, self.observe) as crew:
                ordered = sorted(trials, key=lambda trial: not crew.is_under_way(trial.name))
                specs = (self.spec(trial, tasks, calibration.steps) for trial in ordered)
                for name, outcome in each_ended(crew, specs):
                    ended[name] = outcome
                    # Read at once: answers that fit no problem show after one trial, not after
                    # all.
                    answers[name] = self._results(name, tasks)
            outcomes = {trial: ended[trial.name] for trial in trials}
            found = {trial: answers[trial.name] for trial in trials}
            report = self._report(tasks, arms, outcomes, found)
            save(self.workspace.validation, report)
            self.workspace.decide("validation", finding=report.finding.value, reason=report.reason)
            return report

    def tasks(self) -> Tasks:
        """Return the test sets, fetched where they go by name.

        Raises:
            SettingsError: nothing can be validated with these settings.
            LaunchError: a test set cannot be fetched here.
        """
        if not self.setup.settings.content.cluster.shared:
            raise SettingsError(
                "cluster.shared: false, so the answers that verl writes down would not be "
                "seen; validate where the trials see the workspace"
            )
        return find_tasks(self.setup, self.workspace)

    def trials(self, arms: Mapping[str, KlSettings]) -> list[Trial]:
        """Return what is trained: seed by seed, so that an early end leaves whole pairs."""
        content = self.setup.settings.content
        seeds = [
            content.search.seed + FRESH_SEED + n for n in range(1, content.validation.seeds + 1)
        ]
        return [
            Trial(f"{arm}-{number}", Role.VALIDATION, settings, seed)
            for number, seed in enumerate(seeds, 1)
            for arm, settings in arms.items()
        ]

    def spec(self, trial: Trial, tasks: Tasks, steps: int) -> TrialSpec:
        """Return everything that a trial of this stage is run with."""
        setup, wanted = self.setup, self.setup.settings.content.validation
        sampled = wanted.samples > 1
        overrides: dict[Key, Any] = {Key.VAL_FILES: tasks.paths, Key.VAL_SAMPLES: wanted.samples}
        if sampled:
            # Greedy answers to one problem would all be the same.
            overrides |= {Key.VAL_DO_SAMPLE: True, Key.VAL_TEMPERATURE: wanted.temperature}
        own = verl_value(setup, Key.TEST_FREQ)
        return trial_spec(
            setup,
            trial,
            rules_of(setup, ROBUST.name),
            Limits(restarts=0),
            steps=steps,
            validate_first=_arm(trial) == REFERENCE,
            overrides={
                name: value
                for key, value in overrides.items()
                if (name := setup.release.key(key)) is not None
            },
            test_freq=own if own and own > 0 else max(1, steps // VALIDATIONS),
            keep_answers=True,
        )

    def _directory(self, name: str) -> TrialDir:
        return self.workspace.trial(STAGE, name)

    def _same_as_before(self, tasks: Tasks, arms: Mapping[str, KlSettings], steps: int) -> None:
        wanted = self.setup.settings.content.validation
        made_with = {
            "tasks": tasks.paths,
            "samples": wanted.samples,
            "temperature": wanted.temperature if wanted.samples > 1 else None,
            "steps": steps,
            "settings": {arm: as_json(settings) for arm, settings in arms.items()},
        }
        path = self.workspace.stage(STAGE) / "made-with.json"
        found = read_json(path)
        changed = differences(found, made_with) if found is not None else []
        if changed and {**found, "settings": made_with["settings"]} == made_with:
            self.observe(Note("the baseline has found other settings since; validated anew"))
            set_stage_aside(self.workspace, STAGE)
            found, changed = None, []
        if found is None:
            write_json(path, made_with)
        elif changed:
            raise SettingsError(
                [
                    f"{path.parent}: an earlier validation was made otherwise; kltune validate "
                    "--fresh sets it aside",
                    *changed,
                ]
            )

    def _report(
        self,
        tasks: Tasks,
        arms: Mapping[str, KlSettings],
        outcomes: Mapping[Trial, Outcome],
        found: Mapping[Trial, _ByStep],
    ) -> ValidationReport:
        left_out = {
            trial.name: outcome.reason or "its end was not validated"
            for trial, outcome in outcomes.items()
            if max(found[trial], default=0) == 0
        }
        for name, why in left_out.items():
            self.observe(Note(f"{name} is left out: {why}"))
        lost = {t.seed for t in outcomes if t.name in left_out}
        seeds = sorted({t.seed for t in outcomes} - lost)
        whole = [t for seed in seeds for t in outcomes if t.seed == seed]
        content = self.setup.settings.content.validation
        # What is asked of several test sets may not be found by chance more often than of one.
        alpha = LEVEL / len(tasks.problems)
        steps = {trial: read_steps(self._directory(trial.name)) for trial in whole}
        # Every arm begins at the base model, which the reference has validated for its seed.
        base = {
            t.seed: {s: r for s, r in found[t].items() if s == 0}
            for t in whole
            if _arm(t) == REFERENCE
        }
        reports = {}
        for task, problems in tasks.problems.items():
            runs: dict[str, list[Results]] = {BASE: [], **{arm: [] for arm in arms}}
            for trial in whole:
                by_step = found[trial]
                if _arm(trial) == REFERENCE and 0 in by_step:
                    runs[BASE].append(by_step[0][task])
                runs[_arm(trial)].append(by_step[max(by_step)][task])
            seen = {
                t: Observed(steps[t], {s: r[task] for s, r in (base[t.seed] | found[t]).items()})
                for t in whole
            }
            reports[task] = TaskReport(
                problems=len(problems),
                levels={
                    arm: level(results, content.pass_at)
                    for arm, results in runs.items()
                    if results
                },
                comparisons=_comparisons(runs, alpha),
                curves=_curves(seen, arms, alpha),
            )
        finding, reason = _overall(reports, arms)
        return ValidationReport(
            finding=finding,
            reason=reason,
            settings={arm: settings.describe() for arm, settings in arms.items()},
            seeds=tuple(seeds),
            left_out=left_out,
            tasks=reports,
            samples=content.samples,
            finished=time.time(),
        )

    def _results(self, name: str, tasks: Tasks) -> _ByStep:
        """Return the results of a trial by step and test set."""
        found = {}
        for attempt in self._directory(name).attempts():
            dumps = dumped_steps(attempt.validation)
            for step, path in dumps.items():
                try:
                    found[step] = tally(read_dump(path), tasks.problems)
                except MetricsError:
                    # An attempt that was ended may have been writing its last answers down.
                    if step < max(dumps) or _ran_to_its_end(attempt):
                        raise
        return found


def _ran_to_its_end(attempt: AttemptDir) -> bool:
    result = read(attempt.result, AttemptResult)
    return result is not None and result.attempt.ending is AttemptEnding.COMPLETED


def read_validation(workspace: Workspace) -> ValidationReport | None:
    """Return what the last validation of a workspace found, if there was one."""
    return read(workspace.validation, ValidationReport)


def arms_of(calibration: Calibration) -> dict[str, KlSettings]:
    """Return the settings that are compared; one arm where the user's own were the best."""
    arms = {REFERENCE: calibration.reference}
    calibrated = calibration.settings
    if calibrated is not None and calibrated.key() != calibration.reference.key():
        arms[CALIBRATED] = calibrated
    return arms


def report_record(report: ValidationReport) -> dict[str, Any]:
    """Return a report as what JSON can hold, curves with their sqrt(KL)."""
    record: dict[str, Any] = as_json(report)
    for task, found in report.tasks.items():
        for arm, drawn in found.curves.items():
            record["tasks"][task]["curves"][arm]["points"] = [
                {**asdict(point), "sqrt_kl": point.distance} for point in drawn.points
            ]
    return record


def _arm(trial: Trial) -> str:
    return trial.name.rpartition("-")[0]


def _comparisons(runs: Mapping[str, list[Results]], alpha: float) -> dict[str, Comparison]:
    pairs = ((CALIBRATED, REFERENCE), (CALIBRATED, BASE), (REFERENCE, BASE))
    return {
        f"{new} over {old}": compare(runs[old], runs[new], alpha)
        for new, old in pairs
        if runs.get(old) and len(runs.get(new, ())) == len(runs[old])
    }


def _curves(seen: Mapping[Trial, Observed], arms: Iterable[str], alpha: float) -> dict[str, Curve]:
    drawn = {arm: curve([o for t, o in seen.items() if _arm(t) == arm], alpha) for arm in arms}
    return {arm: found for arm, found in drawn.items() if found is not None}


def _overall(
    reports: Mapping[str, TaskReport], arms: Mapping[str, KlSettings]
) -> tuple[Finding, str]:
    """Return one verdict: a regression anywhere counts, an improvement if nothing regressed."""
    if CALIBRATED not in arms:
        return Finding.NO_DIFFERENCE, "the calibrated settings are the reference's own"
    main = {
        task: report.comparisons.get(f"{CALIBRATED} over {REFERENCE}")
        for task, report in reports.items()
    }
    known = {task: found for task, found in main.items() if found is not None}
    if not known:
        return Finding.NOT_ENOUGH, "no seed was validated to its end with both settings"
    findings = {found.finding for found in known.values()}
    order = (Finding.REGRESSED, Finding.IMPROVED, Finding.NOT_ENOUGH, Finding.NO_DIFFERENCE)
    reason = "; ".join(f"{task}: {found.reason}" for task, found in known.items())
    return next(finding for finding in order if finding in findings), reason
