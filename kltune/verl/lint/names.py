"""Checks of the keys themselves: unknown, renamed, never there, ignored."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from kltune.verl.keys import BEFORE, Key
from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.lint.subject import ACTOR, KL_CTRL, MODEL, Subject
from kltune.verl.overrides import bare
from kltune.verl.releases import LegacyReward

#: Last part of a key that no release has, and the key that does what is meant.
NEVER = {
    "use_dual_clip": (f"{ACTOR}.clip_ratio_c", "dual clip is on whenever clip_ratio_c > 1"),
    "dual_clip": (f"{ACTOR}.clip_ratio_c", "dual clip is on whenever clip_ratio_c > 1"),
    "sequence_packing": (f"{MODEL}.use_remove_padding", "that is how verl packs sequences"),
    "use_sequence_packing": (f"{MODEL}.use_remove_padding", "that is how verl packs sequences"),
    "init_kl_coef": (f"{KL_CTRL}.kl_coef", "the name is TRL's"),
    "kl_target": (f"{KL_CTRL}.target_kl", "the unit is nats per token"),
    "adaptive_kl": (f"{KL_CTRL}.type", "its value is adaptive"),
    "kl_horizon": (f"{KL_CTRL}.horizon", "it counts sequences"),
    "early_stop_kl": ("", "verl stops on no KL; `kltune train` does"),
    "kl_early_stop": ("", "verl stops on no KL; `kltune train` does"),
    "kl_schedule": ("", "verl has no KL schedule"),
}

#: Prefixes that moved: (old, new, first release with the new one).
MOVED = (
    ("ray_init.", "ray_kwargs.ray_init.", (0, 6, 0)),
    ("critic.model.fsdp_config.", "critic.fsdp.", (0, 8, 0)),
    (f"{ACTOR}.checkpoint.contents", f"{ACTOR}.checkpoint.save_contents", (0, 4, 1)),
    ("trainer.val_generations_to_log_to_wandb", "trainer.log_val_generations", (0, 4, 0)),
)
_SILENT = ("algorithm", "trainer", "data")


def key_never_existed(s: Subject) -> Iterator[LintFinding]:
    """A key that no verl ever had, with the one that does what is meant."""
    for key, value in s.overrides.items():
        found = NEVER.get(bare(key).rpartition(".")[2])
        if found is None:
            continue
        real, why = found
        carried = isinstance(value, bool) is False and real.endswith(
            ("coef", "target_kl", "horizon")
        )
        fix = {real: value} if carried else {}
        if real.endswith("use_remove_padding") or real.endswith("clip_ratio_c"):
            fix = {real: 3.0 if real.endswith("clip_ratio_c") else True}
        if real.endswith(".type"):
            fix = {real: "adaptive", "algorithm.use_kl_in_reward": True}
        yield LintFinding(
            "key-never-existed",
            Level.ERROR,
            f"{bare(key)}: no verl has such a key; "
            + (f"what is meant is {real}, {why}" if real else why),
            {key: value},
            fix=fix,
            drop=(key,),
        )


def key_renamed(s: Subject) -> Iterator[LintFinding]:
    """A key under the name that another release of verl has for it."""
    for key, value in s.overrides.items():
        new = _new_name(bare(key), s)
        if new is not None and new != bare(key):
            yield LintFinding(
                "key-renamed",
                Level.ERROR,
                f"{bare(key)} is called {new} in verl {s.release.version}",
                {key: value},
                fix={new: value},
                drop=(key,),
                safe=True,
            )


def _new_name(key: str, s: Subject) -> str | None:
    for ours in Key:
        names = {*BEFORE.get(ours, {}).values(), ours.value}
        if key in {bare(name) for name in names} and not key.startswith(
            ("custom_", "reward_model")
        ):
            return s.release.path(ours)
    for old, new, since in MOVED:
        if s.release.numbers >= since and key.startswith(old):
            return new + key[len(old) :]
        if s.release.numbers < since and key.startswith(new) and not key.startswith(old):
            return old + key[len(new) :]
    return None


def key_unknown(s: Subject) -> Iterator[LintFinding]:
    """A key that this verl does not have: Hydra stops before verl starts."""
    if s.schema is None:
        return
    known = list(_paths(s.schema))
    names = set(known)
    for key, value in s.overrides.items():
        name = bare(key)
        if key.startswith(("+", "~")) or "@" in name or "/" in name or name in names:
            continue
        if name == "model_engine" or name.startswith("hydra.") or _explained(name, s):
            continue
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.8)
        meant = difflib.get_close_matches(name, known, n=1, cutoff=0.93)
        yield LintFinding(
            "key-unknown",
            Level.ERROR,
            f"{name}: verl {s.release.version} has no such key"
            + (f"; near: {', '.join(near)}" if near else f"; to add a new key write +{name}"),
            {key: value},
            fix={meant[0]: value} if meant else {},
            drop=(key,) if meant else (),
        )


def key_added_twice(s: Subject) -> Iterator[LintFinding]:
    """`+key` for a key that is there already: Hydra refuses to add it."""
    if s.schema is None:
        return
    names = set(_paths(s.schema))
    for key, value in s.overrides.items():
        if key.startswith("+") and not key.startswith("++") and bare(key) in names:
            yield LintFinding(
                "key-added-twice",
                Level.ERROR,
                f"{key}: verl {s.release.version} has this key, so Hydra refuses to add it",
                {key: value},
                fix={bare(key): value},
                drop=(key,),
                safe=True,
            )


def key_forced(s: Subject) -> Iterator[LintFinding]:
    """`++key` or `+key` adds a key that verl does not have, and nothing reads it."""
    if s.schema is None:
        return
    names = set(_paths(s.schema))
    known = {bare(k) for ours in Key for k in (ours.value, *BEFORE.get(ours, {}).values())}
    for key, value in s.overrides.items():
        name = bare(key)
        if not key.startswith("+") or name in names or name in known or "@" in name:
            continue
        near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.9)
        if (
            name.split(".")[0] in _SILENT
            and name.count(".") == 1
            and (near or key.startswith("++"))
        ):
            yield LintFinding(
                "key-forced",
                Level.WARNING,
                f"{key}: verl {s.release.version} has no such key and says nothing about it"
                + (f"; near: {near[0]}" if near else ""),
                {key: value},
                fix={near[0]: value} if near else {},
                drop=(key,) if near else (),
            )


def reward_keys_ignored(s: Subject) -> Iterator[LintFinding]:
    """Old reward keys, which this verl ignores or half translates."""
    given = s.given("custom_reward_function", "reward_model")
    if not given or s.release.legacy_reward is LegacyReward.CURRENT:
        return
    names = {bare(key): key for key in given}
    if s.release.legacy_reward is LegacyReward.IGNORED:
        fix = {_new_reward(name): given[key] for name, key in names.items()}
        yield LintFinding(
            "reward-keys-ignored",
            Level.ERROR,
            f"verl {s.release.version} ignores {', '.join(names)} without a word: the run would "
            "train on the built-in reward",
            given,
            fix={key: value for key, value in fix.items() if key},
            drop=tuple(given),
        )
    elif "custom_reward_function.path" in names and "custom_reward_function.name" not in names:
        yield LintFinding(
            "reward-keys-ignored",
            Level.ERROR,
            f"verl {s.release.version} moves custom_reward_function.path to reward.* and then "
            "asserts a name, which has no default under the old key",
            given,
            fix={
                "reward.custom_reward_function.path": given[names["custom_reward_function.path"]]
            },
            drop=(names["custom_reward_function.path"],),
            safe=True,
        )


def _new_reward(name: str) -> str:
    if name.startswith("custom_reward_function."):
        return f"reward.{name}"
    return {
        "reward_model.reward_manager": "reward.reward_manager.name",
        "reward_model.enable": "reward.reward_model.enable",
        "reward_model.model.path": "reward.reward_model.model_path",
    }.get(name, "")


def _explained(name: str, s: Subject) -> bool:
    if name.rpartition(".")[2] in NEVER:
        return True
    renamed = _new_name(name, s)
    return renamed is not None and renamed != name


def _paths(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")


CHECKS = (
    key_never_existed,
    key_renamed,
    key_unknown,
    key_added_twice,
    key_forced,
    reward_keys_ignored,
)
