"""``kltune replay``: how every rule would have fired on past runs."""

from __future__ import annotations

from typing import Annotated

import typer

from kltune.cli.options import FormatOption, QuietOption
from kltune.cli.output import Format, Output

SourceFormatOption = Annotated[
    str | None,
    typer.Option(
        "--source-format",
        help="console, notebook, jsonl, tensorboard, wandb, mlflow or csv; found out otherwise.",
    ),
]
ProfileOption = Annotated[
    str, typer.Option("--profile", help="Profile whose critical findings give exit code 1.")
]


def replay(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Logs of runs.")],
    profile: ProfileOption = "robust",
    source_format: SourceFormatOption = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Show how every rule of every profile would have fired on past runs."""
    from kltune.cli.progress import counted
    from kltune.cli.show import show_watched
    from kltune.domain.profiles import PROTOCOL, ROBUST
    from kltune.domain.profiles import profile as profile_of
    from kltune.monitor import replay as judge

    out = Output(form, quiet)
    chosen = profile_of(profile)
    profiles = {p.name: p for p in (PROTOCOL, ROBUST, chosen)}
    watched = [
        judge(source, source_format, tuple(profiles.values()))
        for source in counted(sources, "reading", out)
    ]
    records = [w.record() for w in watched]
    out.result(
        records if len(records) > 1 else records[0],
        lambda console: show_watched(console, watched, chosen.name),
    )
    if any(w.is_critical(chosen.name) for w in watched):
        raise typer.Exit(1)
