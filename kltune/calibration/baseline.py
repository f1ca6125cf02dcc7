"""Step 1 of the protocol: reference, search, confirmation on one configuration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from kltune import __version__
from kltune.calibration.crews import StageCrew, open_crew
from kltune.calibration.drift import remember_data
from kltune.calibration.identity import identify, shared_identity
from kltune.calibration.preflight import Setup
from kltune.calibration.recalibration import earlier
from kltune.calibration.record import BASELINE, Calibration
from kltune.calibration.specs import rules_of, trial_spec
from kltune.domain.attempts import Limits
from kltune.domain.confirmation import fresh_seeds
from kltune.domain.events import Note, Observer
from kltune.domain.profiles import ROBUST, SEARCH
from kltune.domain.protocol import (
    Plan,
    RunTrial,
    Verdict,
    launch_is_at_fault,
    next_action,
)
from kltune.domain.protocol import Search as SearchAction
from kltune.domain.trials import Role, Trial
from kltune.errors import LaunchError, SettingsError
from kltune.search import Points, Search, SearchSpace, Seen
from kltune.settings import differences
from kltune.trial import TrialSpec
from kltune.trial.records import as_json, read_trial, save
from kltune.trial.run import last_words
from kltune.verl.command import held_fixed
from kltune.verl.overrides import bare
from kltune.verl.secrets import redact, redact_values
from kltune.workspace import Workspace

STAGE = BASELINE

#: Seconds between two looks at what the others have done who share the study.
LISTEN_S = 5.0


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

    def plan(self, others: Sequence[Trial] = ()) -> Plan:
        """Return what is to be done, budgets included.

        Args:
            others: trials of other workspaces in a shared study, which take none of this one's
                time.
        """
        content = self.setup.settings.content
        search = content.search
        # Trials side by side spend their times together.
        limit = search.timeout_minutes
        elsewhere_s = sum(t.outcome.seconds for t in others if t.outcome is not None)
        return Plan(
            reference=self.setup.reference,
            band=self.setup.settings.band,
            trials=search.trials,
            seed=search.seed,
            confirmation_seeds=fresh_seeds(search.seed, search.confirmations),
            timeout_s=None
            if limit is None
            else limit * 60 * content.cluster.parallel + elsewhere_s,
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
        self.observe(Note(f"training data: {remember_data(self.setup, self.workspace)}"))
        self._set_aside_what_never_trained()
        search = self._open_search(owner)
        cluster = self.setup.settings.content.cluster
        with open_crew(cluster, self.workspace, STAGE, self.observe) as crew:
            for trial in self._history():
                # What has ended is told again: a kill may have come before journal and study
                # were.
                if trial.outcome is not None or crew.is_under_way(trial.name):
                    crew.begin(self.spec(trial))
            try:
                return self._carry_out(search, crew)
            finally:
                with suppress(LaunchError):  # the storage may be what has failed
                    search.leave()

    def _carry_out(self, search: Search, crew: StageCrew) -> Calibration:
        exhausted = False
        while True:
            own = self._history()
            roles = {trial.name: trial.role for trial in own}
            for name, outcome in crew.ended():
                if roles[name] is Role.SEARCH:
                    search.tell(_number(name), outcome)
            others = search.others()
            history = [*(t for t in others if _counts(t)), *own]
            elsewhere = {trial.name for trial in others if trial.outcome is None}
            plan = self.plan(others)
            plan = replace(plan, trials=0) if exhausted else plan
            match next_action(plan, history, {*crew.running, *elsewhere}):
                case Verdict() as verdict:
                    crew.end()
                    return self._conclude(verdict, history, own)
                case RunTrial(trial) if not crew.is_full:
                    crew.begin(self.spec(trial))
                case SearchAction() if not crew.is_full:
                    proposed = self._proposed(search, own, others)
                    exhausted = proposed is None
                    if proposed is not None:
                        crew.begin(self.spec(proposed))
                case _:
                    crew.wait(at_most_s=LISTEN_S if search.shared else None)

    def _proposed(
        self, search: Search, own: Sequence[Trial], others: Sequence[Trial]
    ) -> Trial | None:
        """Return the next point of the search; one that was proposed and never begun first."""
        begun = {trial.name for trial in own}
        waiting = [p for p in search.unfinished() if search.name(p.number) not in begun]
        running = [t.settings for t in (*own, *others) if t.outcome is None]
        proposal = waiting[0] if waiting else search.ask(_seen((*own, *others)), running)
        if proposal is None:
            self.observe(Note("the search space holds nothing that was not tried"))
            return None
        name, settings = search.name(proposal.number), proposal.settings
        self.observe(Note(f"{name}: {settings.describe()} ({proposal.source})"))
        self.workspace.decide_once(
            "proposal", stage=STAGE, trial=name, source=proposal.source,
            settings=as_json(settings),
        )  # fmt: skip
        return Trial(name, Role.SEARCH, settings, self.setup.settings.content.search.seed)

    def _open_search(self, owner: str) -> Search:
        settings = self.setup.settings
        content = settings.content
        space, shared = content.search.space, content.search.study
        search = Search(
            storage=content.search.storage or self.workspace.study_url,
            name=f"kltune-{STAGE}-{shared or owner}",
            owner=owner,
            points=Points(
                SearchSpace(
                    kl_coef=space.kl_coef,
                    target_kl=space.target_kl,
                    horizon=space.horizon,
                    clip_ratio=space.clip_ratio,
                    estimators=tuple(space.kl_penalty) if space.kl_penalty else None,
                ),
                base=self.setup.reference,
                band=settings.band,
                rows=self.setup.rows,
                steps=self.setup.steps,
                kl_off=content.search.kl_off,
                known=[e.settings for e in earlier(self.workspace)[-1:] if e.settings is not None],
            ),
            seed=content.search.seed,
            shared=shared is not None,
        )
        if shared is not None:
            mine = shared_identity(settings)
            if changed := differences(search.made_with(mine), mine):
                raise SettingsError(
                    [
                        f"search.study {shared}: was made with other settings; name another",
                        *changed,
                    ]
                )
        return search

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

    def _conclude(
        self, verdict: Verdict, history: Sequence[Trial], own: Sequence[Trial]
    ) -> Calibration:
        if launch_is_at_fault(history):
            self._fail([t for t in own if t.outcome is not None and t.outcome.never_trained][-1])
        setup, content = self.setup, self.setup.settings.content
        outcomes = [t.outcome for t in own if t.outcome is not None]
        calibration = Calibration(
            stage=STAGE,
            calibrated=verdict.calibrated,
            reason=verdict.reason,
            settings=verdict.winner.settings if verdict.winner else None,
            winner=verdict.winner.name if verdict.winner else None,
            reference=setup.reference,
            best_outside=verdict.best_outside.name if verdict.best_outside else None,
            band=setup.settings.band,
            trials=tuple(t for t in history if t.outcome is not None or t in own),
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
        self.workspace.decide_once(
            "verdict",
            stage=STAGE,
            trial=calibration.winner or "",
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


def _counts(trial: Trial) -> bool:
    """Whether the trial of another workspace says, or will say, something about its settings."""
    return trial.outcome is None or not trial.outcome.never_trained


def _seen(history: Sequence[Trial]) -> list[Seen]:
    return [
        Seen(t.settings, t.outcome)
        for t in history
        if t.outcome is not None and t.role in (Role.REFERENCE, Role.SEARCH)
    ]
