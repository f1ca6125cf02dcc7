"""Applies the fixes of the lint to the text of a ``kltune.yaml``, comments and order kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from kltune.errors import SettingsError
from kltune.verl.lint.finding import LintFinding
from kltune.verl.overrides import bare
from kltune.verl.yaml_text import scalar


def apply_fixes(text: str, findings: Iterable[LintFinding]) -> str:
    """Return the text with the safe fixes in ``verl.overrides``.

    Raises:
        SettingsError: the overrides are not written one to a line, so that they cannot be edited.
    """
    wanted: dict[str, Any] = {}
    dropped: set[str] = set()
    for finding in findings:
        if finding.safe:
            wanted.update(finding.fix)
            dropped.update(finding.drop)
    if not wanted and not dropped:
        return text
    expected = _expected(text, wanted, dropped)
    edited = _edited(text.splitlines(keepends=True), dict(wanted), dropped)
    if _overrides(edited) != expected:
        raise SettingsError(
            "kltune.yaml: verl.overrides is not written one override to a line, so that it cannot "
            "be edited; paste the fixes in by hand"
        )
    return edited


def _overrides(text: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
        return dict(content["verl"]["overrides"])
    except (yaml.YAMLError, KeyError, TypeError):
        return {}


def _expected(text: str, wanted: dict[str, Any], dropped: set[str]) -> dict[str, Any]:
    names = {bare(key) for key in wanted}
    kept = {k: v for k, v in _overrides(text).items() if k not in dropped and bare(k) not in names}
    return {**kept, **wanted}


def _edited(lines: list[str], wanted: dict[str, Any], dropped: set[str]) -> str:
    start = next(
        (i for i, line in enumerate(lines) if re.match(r" +overrides: *(#.*)?$", line)), None
    )
    if start is None:
        return ""
    outer = len(lines[start]) - len(lines[start].lstrip())
    end, indent = start + 1, ""
    out = lines[: start + 1]
    while end < len(lines):
        line = lines[end]
        depth = len(line) - len(line.lstrip())
        if line.strip() and depth <= outer:
            break
        match = re.match(r"( +)(['\"]?)([^\s'\"#][^\s'\"]*)\2:\s", line)
        if match:
            indent = match[1]
            key = next((k for k in wanted if bare(k) == bare(match[3])), None)
            if key is not None:
                out.append(f"{indent}{scalar(key)}: {scalar(wanted.pop(key))}\n")
            elif match[3] not in dropped:
                out.append(line)
        else:
            out.append(line)
        end += 1
    added = [f"{indent or ' ' * (outer + 2)}{scalar(k)}: {scalar(v)}\n" for k, v in wanted.items()]
    blank = 0
    while blank < len(out) and not out[-1 - blank].strip():
        blank += 1
    at = len(out) - blank
    return "".join([*out[:at], *added, *out[at:], *lines[end:]])
