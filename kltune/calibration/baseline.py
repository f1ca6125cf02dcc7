"""Step 1 of the protocol: reference, search, confirmation on one configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from kltune import __version__
from kltune.calibration.drift import remember_data
from kltune.calibration.identity import identify
from kltune.calibration.preflight import Setup
from kltune.calibration.recalibration import earlier
from kltune.calibration.record import Calibration
from kltune.calibration.specs import rules_of, trial_spec
from kltune.domain.attempts import Limits
from kltune.domain.events import Note, Observer
from kltune.domain.profiles import ROBUST, SEARCH
from kltune.domain.protocol import (
    Plan,
    Role,
    RunTrial,
    Trial,
    Verdict,
    launch_is_at_fault,
    next_action,
)
from kltune.domain.protocol import Search as SearchAction
from kltune.errors import LaunchError
from kltune.launchers import open_launcher
from kltune.search import Proposal, Search, SearchSpace, Seen
from kltune.trial import TrialSpec, run_trial
from kltune.trial.records import as_json, read_trial, save
from kltune.trial.run import last_words
from kltune.verl.command import held_fixed
from kltune.verl.overrides import bare
from kltune.verl.secrets import redact, redact_values
from kltune.workspace import Workspace

STAGE = "baseline"

#: Added to the seed of the search; a setting is confirmed on seeds that it was not chosen on.
FRESH_SEED = 1000


@dataclass(slots=True)
class Baseline:
    """One baseline in one workspace.

    ``run`` may be called again after a kill at any moment, in a new process, and goes on.
    """

    setup: Setup
    workspace: Workspace
    observe: Observer

    def run(self) -> Calibration:
        """Carry the protocol out and return the calibration, which is also written.

        Raises:
            SettingsError: the workspace was made by other settings.
            LaunchError: the trials cannot be started, or end before their first step.
            KeyboardInterrupt: passed on after the running trial was ended.
        """
        with self.workspace.locked():
            owner = identify(self.workspace, self.setup.settings)
            return self._run(owner)

    def plan(self) -> Plan:
        """Return what is to be done, budgets included."""
        search = self.setup.settings.content.search
        fresh = range(1, search.confirmations + 1)
        return Plan(
            reference=self.setup.reference,
            band=self.setup.settings.band,
            trials=search.trials,
            seed=search.seed,
            confirmation_seeds=tuple(search.seed + FRESH_SEED * n for n in fresh),
            timeout_s=None if search.timeout_minutes is None else search.timeout_minutes * 60,
            max_gpu_hours=search.max_gpu_hours,
        )

    def spec(self, trial: Trial) -> TrialSpec:
        """Return everything that a trial of this stage is run with."""
        # In a search trial a critical finding ends the trial: the search itself moves the
        # coefficient. A reference shows what the user's own settings do, so it runs on outside
        # the band; a candidate that is far above it is stopped.
        reference = trial.role in (Role.REFERENCE, Role.CONFIRM_REFERENCE)
        return trial_spec(
            self.setup,
            trial,
            rules_of(self.setup, (ROBUST if reference else SEARCH).name),
            Limits(restarts=0),
            steps=self.setup.steps,
            validate_first=trial.role is Role.REFERENCE,
        )

    def _run(self, owner: str) -> Calibration:
        plan = self.plan()
        self.observe(Note(f"training data: {remember_data(self.setup, self.workspace)}"))
        self._set_aside_what_never_trained()
        search = self._open_search(owner)
        self._settle(search)
        exhausted = False
        while True:
            history = self._history()
            if exhausted:
                plan = replace(plan, trials=0)
            action = next_action(plan, history)
            if isinstance(action, Verdict):
                return self._conclude(action, history)
            if isinstance(action, SearchAction):
                proposal = search.ask(_seen(history))
                if proposal is None:
                    exhausted = True
                    self.observe(Note("the search space holds nothing that was not tried"))
                    continue
                self._try(proposal, search)
            else:
                assert isinstance(action, RunTrial)
                self._carry_out(action.trial, search)

    def _try(self, proposal: Proposal, search: Search) -> None:
        name, settings = search.name(proposal.number), proposal.settings
        self.observe(Note(f"{name}: {settings.describe()} ({proposal.source})"))
        self.workspace.decide_once(
            "proposal", trial=name, source=proposal.source, settings=as_json(settings)
        )
        seed = self.setup.settings.content.search.seed
        self._carry_out(Trial(name, Role.SEARCH, settings, seed), search)

    def _carry_out(self, trial: Trial, search: Search) -> None:
        """Run a trial, or take it up; the search learns what became of its points."""
        launcher = open_launcher(self.setup.settings.content.cluster)
        directory = self.workspace.trial(STAGE, trial.name)
        outcome = run_trial(self.spec(trial), directory, self.workspace, launcher, self.observe)
        if trial.role is Role.SEARCH:
            search.tell(_number(trial.name), outcome)

    def _open_search(self, owner: str) -> Search:
        content = self.setup.settings.content
        space = content.search.space
        return Search(
            storage=content.search.storage or self.workspace.study_url,
            name=f"kltune-{STAGE}-{owner}",
            owner=owner,
            space=SearchSpace(
                kl_coef=space.kl_coef,
                target_kl=space.target_kl,
                horizon=space.horizon,
                clip_ratio=space.clip_ratio,
                estimators=tuple(space.kl_penalty) if space.kl_penalty else None,
            ),
            base=self.setup.reference,
            band=self.setup.settings.band,
            rows=self.setup.rows,
            steps=self.setup.steps,
            seed=content.search.seed,
            kl_off=content.search.kl_off,
            known=[e.settings for e in earlier(self.workspace)[-1:] if e.settings is not None],
        )

    def _settle(self, search: Search) -> None:
        """Bring journal, study and directories to the same state after a kill between them.

        What had ended is told to journal and study; a point that was proposed and never begun is
        begun.
        """
        for trial in self._history():
            if trial.outcome is not None:
                self._carry_out(trial, search)
        begun = {trial.name for trial in self._history()}
        for proposal in search.unfinished():
            if search.name(proposal.number) not in begun:
                self._try(proposal, search)

    def _set_aside_what_never_trained(self) -> None:
        """Take away what ended before its first step, so that its place is free again.

        Whatever kept it from starting (a missing package, a full disk) may be mended by now.
        """
        for directory in self.workspace.trials(STAGE):
            outcome = read_trial(directory).outcome
            if outcome is not None and outcome.never_trained:
                self.workspace.set_aside(directory)

    def _history(self) -> list[Trial]:
        return [read_trial(directory) for directory in self.workspace.trials(STAGE)]

    def _conclude(self, verdict: Verdict, history: list[Trial]) -> Calibration:
        if launch_is_at_fault(history):
            self._fail(history[-1])
        setup, content = self.setup, self.setup.settings.content
        outcomes = [t.outcome for t in history if t.outcome is not None]
        calibration = Calibration(
            stage=STAGE,
            calibrated=verdict.calibrated,
            reason=verdict.reason,
            settings=verdict.winner.settings if verdict.winner else None,
            winner=verdict.winner.name if verdict.winner else None,
            reference=setup.reference,
            best_outside=verdict.best_outside.name if verdict.best_outside else None,
            band=setup.settings.band,
            trials=tuple(history),
            steps=setup.steps,
            held_fixed=held_fixed(setup.config, setup.release),
            overrides=redact_values(setup.overrides),
            environment=redact_values(content.verl.env),
            command=tuple(redact(word) for word in content.verl.command),
            nodes=content.cluster.nodes,
            gpus_per_node=content.cluster.gpus_per_node,
            about=redact_values(content.about),
            origins={bare(key): setup.settings.override_origin(key) for key in setup.overrides},
            seconds=sum(o.seconds for o in outcomes),
            gpu_hours=sum(o.gpu_hours for o in outcomes),
            verl=setup.verl.version,
            kltune=__version__,
            finished=time.time(),
        )
        save(self.workspace.calibration, calibration)
        self.workspace.decide(
            "verdict",
            calibrated=verdict.calibrated,
            reason=verdict.reason,
            winner=calibration.winner,
            best_outside=calibration.best_outside,
        )
        return calibration

    def _fail(self, trial: Trial) -> None:
        """End with what a trial that never trained said before it died."""
        directory = self.workspace.trial(STAGE, trial.name)
        words = last_words(directory)
        reason = trial.outcome.reason if trial.outcome else ""
        log = directory.attempts()[-1].console if directory.attempts() else directory.path
        raise LaunchError(
            "\n".join(
                [
                    f"{trial.name}: verl could not be started as it should: {reason}",
                    *(f"    {line}" for line in words),
                    f"whole log: {log}",
                    "when the cause is gone, run the same command again",
                ]
            )
        )


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _seen(history: list[Trial]) -> list[Seen]:
    return [
        Seen(t.settings, t.outcome)
        for t in history
        if t.outcome is not None and t.role in (Role.REFERENCE, Role.SEARCH)
    ]
