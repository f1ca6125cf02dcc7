"""Gives a user's own launch script back with some overrides changed, each change marked.

A mark is a remark in backquotes, which the shell runs as an empty command: unlike ``#`` it may
stand between continued lines, where people write their overrides.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kltune.errors import SettingsError
from kltune.verl.overrides import bare, render
from kltune.verl.script.launch import Launch, LaunchScript, Override
from kltune.verl.script.text import shown
from kltune.verl.secrets import redact

_MARK = "kltune"


def rewrite(
    script: LaunchScript,
    changes: Mapping[str, Any],
    header: Sequence[str] = (),
    launch: int = 0,
) -> str:
    """Return the script with the overrides changed; what the script does not set is added.

    Args:
        script: as read.
        changes: value by override key.
        header: lines of the comment on top.
        launch: which start of verl is meant, where the script has several.

    Raises:
        SettingsError: a word that would have to change has no place of its own in the script.
    """
    chosen = script.launches[launch]
    last = {bare(override.key): override for override in chosen.overrides}
    changed = {key: last.get(bare(key)) for key in changes}
    hidden = [o for o in changed.values() if o is not None and o.word.span is None]
    added = [key for key, override in changed.items() if override is None]
    if hidden or (added and chosen.span is None):
        keys = [o.key for o in hidden] + (added if chosen.span is None else [])
        raise SettingsError(
            f"line {chosen.line}: {', '.join(keys)} cannot be changed in place, since the command "
            "line is made from text; take the export as a script of its own instead"
        )
    edits = [
        (*override.word.span, _word(override.key, changes[key]) + _was(override))
        for key, override in changed.items()
        if override is not None and override.word.span is not None
    ]
    source = script.text.encode()
    if added:
        words = [f"{_word(key, changes[key])} `# {_MARK}: added`" for key in added]
        edits.append(_insertion(source, chosen, words))
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text.encode() + source[end:]
    return _with_header(source.decode(), header)


def _word(key: str, value: Any) -> str:
    return shlex.quote(render({key: value})[0])


def _was(override: Override) -> str:
    before = redact(shown(override.word.text)).partition("=")[2]
    # Nothing that a shell could act on, and no end of the remark.
    before = re.sub(r"[^\w ./+:=,%@\[\]-]", "", before)
    return f" `# {_MARK}: was {before}`"


def _insertion(source: bytes, launch: Launch, words: list[str]) -> tuple[int, int, str]:
    spans = [o.word.span for o in launch.overrides if o.word.span is not None]
    start, end = spans[-1] if spans else launch.span or (0, 0)
    if not spans:
        return end, end, "".join(f" {word}" for word in words)
    line = source[source.rfind(b"\n", 0, start) + 1 : start].decode()
    if line.strip():
        return end, end, "".join(f" {word}" for word in words)
    inside = launch.span is not None and launch.span[0] <= start < launch.span[1]
    glue = f" \\\n{line}" if inside else f"\n{line}"
    return end, end, "".join(glue + word for word in words)


def _with_header(text: str, header: Sequence[str]) -> str:
    clean = redact(text)
    if clean != text:
        header = [*header, "Secrets were taken out; set them in the environment before you start."]
    top = "".join(f"# {' '.join(redact(line).split())}\n" for line in header)
    shebang = re.match(r"#!.*\n", clean)
    at = shebang.end() if shebang else 0
    return clean[:at] + top + clean[at:]
