"""The ``kltune.yaml`` of a user's own launch script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kltune.errors import SettingsError
from kltune.verl.command import CONTROLLED
from kltune.verl.compose import value_at
from kltune.verl.keys import BEFORE, Key
from kltune.verl.overrides import bare, lay_over
from kltune.verl.script.launch import Launch, LaunchScript
from kltune.verl.script.text import plain, shown, unknowns
from kltune.verl.secrets import is_secret_name, without_secrets
from kltune.verl.yaml_text import scalar

#: Wrappers that set up the interpreter's environment, and so belong to the command.
_KEPT = {"uv", "conda", "mamba", "micromamba", "poetry", "pixi", "pdm", "rye", "numactl", "nice"}
#: Wrappers that say nothing about the training.
_DROPPED = {"nohup", "time", "exec", "stdbuf", "env", "bash", "sh", "eval"}


@dataclass(frozen=True, slots=True)
class FromScript:
    """Settings that a launch script gives.

    Attributes:
        command: interpreter, module and Hydra's options.
        overrides: the known ones, with the user's answers laid over them.
        env: variables that the script sets, without secrets.
        nodes, gpus_per_node: size of the job.
        launcher: how the script starts verl: local, ray or slurm.
        lines: line of the script by override key.
        open: what has to be answered before the settings are complete, as sentences.
        notes: what was left out, and why.
    """

    command: tuple[str, ...]
    overrides: Mapping[str, Any]
    env: Mapping[str, str]
    nodes: int
    gpus_per_node: int
    launcher: str
    lines: Mapping[str, int]
    open: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def recipe(self) -> str:
        """The module that trains, if it is none of verl's own; else empty."""
        module = next((w for w in self.command if "main" in w), "")
        return "" if module.startswith(("verl.trainer.", "verl/trainer/")) else module

    @property
    def config_name(self) -> str:
        """Name of the configuration that the script asks Hydra for."""
        for index, word in enumerate(self.command):
            for option in ("--config-name", "-cn"):
                if word.startswith(f"{option}="):
                    return word.partition("=")[2].removesuffix(".yaml")
                if word == option and index + 1 < len(self.command):
                    return self.command[index + 1].removesuffix(".yaml")
        return "ppo_trainer"


def from_script(
    script: LaunchScript, answers: Mapping[str, Any] | None = None, number: int | None = None
) -> FromScript:
    """Return the settings of one start of verl in a script.

    Args:
        script: as read.
        answers: overrides that the user gives, for what the script leaves open.
        number: which start of verl, counted from 1; needed where there are several.

    Raises:
        SettingsError: the script starts no verl training, or several and none was chosen.
    """
    launch = _chosen(script, number)
    given = dict(answers or {})
    answered = {bare(key) for key in given}
    controlled = {
        bare(k) for key in CONTROLLED for k in (key.value, *BEFORE.get(key, {}).values())
    }
    controlled.add(bare(Key.LOGGER.value))
    asked, notes = [], [f"line {note.line}: {note.text}" for note in script.notes]
    for override in launch.unresolved():
        key = bare(override.key)
        why = "; ".join(f"{u.source} {u.why}" for u in override.unknown)
        where = f"line {override.word.line}: {override.key}={_value(override.word.text)}: {why}"
        if key in controlled:
            notes.append(f"{where}; left out, kltune sets it itself")
        elif key not in answered:
            asked.append(where)
    asked += [f"line {fault.line}: {fault.text}" for fault in launch.faults]
    for word in launch.command:
        asked += [f"line {u.line}: {u.source} {u.why}" for u in unknowns(word)]
    overrides = lay_over(launch.values(), given)
    env = {k: v for k, t in launch.env.items() if (v := plain(t)) is not None}
    secret = sorted(k for k in env if is_secret_name(k))
    unknown_env = sorted(k for k, t in launch.env.items() if plain(t) is None)
    if secret:
        notes.append(
            f"secrets are not written down; set them where kltune runs: {', '.join(secret)}"
        )
    if unknown_env:
        notes.append(f"{', '.join(unknown_env)}: taken from the environment of kltune")
    if launch.takes_arguments:
        notes.append(f"line {launch.line}: arguments of the script are not part of it")
    if launch.directory:
        notes.append(f"the script changes to {launch.directory}: relative paths count from there")
    prefix, launcher, note = _wrapper(launch.wrapper, bool(script.sbatch))
    tree = _tree(overrides)
    return FromScript(
        command=(*prefix, *(shown(w) for w in launch.command), *launch.options),
        overrides={k: without_secrets(k, v) for k, v in overrides.items()},
        env={k: v for k, v in env.items() if k not in secret},
        nodes=_count(tree, "trainer.nnodes", 1),
        gpus_per_node=_count(tree, "trainer.n_gpus_per_node", 8),
        launcher=launcher,
        lines={o.key: o.word.line for o in launch.overrides},
        open=tuple(dict.fromkeys(asked)),
        notes=tuple(notes + ([note] if note else [])),
    )


