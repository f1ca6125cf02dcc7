"""What kltune changed in a user's overrides, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kltune.verl.overrides import bare, render
from kltune.verl.secrets import redact


@dataclass(frozen=True, slots=True)
class Change:
    """One override that differs from the user's own.

    Attributes:
        key: the override key as it is now, or as it was where it was taken away.
        before: the user's override, as a word of a command line; None where there was none.
        after: the override now; None where it was taken away.
        reason: why, or where the new value came from.
    """

    key: str
    before: str | None
    after: str | None
    reason: str

    def lines(self) -> list[str]:
        """Return the change as lines of a diff, the reason behind the last."""
        lines = [f"- {self.before}"] if self.before is not None else []
        lines += [f"+ {self.after}"] if self.after is not None else []
        lines[-1] += f"   # {self.reason}" if self.reason else ""
        return lines


def difference(
    original: Mapping[str, Any], final: Mapping[str, Any], reasons: Mapping[str, str]
) -> list[Change]:
    """Return every override in which ``final`` differs, in its order; what was dropped comes last.

    Args:
        original: the user's own overrides.
        final: what is launched or exported.
        reasons: why a value is what it is, by key without Hydra's prefix.
    """
    before = {bare(key): (key, value) for key, value in original.items()}
    after = {bare(key): (key, value) for key, value in final.items()}
    changes = []
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None and old[1] == new[1]:
            continue
        key = (new or old or ("", None))[0]
        changes.append(Change(key, _word(old), _word(new), reasons.get(name, "")))
    return changes


def _word(override: tuple[str, Any] | None) -> str | None:
    return None if override is None else redact(render({override[0]: override[1]})[0])
