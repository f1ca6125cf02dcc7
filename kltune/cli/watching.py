"""The terminal view of a run that is watched."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from kltune.cli.output import Format, Output
from kltune.cli.show import curves, finding_line, show_watched

if TYPE_CHECKING:
    from kltune.cli.alarm import Alarm
    from kltune.domain.profiles import Profile
    from kltune.monitor import News, Watched


def show_run(
    source: str,
    form: str | None,
    profile: Profile,
    following: bool,
    alarm: Alarm,
    out: Output,
) -> Watched:
    """Watch a run and show it: findings as lines, and curves on a terminal.

    With ``--format json`` every finding is one line of JSON as it comes, and a run that is not
    followed ends with its whole record, as ``kltune replay`` gives it.
    """
    from kltune.monitor import follow, replay

    if not following:
        watched = replay(source, form, (profile,))
        alarm.ring(source, watched.replay.findings[profile.name])
        out.result(
            watched.record(), lambda console: show_watched(console, [watched], profile.name)
        )
        return watched
    with _View(out) as view:
        shown: Watched | None = None
        try:
            for watched, news in follow(source, form, (profile,)):
                shown = watched
                view.update(watched, news, profile.name)
                alarm.ring(source, news.findings[profile.name])
        except KeyboardInterrupt:
            if shown is None:
                raise
    assert shown is not None
    return shown


class _View:
    def __init__(self, out: Output):
        self._out = out
        self._live: Any = None

    def __enter__(self) -> _View:
        console = self._out.stderr
        if self._out.form is Format.HUMAN and not self._out.quiet and console.is_terminal:
            from rich.live import Live

            self._live = Live(console=console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, watched: Watched, news: News, profile: str) -> None:
        from kltune.domain.verdict import finding_record

        for finding in news.findings[profile]:
            if self._out.form is Format.JSON:
                line = json.dumps({"source": watched.source, **finding_record(finding)})
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            elif self._live is not None:
                self._live.console.print(finding_line(finding))
            else:
                self._out.text(finding_line(finding))
                sys.stdout.flush()
        if self._live is not None and news.steps:
            from rich.text import Text

            self._live.update(Text("\n".join(curves(list(watched.recent)))))