def settings_yaml(found: FromScript, header: Sequence[str], about: Mapping[str, Any]) -> str:
    """Return the text of a ``kltune.yaml``.

    Args:
        found: the settings.
        header: lines of the comment on top.
        about: where they came from, so that an export can give that script back.
    """
    lines = [f"# {' '.join(line.split())}" for line in header]
    lines.append(f"about: {scalar(dict(about))}")
    lines += ["verl:", f"  command: {scalar(list(found.command))}"]
    if found.env:
        lines += ["  env:", *_mapping(found.env)]
    lines += ["  overrides:", *_mapping(found.overrides)] if found.overrides else []
    cluster = {
        "launcher": found.launcher,
        "nodes": found.nodes,
        "gpus_per_node": found.gpus_per_node,
    }
    lines.append(f"cluster: {scalar(cluster)}")
    return "\n".join(lines) + "\n"


def _chosen(script: LaunchScript, number: int | None) -> Launch:
    launches = script.launches
    if not launches:
        notes = "".join(f"; line {note.line}: {note.text}" for note in script.notes)
        raise SettingsError(f"the script starts no verl PPO training that can be seen{notes}")
    if number is None and len(launches) > 1:
        listed = [
            f"--launch {i}: line {launch.line}{_under(launch)}"
            for i, launch in enumerate(launches, 1)
        ]
        raise SettingsError(["the script starts verl several times; choose one:", *listed])
    if number is not None and not 1 <= number <= len(launches):
        raise SettingsError(f"--launch {number}: the script starts verl {len(launches)} times")
    return launches[(number or 1) - 1]


def _under(launch: Launch) -> str:
    return f", under {'; '.join(launch.context)}" if launch.context else ""


def _value(text: tuple[Any, ...]) -> str:
    return shown(text).partition("=")[2]


def _wrapper(words: Sequence[str], sbatch: bool) -> tuple[tuple[str, ...], str, str]:
    rest = list(words)
    while rest and (rest[0] in _DROPPED or (rest[0].startswith("-") and len(rest) > 1)):
        rest.pop(0)
    first = rest[0].rpartition("/")[2] if rest else ""
    if first in _KEPT:
        return tuple(rest), "slurm" if sbatch else "local", ""
    launcher = "slurm" if sbatch or first in ("srun", "sbatch") else "local"
    if rest[:3] == ["ray", "job", "submit"]:
        launcher = "ray"
    note = f"left out, kltune starts verl itself: {' '.join(rest)}" if rest else ""
    return (), launcher, note


def _tree(overrides: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in overrides.items():
        section, _, name = bare(key).partition(".")
        tree.setdefault(section, {})[name] = value
    return tree


def _count(tree: Mapping[str, Any], path: str, default: int) -> int:
    value = value_at(tree, path)
    return value if isinstance(value, int) and value > 0 else default


def _mapping(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"    {scalar(key)}: {scalar(value)}" for key, value in values.items())
