"""The calibrated configuration as files that verl trains with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kltune.calibration.record import Calibration
from kltune.calibration.validation import CALIBRATED, REFERENCE, ValidationReport
from kltune.domain.kl import Placement
from kltune.domain.protocol import Role, Trial
from kltune.drift import Fingerprint
from kltune.errors import NotCalibratedError
from kltune.trial.records import save
from kltune.verl.command import kl_overrides
from kltune.verl.exports import config_yaml
from kltune.verl.overrides import bare, lay_over
from kltune.verl.releases import release_of
from kltune.workspace import write_text

#: Name of the exported configuration, as verl's ``--config-name`` takes it.
NAME = "config"

#: The fingerprint of the training data, beside the configuration.
DATA = "data.json"


def calibrated_overrides(calibration: Calibration) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the user's overrides with the calibrated KL settings, and each one's origin.

    Raises:
        NotCalibratedError: no trial was feasible, so there is nothing to export.
    """
    if calibration.settings is None:
        raise NotCalibratedError(f"nothing to export: {calibration.reason}")
    tuned = kl_overrides(calibration.settings, release_of(calibration.verl))
    reference = kl_overrides(calibration.reference, release_of(calibration.verl))
    overrides = lay_over(calibration.overrides, tuned)
    origins = dict(calibration.origins)
    for key, value in tuned.items():
        same = key in reference and reference[key] == value
        said = origins.get(bare(key), "kltune")
        origins[bare(key)] = said if same else f"trial {calibration.winner}"
    return overrides, origins


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
        validation: what ``kltune validate`` found.

    Raises:
        NotCalibratedError: see ``calibrated_overrides``.
        LaunchError: it cannot be written.
    """
    overrides, origins = calibrated_overrides(calibration)
    path = directory / f"{NAME}.yaml"
    header = [*_header(calibration), *_validated(calibration, validation), *_data(data)]
    write_text(path, config_yaml(overrides, origins, header))
    if data is not None:
        save(directory / DATA, data)
    return path


def train_command(directory: str) -> list[str]:
    """Return the command that trains with the configuration exported to ``directory``."""
    module = "verl.trainer.main_ppo"
    return ["python3", "-m", module, "--config-path", directory, "--config-name", NAME]


def _header(calibration: Calibration) -> list[str]:
    return [
        *evidence(calibration),
        "Train with it:",
        *(f"  export {name}={value}" for name, value in calibration.environment.items()),
        f"  {' '.join(train_command('DIR'))}",
    ]


def evidence(calibration: Calibration) -> list[str]:
    """Return what the calibrated settings rest on, as lines of a comment."""
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(calibration.finished))
    settings = calibration.settings
    assert settings is not None
    where = "reward" if settings.placement is Placement.REWARD else "loss"
    return [
        f"KL settings by kltune {calibration.kltune} for verl {calibration.verl}, {made}",
        f"{'Calibrated' if calibration.calibrated else 'NOT calibrated'}: {calibration.reason}",
        f"Settings: {settings.describe()} (penalty in the {where}), from {calibration.winner}",
        f"Reference: {calibration.reference.describe()}",
        *(_evidence(t) for t in calibration.trials if _is_evidence(t, calibration)),
        "These settings hold for what was held fixed:",
        *(f"  {name}: {value}" for name, value in calibration.held_fixed.items()),
    ]


def _validated(calibration: Calibration, report: ValidationReport | None) -> list[str]:
    settings = calibration.settings
    arms = report.settings if report is not None else {}
    arm = CALIBRATED if CALIBRATED in arms else REFERENCE
    if report is None or settings is None or arms[arm] != settings.describe():
        return []  # none, or one of other settings
    lines = [f"Validated on {len(report.seeds)} fresh seeds: {report.finding.value}"]
    lines.append(f"  {report.reason}")
    if (drawn := report.curves.get(arm)) is not None:
        lines.append(
            f"  pass@1 peaked at a reference KL of {drawn.peak.kl:.4f} nats/token, step "
            f"{drawn.peak.step}; {drawn.reason}"
        )
    return lines


def _data(data: Fingerprint | None) -> list[str]:
    if data is None:
        return []
    return [
        f"Training data: {data.describe()}",
        f"Does it still hold? kltune drift --data NEW.parquet --since DIR/{DATA}",
    ]


def _is_evidence(trial: Trial, calibration: Calibration) -> bool:
    return trial.role is not Role.SEARCH or trial.name == calibration.winner


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
