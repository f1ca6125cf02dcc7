"""verl's own profiler: what turns it on for one step of the processes that train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kltune.errors import SettingsError
from kltune.verl.compose import value_at
from kltune.verl.keys import Key
from kltune.verl.overrides import bare
from kltune.verl.releases import Release, numbers

#: The profilers whose traces show collective operations, by the first release in which turning
#: one on is enough: the torch profiler of 0.6 wants a schedule as well.
TOOLS = {"torch": "0.7", "nsys": "0.6"}


def is_profiler(key: str) -> bool:
    """Tell whether an override is one of the profiler: it changes nothing that is trained."""
    parts = bare(key).split(".")
    return parts[0] == "global_profiler" or "profiler" in parts[1:-1]


def profiler_tool(config: Mapping[str, Any], release: Release) -> str:
    """Return the profiler that a composed configuration names, ``torch`` where it names none.

    Raises:
        SettingsError: that one shows no collective operations, or this verl does not have it.
    """
    tool = value_at(config, release.path(Key.PROFILER_TOOL) or "") or "torch"
    if tool not in TOOLS:
        raise SettingsError(
            f"{Key.PROFILER_TOOL.value}: communication is read from {' or '.join(TOOLS)}, got "
            f"{tool}; leave it out for torch"
        )
    if release.numbers < numbers(TOOLS[tool]):
        raise SettingsError(
            f"{Key.PROFILER_TOOL.value}: {tool} needs verl {TOOLS[tool]} or newer, this is "
            f"{release.version}"
        )
    return str(tool)


def profiler_overrides(
    config: Mapping[str, Any], release: Release, step: int, ranks: Sequence[int]
) -> dict[str, Any]:
    """Return the overrides that have verl profile one step of actor, reference and critic.

    The reference computes in the actor's processes. The rollout engine is left out: it has
    processes of its own, and what they communicate has nothing to do with the micro batch.

    Args:
        config: the user's configuration, composed.
        release: the verl that runs it.
        step: the training step.
        ranks: those to profile, unless the user has named some.

    Raises:
        SettingsError: see ``profiler_tool``.
    """
    wanted: dict[Key, Any] = {
        Key.PROFILER_TOOL: profiler_tool(config, release),
        Key.PROFILER_STEPS: [step],
        # Ray puts Nsight's reports into a directory of its own; no other tool's traces move.
        Key.PROFILER_RELOCATE: True,
        Key.ACTOR_PROFILER: True,
        Key.ROLLOUT_PROFILER: False,
        Key.CRITIC_PROFILER: True,
    }
    for key in (Key.ACTOR_PROFILER_RANKS, Key.CRITIC_PROFILER_RANKS):
        if not value_at(config, release.path(key) or ""):
            wanted[key] = list(ranks)
    return {name: v for key, v in wanted.items() if (name := release.key(key)) is not None}
