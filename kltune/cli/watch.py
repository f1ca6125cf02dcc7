"""``kltune watch``: rules over a run of anybody, live or finished."""

from __future__ import annotations

from typing import Annotated

import typer

from kltune.cli.options import FormatOption, QuietOption
from kltune.cli.output import Format, Output
from kltune.cli.replay import ProfileOption, SourceFormatOption


def watch(
    source: Annotated[str, typer.Argument(help="Log of a run; - reads standard input.")],
    following: Annotated[
        bool, typer.Option("--follow", "-F", help="Go on until Ctrl-C or the end of input.")
    ] = False,
    on_critical: Annotated[
        str | None,
        typer.Option(
            "--on-critical",
            metavar="CMD",
            help="Command that gets each critical finding as JSON on its standard input.",
        ),
    ] = None,
    profile: ProfileOption = "robust",
    source_format: SourceFormatOption = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Judge a run step by step and say what is going wrong, what kind of wrong, and what to do."""
    from kltune.cli.alarm import Alarm
    from kltune.cli.watching import show_run
    from kltune.domain.profiles import profile as profile_of

    out = Output(form, quiet)
    chosen = profile_of(profile)
    alarm = Alarm.parse(on_critical, out)
    watched = show_run(source, source_format, chosen, following, alarm, out)
    if watched.is_critical(chosen.name):
        raise typer.Exit(1)
