"""A progress bar for work of a known length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from kltune.cli.output import Output

T = TypeVar("T")


def counted(items: Sequence[T], what: str, out: Output) -> Iterator[T]:
    """Yield the items, with a bar on stderr where somebody looks at a terminal."""
    if out.quiet or len(items) < 2 or not out.stderr.is_terminal:
        yield from items
        return
    from rich.progress import track

    yield from track(items, description=what, console=out.stderr, transient=True)
