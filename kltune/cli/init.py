"""``kltune init``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kltune.cli.options import FormatOption, PresetOption, QuietOption, SetOption
from kltune.cli.output import Format, Output

AnswerOption = Annotated[
    list[str] | None,
    typer.Option("--answer", "-a", metavar="NAME=VALUE", help="A variable of the script."),
]
LaunchOption = Annotated[
    int | None, typer.Option("--launch", help="Which start of verl, if the script has several.")
]


def init(
    script: Annotated[
        Path | None, typer.Option("--from", help="Your launch script; it is not executed.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to.")] = Path(
        "kltune.yaml"
    ),
    preset: PresetOption = None,
    overrides: SetOption = None,
    answers: AnswerOption = None,
    launch: LaunchOption = None,
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Write kltune.yaml, from your own verl launch script or from a preset."""
    from kltune.cli.sources import from_preset, parse_answers, read_launch_script
    from kltune.errors import SettingsError
    from kltune.verl.overrides import parse
    from kltune.verl.script.settings_text import settings_yaml
    from kltune.verl.secrets import redact
    from kltune.workspace import write_text

    if output.exists() and not force:
        raise SettingsError(f"{output}: is there already; --force writes over it, -o elsewhere")
    if (script is None) == (preset is None):
        raise SettingsError("give --from SCRIPT or --preset NAME")
    out = Output(form, quiet)
    notes: tuple[str, ...] = ()
    if script is not None:
        found = read_launch_script(script, parse_answers(answers), parse(overrides or []), launch)
        if found.open:
            raise SettingsError(
                [*found.open, "answer with --answer NAME=VALUE or --set key=value, then again"]
            )
        kept = [answer for answer in answers or [] if redact(answer) == answer]
        about = {"script": str(script.resolve()), "launch": launch or 1, "answers": kept}
        text = settings_yaml(found, [f"Made by kltune init from {script.name}"], about)
        notes = found.notes
    else:
        text = from_preset(preset or "", parse(overrides or []))
    write_text(output, text)
    for note in notes:
        out.note(f"Note: {note}")
    out.result({"file": str(output), "notes": list(notes)}, lambda c: c.print(f"Wrote {output}"))
    out.hint(f"kltune lint {output}", "what is wrong with it before any GPU hour is spent")
