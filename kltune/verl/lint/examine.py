"""Lints overrides against the installed verl, or against what kltune knows of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from kltune.errors import SettingsError
from kltune.verl.compose import compose
from kltune.verl.defaults import installed_defaults, laid_over, offline_config
from kltune.verl.installation import Installation
from kltune.verl.lint import lint
from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.overrides import bare
from kltune.verl.releases import NEWEST, Release, release_of


@dataclass(frozen=True, slots=True)
class Examination:
    """What the lint found, and what it looked at.

    Attributes:
        findings: the worst first.
        release: the verl that it was judged by.
        notes: what it could not look at, and why.
    """

    findings: tuple[LintFinding, ...]
    release: Release
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> int:
        """Number of findings that are errors."""
        return sum(finding.level is Level.ERROR for finding in self.findings)


def examine(
    overrides: Mapping[str, Any],
    verl: Installation | None,
    *,
    version: str | None = None,
    config_name: str = "ppo_trainer",
    recipe: str = "",
    band: tuple[float, float] | None = None,
    script: bool = True,
    lines: Mapping[str, int] | None = None,
) -> Examination:
    """Return what is wrong with overrides.

    Args:
        overrides: value by override key.
        verl: the installed verl; None if there is none.
        version: the verl to judge by instead of the installed one.
        config_name: name of verl's own configuration.
        recipe: module that starts the training, if it is none of verl's own: its configuration
            is not known, so that unknown keys say nothing.
        band, script: see ``lint``.
        lines: line of the script by override key.

    Raises:
        SettingsError: the version is not supported.
    """
    notes = []
    if verl is not None and version in (None, verl.version):
        release = release_of(verl.version)
    else:
        release = release_of(version) if version else NEWEST
        verl = None
        notes.append(
            f"judged by what kltune knows of verl {release.version}; unknown keys are not found"
        )
    if release.note:
        notes.append(release.note)
    if verl is not None and not (verl.config_dir / f"{config_name}.yaml").is_file():
        recipe = recipe or f"--config-name={config_name}"
    if recipe:
        config_name = "ppo_trainer"
        notes.append(f"{recipe} has a configuration of its own; unknown keys are not found")
    try:
        schema, config = _composed(overrides, verl, release, config_name)
    except SettingsError as error:
        return Examination(tuple(_fault(fault) for fault in error.faults), release, tuple(notes))
    schema = None if recipe else schema
    found = lint(config, overrides, release, schema=schema, band=band, script=script)
    places = lines or {}
    placed = [replace(f, line=_line(f, places)) for f in found]
    return Examination(tuple(placed), release, tuple(notes))


def _composed(
    overrides: Mapping[str, Any], verl: Installation | None, release: Release, config_name: str
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return verl's keys, if they can be told, and the resolved configuration."""
    if verl is None:
        return None, offline_config(overrides, release)
    from omegaconf import OmegaConf

    defaults = installed_defaults(verl, config_name)
    schema = cast("dict[str, Any]", OmegaConf.to_container(defaults))
    if any("@" in key or "/" in key or bare(key) == "model_engine" for key in overrides):
        # Other files than the default's: only Hydra can tell. It composes twice, which is slower.
        return schema, compose(overrides, verl, config_name)
    return schema, laid_over(defaults, overrides)


def _fault(text: str) -> LintFinding:
    return LintFinding("does-not-compose", Level.ERROR, text, {"said by": "Hydra"})


def _line(finding: LintFinding, lines: Mapping[str, int]) -> int:
    bare_lines = {bare(key): line for key, line in lines.items()}
    return next((bare_lines[bare(k)] for k in finding.evidence if bare(k) in bare_lines), 0)
