"""The user's real training with the calibrated settings, under watch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kltune.calibration.identity import identify
from kltune.calibration.peak import choose
from kltune.calibration.preflight import Setup, steps_of_epochs
from kltune.calibration.record import Calibration, read_calibration
from kltune.calibration.specs import rules_of, trial_spec, verl_value
from kltune.calibration.validation import read_validation
from kltune.domain.attempts import Limits
from kltune.domain.events import Note, Observer
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Outcome
from kltune.domain.profiles import ROBUST, Profile
from kltune.domain.trials import Role, Trial
from kltune.errors import SettingsError
from kltune.launchers import open_launcher
from kltune.trial import TrialSpec, run_trial
from kltune.trial.records import TrialRecord, read
from kltune.verl.keys import Key
from kltune.workspace import Workspace

STAGE = "train"

#: Checkpoints of a training whose configuration asks for none: without one there is no rollback.
CHECKPOINTS = 20


@dataclass(frozen=True, slots=True)
class Training:
    """One training in one workspace.

    ``run`` may be called again after a kill at any moment, in a new process, and goes on.

    Attributes:
        steps: training steps; None takes what verl's own configuration says.
    """

    setup: Setup
    workspace: Workspace
    observe: Observer
    steps: int | None = None

    def run(self) -> Outcome:
        """Train to the end, restarting and rolling back by the protocol, and return the outcome.

        Raises:
            NotCalibratedError: the workspace holds no calibrated settings.
            SettingsError: the workspace was made by other settings.
            LaunchError: an attempt could not be started.
            KeyboardInterrupt: passed on after the running attempt was ended.
        """
        with self.workspace.locked():
            calibration = read_calibration(self.workspace)
            identify(self.workspace, self.setup.settings)
            directory = self.workspace.trial(STAGE, "training")
            begun = read(directory.trial, TrialRecord)
            # Whatever a validation has shown since, a training keeps what it was begun with.
            settings = begun.settings if begun is not None else self._settings(calibration)
            seed = self.setup.settings.content.search.seed
            trial = Trial("training", Role.TRAINING, settings, seed)
            launcher = open_launcher(self.setup.settings.content.cluster)
            return run_trial(self.spec(trial), directory, self.workspace, launcher, self.observe)

    def spec(self, trial: Trial) -> TrialSpec:
        """Return everything that the training is run with.

        Raises:
            SettingsError: the length of the training is not known.
        """
        setup, watch = self.setup, self.setup.settings.content.watch
        steps = self.steps or self._own_steps()
        save_freq = verl_value(setup, Key.SAVE_FREQ)
        on_cpu = verl_value(setup, Key.DEVICE) == "cpu"
        return trial_spec(
            setup,
            trial,
            self._rules(),
            Limits(watch.restarts, kl_coef_max=watch.kl_coef_max, may_pack=not on_cpu),
            steps=steps,
            validate_first=bool(verl_value(setup, Key.VAL_BEFORE_TRAIN)),
            save_freq=save_freq if save_freq > 0 else max(1, steps // CHECKPOINTS),
            cooldown=watch.cooldown,
        )

    def _settings(self, calibration: Calibration) -> KlSettings:
        """Return what an export would hold, too."""
        choice = choose(calibration, read_validation(self.workspace))
        if choice.reason:
            self.observe(Note(choice.reason))
        return choice.settings

    def _own_steps(self) -> int:
        own = verl_value(self.setup, Key.TOTAL_STEPS)
        if own:
            return int(own)
        epochs = float(verl_value(self.setup, Key.TOTAL_EPOCHS))
        steps, fault = steps_of_epochs(epochs, self.setup.config, self.setup.release)
        if fault:
            raise SettingsError(f"trainer.total_epochs: {fault}; give --steps instead")
        return steps

    def _rules(self) -> Profile:
        """Return the profile of the settings; what it does not see, the robust rules do.

        The protocol's table knows no NaN, no collapse and no mismatch.
        """
        chosen = rules_of(self.setup, self.setup.settings.content.watch.profile)
        robust = rules_of(self.setup, ROBUST.name)
        others = tuple(rule for rule in robust.rules if rule not in chosen.rules)
        return replace(
            chosen,
            rules=(*chosen.rules, *others),
            thresholds={**robust.thresholds, **chosen.thresholds},
        )
