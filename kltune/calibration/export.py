"""The calibrated configuration as files that verl trains with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kltune.calibration.drift import remembered
from kltune.calibration.peak import Choice, arm_of, choose
from kltune.calibration.record import Calibration, read_calibration
from kltune.calibration.scaled import read_scaled
from kltune.calibration.validation import ValidationReport
from kltune.domain.kl import Placement
from kltune.domain.trials import Role, Trial
from kltune.drift import Fingerprint
from kltune.trial.records import save
from kltune.verl.command import kl_overrides
from kltune.verl.exports import config_yaml
from kltune.verl.overrides import bare, lay_over
from kltune.verl.releases import release_of
from kltune.workspace import Workspace, write_text

#: Name of the exported configuration, as verl's ``--config-name`` takes it.
NAME = "config"

#: The fingerprint of the training data, beside the configuration.
DATA = "data.json"


def exported_overrides(
    calibration: Calibration, choice: Choice
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the user's overrides with the chosen KL settings, and each one's origin."""
    release = release_of(calibration.verl)
    tuned = kl_overrides(choice.settings, release)
    found = kl_overrides(calibration.settings or choice.settings, release)
    reference = kl_overrides(calibration.reference, release)
    origins = dict(calibration.origins)
    for key, value in tuned.items():
        if reference.get(key) == value:
            origins.setdefault(bare(key), "kltune")
        elif found.get(key) == value:
            origins[bare(key)] = f"trial {calibration.winner}"
        else:
            origins[bare(key)] = choice.origin
    return lay_over(calibration.overrides, tuned), origins


def write_config(
    calibration: Calibration,
    directory: Path,
    data: Fingerprint | None = None,
    validation: ValidationReport | None = None,
) -> Path:
    """Write ``directory/config.yaml`` and return its path.

    Args:
        calibration: what to export.
        directory: made where it is missing.
        data: fingerprint of the training data; it goes beside the configuration.
        validation: what ``kltune validate`` found; see ``choose``.

    Raises:
        NotCalibratedError: no trial was feasible, so there is nothing to export.
        LaunchError: it cannot be written.
    """
    choice = choose(calibration, validation)
    overrides, origins = exported_overrides(calibration, choice)
    path = directory / f"{NAME}.yaml"
    header = [*_header(calibration, choice), *_validated(calibration, validation), *_data(data)]
    write_text(path, config_yaml(overrides, origins, header))
    if data is not None:
        save(directory / DATA, data)
    return path


def write_scaled(workspace: Workspace, directory: Path | None = None) -> dict[int, Path]:
    """Write ``nodes-N/config.yaml`` for every number of nodes that settings were found for.

    Args:
        workspace: in which the scale stage was run.
        directory: where to; None takes the workspace's own.

    Raises:
        NotCalibratedError: the workspace holds no calibration.
        LaunchError: one cannot be written.
    """
    found = read_scaled(workspace, read_calibration(workspace))
    below = directory or workspace.calibrated
    return {
        nodes: write_config(scaled, below / f"nodes-{nodes}", remembered(workspace))
        for nodes, scaled in found.items()
    }


def train_command(directory: str) -> list[str]:
    """Return the command that trains with the configuration exported to ``directory``."""
    module = "verl.trainer.main_ppo"
    return ["python3", "-m", module, "--config-path", directory, "--config-name", NAME]


def confirm_command(calibration: Calibration, choice: Choice) -> list[str]:
    """Return the command that trains with settings that were moved, in a workspace of its own."""
    release = release_of(calibration.verl)
    reference = kl_overrides(calibration.reference, release)
    changed = {
        bare(key): value
        for key, value in kl_overrides(choice.settings, release).items()
        if reference.get(key) != value
    }
    words = [word for key, value in changed.items() for word in ("--set", f"{key}={value}")]
    return ["kltune", "run", "--workspace", "AT-PEAK", "--trials", "0", *words]


def _header(calibration: Calibration, choice: Choice) -> list[str]:
    return [
        *evidence(calibration, choice),
        "Train with it:",
        *(f"  export {name}={value}" for name, value in calibration.environment.items()),
        f"  {' '.join(train_command('DIR'))}",
    ]


def evidence(calibration: Calibration, choice: Choice) -> list[str]:
    """Return what the exported settings rest on, as lines of a comment."""
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(calibration.finished))
    settings = choice.settings
    where = "reward" if settings.placement is Placement.REWARD else "loss"
    return [
        f"KL settings by kltune {calibration.kltune} for verl {calibration.verl}, {made}",
        f"{'Calibrated' if calibration.calibrated else 'NOT calibrated'}: {calibration.reason}",
        f"Settings: {settings.describe()} (penalty in the {where}), from {choice.origin}",
        *_moved(calibration, choice),
        f"Reference: {calibration.reference.describe()}",
        *(_evidence(t) for t in calibration.trials if _is_evidence(t, calibration, choice)),
        "These settings hold for what was held fixed:",
        *(f"  {name}: {value}" for name, value in calibration.held_fixed.items()),
    ]


def _moved(calibration: Calibration, choice: Choice) -> list[str]:
    """Return why these are not the winner's settings, and how to confirm them."""
    if not choice.reason:
        return []
    lines = [f"  {choice.reason}"]
    if choice.moved and calibration.settings is not None:
        lines.append(f"  The search's winner was {calibration.settings.describe()}")
        how = (
            "Measured in a trial, not validated" if choice.measured else "NOT confirmed by a trial"
        )
        lines.append(f"  {how}. To confirm, with the same --config or --preset:")
        lines.append(f"    {' '.join(confirm_command(calibration, choice))}")
        lines.append("    kltune validate --workspace AT-PEAK")
    return lines


def _validated(calibration: Calibration, report: ValidationReport | None) -> list[str]:
    arm = arm_of(calibration, report)
    if report is None or arm is None:
        return []
    lines = [f"Validated on {len(report.seeds)} fresh seeds: {report.finding.value}"]
    lines.append(f"  {report.reason}")
    for task, found in report.tasks.items():
        if (drawn := found.curves.get(arm)) is not None:
            lines.append(
                f"  {task}: pass@1 peaked at a reference KL of {drawn.peak.kl:.4f} nats/token, "
                f"step {drawn.peak.step}; {drawn.reason}"
            )
    return lines


def _data(data: Fingerprint | None) -> list[str]:
    if data is None:
        return []
    return [
        f"Training data: {data.describe()}",
        f"Does it still hold? kltune drift --data NEW.parquet --since DIR/{DATA}",
    ]


def _is_evidence(trial: Trial, calibration: Calibration, choice: Choice) -> bool:
    chosen = trial.name == calibration.winner or trial.settings.key() == choice.settings.key()
    return trial.role is not Role.SEARCH or chosen


def _evidence(trial: Trial) -> str:
    outcome = trial.outcome
    assert outcome is not None
    summary = outcome.summary
    kl = "none" if summary.kl is None else f"{summary.kl:.4f}"
    objective = "none" if summary.objective is None else f"{summary.objective:.4f}"
    return (
        f"  {trial.name}, seed {trial.seed}: reference KL {kl} nats/token, "
        f"score {objective}, {outcome.ending.value}"
    )
