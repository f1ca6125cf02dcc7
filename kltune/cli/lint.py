"""``kltune lint``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kltune.cli.init import AnswerOption, LaunchOption
from kltune.cli.options import FormatOption, PresetOption, QuietOption, SetOption
from kltune.cli.output import Format, Output

if TYPE_CHECKING:
    from rich.console import Console

    from kltune.cli.sources import Source
    from kltune.verl.lint.examine import Examination


def lint(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="A launch script, a YAML file, or overrides behind --."),
    ] = None,
    preset: PresetOption = None,
    overrides: SetOption = None,
    answers: AnswerOption = None,
    launch: LaunchOption = None,
    version: Annotated[
        str | None, typer.Option("--verl", metavar="VERSION", help="Judge by this verl.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write fixes that change no training to kltune.yaml.")
    ] = False,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Say what is wrong with a verl configuration before any GPU hour is spent.

    Nothing is executed, and neither verl nor torch is imported. Exit code 1 if there is an error.
    """
    from kltune.cli.sources import parse_answers, read_source
    from kltune.verl.overrides import parse

    out = Output(form, quiet)
    extra = parse(overrides or [])
    source = read_source(what or [], preset, parse_answers(answers), extra, launch)
    found = _examine(source, version)
    if fix:
        _fix(source, found, out)
        source = read_source(what or [], preset, parse_answers(answers), extra, launch)
        found = _examine(source, version)
    for note in (*found.notes, *(f"left out, {text}" for text in source.open)):
        out.note(f"Note: {note}")
    out.result(_as_json(source, found), lambda console: _show(console, source, found))
    if found.errors:
        raise typer.Exit(1)


def _examine(source: Source, version: str | None) -> Examination:
    from kltune.errors import LaunchError
    from kltune.verl.installation import find_verl
    from kltune.verl.lint.examine import examine

    try:
        installed = find_verl()
    except LaunchError:
        installed = None
    return examine(
        source.overrides,
        installed,
        version=version,
        config_name=source.config_name,
        recipe=source.recipe,
        band=source.band,
        script=source.script,
        lines=source.lines,
    )


def _fix(source: Source, found: Examination, out: Output) -> None:
    from kltune.errors import SettingsError
    from kltune.verl.lint.fix import apply_fixes
    from kltune.workspace import write_text

    if source.file is None:
        raise SettingsError(f"--fix: {source.name} is no kltune.yaml; paste the fixes in by hand")
    text = source.file.read_text(encoding="utf-8")
    fixed = apply_fixes(text, found.findings)
    if fixed != text:
        write_text(source.file, fixed)
    count = sum(finding.safe for finding in found.findings) if fixed != text else 0
    out.note(f"{count} fixes written to {source.file}")


def _as_json(source: Source, found: Examination) -> dict[str, Any]:
    return {
        "source": source.name,
        "verl": found.release.version,
        "errors": found.errors,
        "notes": list(found.notes),
        "open": list(source.open),
        "findings": [
            {
                "id": finding.id,
                "level": finding.level.value,
                "line": finding.line or None,
                "message": finding.message,
                "evidence": dict(finding.evidence),
                "fix": finding.fix_words(),
                "drop": list(finding.drop),
                "safe": finding.safe,
            }
            for finding in found.findings
        ],
    }


def _show(console: Console, source: Source, found: Examination) -> None:
    from kltune.verl.overrides import render
    from kltune.verl.secrets import redact

    for finding in found.findings:
        place = f"{source.name}:{finding.line}" if finding.line else source.name
        console.print(
            f"{place}: {finding.level.value}: {redact(finding.message)} [{finding.id}]",
            soft_wrap=True,
        )
        for key, value in finding.evidence.items():
            said = render({key: value})[0] if not key.startswith("~") else key
            console.print(f"    {redact(said)}", style="dim", soft_wrap=True)
        for key in finding.drop:
            console.print(f"    fix: take away {key}")
        for word in finding.fix_words():
            console.print(f"    fix: {redact(word)}", style="green", soft_wrap=True)
    levels = [finding.level.value for finding in found.findings]
    counts = [f"{levels.count(name)} {name}" for name in ("error", "warning", "info")]
    console.print(f"verl {found.release.version}: {', '.join(counts)}")
