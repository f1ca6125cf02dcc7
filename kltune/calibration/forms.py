"""The calibrated training in the forms that people launch verl with, beside ``config.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kltune.calibration.export import evidence, exported_overrides
from kltune.calibration.peak import Choice
from kltune.calibration.record import Calibration
from kltune.errors import SettingsError
from kltune.verl.command import kl_overrides
from kltune.verl.exports import (
    Training,
    bash_script,
    overrides_text,
    ray_job,
    sbatch_script,
)
from kltune.verl.releases import release_of
from kltune.verl.script import read_script, rewrite
from kltune.workspace import write_text

Form = Callable[[Calibration, Choice, Training, Sequence[str]], str]


def _script(
    calibration: Calibration, choice: Choice, training: Training, header: Sequence[str]
) -> str:
    """Return the user's own script with the changed lines marked, or a new one."""
    source = calibration.about.get("script")
    if source is None:
        return bash_script(training, header)
    try:
        text = Path(str(source)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{source}: the script that the settings came from cannot be read ({error}); put it "
            "back, or take --as overrides"
        ) from None
    script = read_script(text, calibration.about.get("answers") or {}, str(source))
    number = int(calibration.about.get("launch", 1)) - 1
    tuned = kl_overrides(choice.settings, release_of(calibration.verl))
    changes = {**calibration.scaled, **tuned}
    return rewrite(script, changes, header, number)


#: Form to the name of its file, and what writes it.
FORMS: Mapping[str, tuple[str, Form]] = {
    "overrides": (
        "overrides.txt",
        lambda _, __, training, header: overrides_text(training, header),
    ),
    "script": ("train.sh", _script),
    "ray-job": ("ray_job.py", lambda _, __, training, header: ray_job(training, header)),
    "slurm": ("train.sbatch", lambda _, __, training, header: sbatch_script(training, header)),
}


def write_form(calibration: Calibration, choice: Choice, form: str, directory: Path) -> Path:
    """Write one form of ``FORMS`` into a directory and return its path.

    Args:
        calibration: what to export.
        choice: the KL settings to train with.
        form: a key of ``FORMS``.
        directory: made where it is missing.

    Raises:
        SettingsError: the user's own script is gone, or cannot be changed in place.
        LaunchError: the file cannot be written.
    """
    name, write = FORMS[form]
    overrides, _ = exported_overrides(calibration, choice)
    training = Training(
        command=calibration.command,
        overrides=overrides,
        env=calibration.environment,
        nodes=calibration.nodes,
        gpus_per_node=calibration.gpus_per_node,
    )
    path = directory / name
    text = write(calibration, choice, training, evidence(calibration, choice))
    write_text(path, text, mode=0o644 if form == "overrides" else 0o755)
    return path


def unknown_forms(wanted: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Return a fault for every form that there is not."""
    return [
        f"--as {form}: must be one of {', '.join(known)}" for form in wanted if form not in known
    ]
