"""The lint: what is wrong with a configuration of verl before any GPU hour is spent.

A check is a function from a ``Subject`` to findings; its name is its id, and its docstring the
row in ``docs/lint.md``. Nothing here imports verl, torch or Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kltune.verl.lint import batch, controller, kl, names, rollout, run
from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.lint.subject import Subject
from kltune.verl.releases import Release

Check = Callable[[Subject], Iterator[LintFinding]]

_MODULES = (names, kl, controller, batch, rollout, run)

#: All checks by id, in the order in which their findings are shown.
CHECKS: Mapping[str, Check] = {
    check.__name__.replace("_", "-"): check for module in _MODULES for check in module.CHECKS
}

_ORDER = list(Level)


def lint(
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
    release: Release,
    *,
    schema: Mapping[str, Any] | None = None,
    band: tuple[float, float] | None = None,
    script: bool = True,
) -> list[LintFinding]:
    """Return what is wrong with a configuration, the worst first.

    Args:
        config: resolved configuration, overrides included.
        overrides: what the user gave, by override key.
        release: the verl that it is meant for.
        schema: verl's configuration without overrides; without it keys are checked only as far
            as kltune knows them itself.
        band: wanted reference KL (low, high), nats per token.
        script: False for ``kltune.yaml``, where kltune sets loggers and directories itself.
    """
    subject = Subject(config, overrides, release, schema, band, script)
    found = [finding for check in CHECKS.values() for finding in check(subject)]
    return sorted(found, key=lambda finding: _ORDER.index(finding.level))


__all__ = ["CHECKS", "Level", "LintFinding", "Subject", "lint"]
