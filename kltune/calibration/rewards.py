"""The settings' reward sources as overrides of verl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from kltune.errors import SettingsError
from kltune.settings import Settings
from kltune.verl.keys import Key
from kltune.verl.overrides import bare, lay_over
from kltune.verl.releases import Release


def with_rewards(settings: Settings, release: Release) -> Settings:
    """Return the settings with their reward sources as verl's custom reward function.

    Raises:
        SettingsError: a custom reward function is set already, a file is missing, or this verl
            cannot give one its sources.
    """
    content = settings.content
    if not content.rewards:
        return settings
    if faults := list(_faults(settings, release)):
        raise SettingsError(faults)
    sources = {
        name: {
            key: ":".join(map(str, _place(value))) if key == "function" else value
            for key, value in source.model_dump(exclude_none=True).items()
        }
        for name, source in content.rewards.items()
    }
    wanted = {
        Key.REWARD_PATH: str(files("kltune.verl") / "rewards.py"),
        Key.REWARD_NAME: "compute_score",
        Key.REWARD_SOURCES: json.dumps(sources),
    }
    overrides = {name: v for key, v in wanted.items() if (name := release.key(key)) is not None}
    verl = content.verl.model_copy(
        update={"overrides": lay_over(content.verl.overrides, overrides)}
    )
    origins = {f"verl.overrides[{bare(name)}]": "rewards" for name in overrides}
    return replace(
        settings,
        content=content.model_copy(update={"verl": verl}),
        origins={**settings.origins, **origins},
    )


def _faults(settings: Settings, release: Release) -> Iterator[str]:
    path = release.path(Key.REWARD_PATH)
    if release.key(Key.REWARD_SOURCES) is None:
        yield f"rewards: verl {release.version} passes no arguments to a custom reward function"
    if any(bare(key) == path for key in settings.content.verl.overrides):
        yield (
            f"rewards: {path} ({settings.override_origin(path or '')}) is set as well; make that "
            "function one of the sources ({rule: function, function: path.py:name})"
        )
    for name, source in settings.content.rewards.items():
        if source.function is not None and not _place(source.function)[0].is_file():
            yield f"rewards.{name}.function: there is no file {_place(source.function)[0]}"


def _place(text: str) -> tuple[Path, str]:
    """Return file and name of a function that is given as ``path.py:name``."""
    path, _, name = text.rpartition(":")
    return Path(path).expanduser().resolve(), name
