"""The table of trials on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kltune.report.rows import ROW_NAMES

if TYPE_CHECKING:
    from rich.table import Table

#: Columns of a terminal from which on the cells stand two blanks apart.
_ROOMY = 100


def trial_table(rows: Iterable[tuple[str, ...]], width: int) -> Table:
    """Return the table of trials, in which a terminal of 80 columns cuts no number off.

    Args:
        rows: cells of ``ROW_NAMES``.
        width: columns of the terminal; where there are too few, names of trials are folded.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1) if width >= _ROOMY else (0, 1, 0, 0))
    first, *others = ROW_NAMES
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
