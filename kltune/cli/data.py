"""``kltune data``: a data set by name, as the parquet file that verl reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kltune.cli.options import FormatOption, QuietOption
from kltune.cli.output import Format, Output


def data(
    name: Annotated[str, typer.Argument(help="gsm8k, aime24 or aime25.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; NAME-SPLIT.parquet by default.")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train or test; test where there is one.")
    ] = None,
    form: FormatOption = Format.HUMAN,
    quiet: QuietOption = False,
) -> None:
    """Prepare GSM8K or AIME in verl's schema, from the hub or the cache of `datasets`."""
    from kltune.verl.test_sets import TEST_SETS, prepare

    out = Output(form, quiet)
    known = TEST_SETS.get(name)
    which = split or (known.splits[-1] if known else "test")
    path = output or Path(f"{name}-{which}.parquet")
    rows = prepare(name, path, split)
    record = {"file": str(path), "rows": rows, "split": which}
    out.result(record, lambda console: console.print(f"{path}: {rows} rows"))
    out.hint(f"kltune validate --task {path}", "validates on it")
