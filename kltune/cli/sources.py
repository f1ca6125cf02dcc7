"""What people point ``kltune init`` and ``kltune lint`` at: scripts, YAML files, overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kltune.errors import SettingsError
from kltune.verl.overrides import parse
from kltune.verl.script import read_script
from kltune.verl.script.settings_text import FromScript, from_script
from kltune.verl.yaml_text import scalar

if TYPE_CHECKING:
    from kltune.settings import Settings

_ANSWER = re.compile(r"[A-Za-z_]\w*=|\d+=")


@dataclass(frozen=True, slots=True)
class Source:
    """Overrides to lint, and where they stand.

    Attributes:
        overrides: value by override key.
        name: what to call it.
        script: True where verl is started without kltune.
        band: wanted reference KL, nats per token, where kltune was given one.
        config_name, recipe, lines: see ``kltune.verl.lint.examine``.
        open: what in a script cannot be told.
        file: the ``kltune.yaml`` that fixes can be written to; None for anything else.
    """

    overrides: Mapping[str, Any]
    name: str
    script: bool = True
    band: tuple[float, float] | None = None
    config_name: str = "ppo_trainer"
    recipe: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    file: Path | None = None


def read_source(
    words: Sequence[str],
    preset: str | None,
    answers: Mapping[str, str],
    extra: Mapping[str, Any],
    launch: int | None,
) -> Source:
    """Return what a command line of ``kltune lint`` points at.

    Args:
        words: a file, overrides, or both.
        preset: name of a preset instead of a file.
        answers: variables of a script.
        extra: overrides of ``--set``.
        launch: which start of verl in a script.

    Raises:
        SettingsError: it cannot be read, or nothing was given.
    """
    files = [word for word in words if "=" not in word.split("/")[-1] and word[:1] not in "~+"]
    given = {**parse([word for word in words if word not in files]), **extra}
    if len(files) > 1:
        raise SettingsError(f"one file at a time, got {', '.join(files)}")
    here = Path("kltune.yaml")
    if files:
        return _file(Path(files[0]), answers, given, launch)
    if given and preset is None:
        return Source(given, "overrides")
    # Pydantic costs more than reading a script.
    from kltune.settings import load

    if preset is not None:
        return _settings(load(preset, overrides=given), f"preset {preset}")
    if here.exists():
        return _settings(load(config=here), str(here), here)
    raise SettingsError("nothing to lint: give a script, a YAML file, overrides or --preset NAME")


def read_launch_script(
    path: Path, answers: Mapping[str, str], overrides: Mapping[str, Any], launch: int | None
) -> FromScript:
    """Return the settings that a launch script gives; nothing is executed.

    Raises:
        SettingsError: it cannot be read, or starts no verl training.
    """
    text = _text(path)
    return from_script(read_script(text, answers, str(path.resolve())), overrides, launch)


def parse_answers(words: Sequence[str] | None) -> dict[str, str]:
    """Return the variables of ``--answer NAME=VALUE``, as text: that is all a shell knows.

    Raises:
        SettingsError: every word that is no ``NAME=VALUE``.
    """
    faults = [
        f"--answer {w}: an answer is NAME=VALUE" for w in words or [] if not _ANSWER.match(w)
    ]
    if faults:
        raise SettingsError(faults)
    return dict(word.split("=", 1) for word in words or [])


def from_preset(name: str, overrides: Mapping[str, Any]) -> str:
    """Return the text of a ``kltune.yaml`` that is laid over a preset.

    Raises:
        SettingsError: there is no such preset.
    """
    from kltune.settings import load

    about = load(name).content.about.get("summary", "")
    lines = [f"# {about}", f"preset: {scalar(name)}"]
    if overrides:
        lines += ["verl:", "  overrides:"]
        lines += [f"    {scalar(key)}: {scalar(value)}" for key, value in overrides.items()]
    return "\n".join(lines) + "\n"


def _file(
    path: Path, answers: Mapping[str, str], given: Mapping[str, Any], launch: int | None
) -> Source:
    if path.suffix not in (".yaml", ".yml"):
        found = read_launch_script(path, answers, given, launch)
        return Source(
            found.overrides,
            str(path),
            config_name=found.config_name,
            recipe=found.recipe,
            lines=found.lines,
            open=found.open,
        )
    from kltune.settings import load

    content = _yaml(path)
    if {"verl", "preset", "cluster"} & set(content):
        return _settings(load(config=path, overrides=given), str(path), path)
    return Source({**_leaves(content), **given}, str(path))


def _settings(settings: Settings, name: str, file: Path | None = None) -> Source:
    content = settings.content
    size = {
        "trainer.nnodes": content.cluster.nodes,
        "trainer.n_gpus_per_node": content.cluster.gpus_per_node,
    }
    band = (content.band.low, content.band.high)
    return Source({**content.verl.overrides, **size}, name, script=False, band=band, file=file)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a configuration file of verl's own structure as overrides."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if not prefix and name in ("defaults", "hydra"):
            continue
        if isinstance(value, Mapping) and value:
            found.update(_leaves(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: must hold settings by name, got {type(content).__name__}")
    return {str(name): value for name, value in content.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from None
