"""What is validated: test sets by name or file, checked before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from kltune.calibration.drift import local_files
from kltune.calibration.preflight import Setup
from kltune.calibration.specs import verl_value
from kltune.errors import SettingsError
from kltune.verl.datasets import Problem, read_problems
from kltune.verl.keys import Key
from kltune.verl.test_sets import TEST_SETS, prepare
from kltune.workspace import Workspace

#: Below so many problems one answer to each says too little ...
_FEW = 100
#: ... and so many are asked for. AIME is reported as an average of 32 (DAPO, arXiv 2503.14476).
_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Tasks:
    """Test sets by name.

    Attributes:
        files: parquet files, in verl's schema.
        problems: what they hold.
    """

    files: Mapping[str, Path]
    problems: Mapping[str, Sequence[Problem]]

    @property
    def paths(self) -> str | list[str]:
        """The files as verl takes them."""
        found = [str(path.resolve()) for path in self.files.values()]
        return found[0] if len(found) == 1 else found


def find_tasks(setup: Setup, workspace: Workspace) -> Tasks:
    """Return the test sets that the settings ask for, fetched where they go by name.

    Raises:
        SettingsError: a file is not usable, or has so few problems that one answer to each would
            say nothing.
        LaunchError: a test set cannot be fetched here.
    """
    wanted = setup.settings.content.validation
    if wanted.tasks:
        files = dict(_file(name, workspace) for name in wanted.tasks)
    else:
        own = local_files(verl_value(setup, Key.VAL_FILES))
        files = {path.stem if len(own) == 1 else str(path): path for path in own}
    prompt_key = str(verl_value(setup, Key.PROMPT_KEY) or "prompt")
    problems = {name: read_problems(path, prompt_key) for name, path in files.items()}
    faults = [
        _too_few(name, len(found), wanted.samples)
        for name, found in problems.items()
        if len(found) < _FEW and wanted.samples < _SAMPLES
    ]
    if faults:
        raise SettingsError(faults)
    return Tasks(files, problems)


def _file(name: str, workspace: Workspace) -> tuple[str, Path]:
    if name not in TEST_SETS:
        path = Path(name).expanduser()
        if path.suffix != ".parquet":
            raise SettingsError(
                f"validate.tasks: {name!r} is neither a parquet file nor one of "
                f"{', '.join(TEST_SETS)}"
            )
        return path.stem, path
    path = workspace.test_set(name)
    if not path.exists():
        prepare(name, path)
    return name, path


def _too_few(name: str, problems: int, samples: int) -> str:
    reach = 196 * 0.5 / sqrt(max(1, problems))
    return (
        f"validate.samples: {name} has {problems} problems, so with {samples} answer(s) to each a "
        f"pass@1 of 50 % is off by up to {reach:.0f} points (95 %), more than any gain that is "
        f"looked for; give samples: 32, at least {_SAMPLES}"
    )
