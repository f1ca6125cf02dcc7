"""Shows a calibration while it runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from math import isfinite
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kltune.domain.events import (
    AttemptStarted,
    Event,
    FindingSeen,
    Note,
    StepSeen,
    TrialEnded,
    TrialStarted,
)
from kltune.domain.findings import Severity
from kltune.domain.outcome import Band
from kltune.domain.protocol import Trial
from kltune.domain.steps import Step
from kltune.verl.secrets import redact

if TYPE_CHECKING:
    from kltune.cli.output import Output

_BARS = "▁▂▃▄▅▆▇█"
_LINES_A_TRIAL = 6
_WIDTH = 60
_SAID = 4


class Live:
    """An observer of events; a context manager, since a live view must be ended.

    Args:
        out: where to show it.
        stage: what is running, for the headline.
        band: wanted average reference KL, nats per token.
        runs: number of trials that are expected.
    """

    def __init__(self, out: Output, stage: str, band: Band, runs: int):
        self._out = out
        self._console = out.stderr
        self._stage = stage
        self._band = band
        self._planned = 0
        self._runs = runs
        self._began = time.monotonic()
        self._trial: Trial | None = None
        self._attempt = ""
        self._steps: list[Step] = []
        self._rows: list[tuple[str, ...]] = []
        self._taken: list[float] = []
        self._said: deque[str] = deque(maxlen=_SAID)
        self._trial_began = time.monotonic()
        self._view: Any = None

    def __enter__(self) -> Live:
        if not self._out.quiet and self._console.is_terminal:
            from rich.live import Live as RichLive

            self._view = RichLive(
                console=self._console, refresh_per_second=4, get_renderable=self._render
            )
            self._view.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._view is not None:
            self._view.stop()

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if self._out.quiet:
            return
        match event:
            case TrialStarted(trial, steps):
                self._trial, self._steps, self._planned = trial, [], steps
                self._trial_began = time.monotonic()
                self._line(f"{trial.name}: {trial.settings.describe()}, seed {trial.seed}")
            case AttemptStarted(_, number, reason, console):
                self._attempt = f"attempt {number}" if number > 1 else ""
                if number > 1:
                    self._say(f"  attempt {number}: {reason}")
                self._line(f"  log: {console}")
            case StepSeen(_, step):
                self._steps = [*self._steps[-_WIDTH:], step]
                if self._is_worth_a_line(step):
                    self._line(f"  {_numbers(step, self._planned)}")
            case FindingSeen(_, finding):
                if finding.severity is not Severity.INFO:
                    self._say(f"  {finding.severity.value}: {finding.message}")
            case TrialEnded(trial, outcome):
                self._taken.append(outcome.seconds)
                self._rows.append(row_of(trial, outcome, self._band))
                ending = outcome.ending.value
                why = f": {outcome.reason}" if outcome.reason else ""
                self._line(f"  {ending} after {_clock(outcome.seconds)}{why}")
                self._line(f"  {summary_line(outcome.summary)}")
                self._trial = None
            case Note(text):
                self._say(f"  {text}")

    def _line(self, text: str) -> None:
        if self._view is None:
            self._out.note(text)

    def _say(self, text: str) -> None:
        """Tell something that the live view does not show otherwise."""
        self._said.append(redact(text.strip()))
        self._line(text)

    def _is_worth_a_line(self, step: Step) -> bool:
        return step.step % max(1, self._planned // _LINES_A_TRIAL) == 0

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        elapsed = time.monotonic() - self._began
        head = Text(f"kltune {self._stage}   {len(self._rows)} of {self._runs} trials   ", "bold")
        head.append(f"{_clock(elapsed)} gone{self._left()}", "default")
        parts: list[Any] = [head]
        if self._rows:
            table = Table(box=None, pad_edge=False)
            for name in ROW_NAMES:
                table.add_column(name, no_wrap=True)
            for row in self._rows:
                table.add_row(*row)
            parts.append(table)
        if self._trial is not None:
            done = self._steps[-1].step if self._steps else 0
            current = Text(f"{self._trial.name}  ", "bold")
            current.append(f"{self._trial.settings.describe()}  {self._attempt}", "default")
            parts.append(current)
            bar = Table.grid(padding=(0, 1))
            bar.add_row(
                ProgressBar(total=self._planned, completed=done, width=_WIDTH),
                f"{done}/{self._planned}",
            )
            parts.append(bar)
            if self._steps:
                parts.append(Text(_numbers(self._steps[-1], self._planned)))
                parts.append(Text(self._spark()))
            else:
                waited = _clock(time.monotonic() - self._trial_began)
                parts.append(Text(f"verl is starting ({waited})"))
        parts.extend(Text(text, "dim", no_wrap=True, overflow="ellipsis") for text in self._said)
        return Group(*parts)

    def _spark(self) -> str:
        kls = [s.reference_kl for s in self._steps if s.reference_kl is not None]
        return f"KL {sparkline(kls, top=2 * self._band.high)}  band {self._band}"

    def _left(self) -> str:
        if not self._taken:
            return ""
        mean = sum(self._taken) / len(self._taken)
        current = time.monotonic() - self._trial_began if self._trial is not None else 0.0
        left = max(0.0, (self._runs - len(self._rows)) * mean - current)
        return f", about {_clock(left)} left"


ROW_NAMES = (
    "trial",
    "kl_coef",
    "target",
    "KL",
    "band",
    "coef",
    "score",
    "valid.",
    "ended",
    "time",
)


def row_of(trial: Trial, outcome: Any, band: Band) -> tuple[str, ...]:
    """Return a trial as the cells of ``ROW_NAMES``."""
    summary = outcome.summary if outcome is not None else None
    kl = summary.kl if summary else None
    place = ""
    if kl is not None and kl == kl:
        place = "inside" if band.holds(kl) else "above" if kl > band.low else "below"
    target = trial.settings.target_kl
    return (
        trial.name,
        f"{trial.settings.kl_coef:.4g}",
        "fixed" if target is None else f"{target:.3g}",
        _short(kl),
        place,
        _short(summary.coefficient if summary else None),
        _short(summary.score if summary else None),
        _short(summary.validation if summary else None),
        outcome.ending.value if outcome is not None else "unfinished",
        _clock(outcome.seconds) if outcome is not None else "",
    )


def summary_line(summary: Any) -> str:
    """Return the numbers of a trial in one line."""
    parts = [f"{summary.steps} steps"]
    if summary.kl is not None:
        parts.append(
            f"reference KL {summary.kl:.4f} (last half), {summary.kl_whole_run:.4f} (all)"
        )
    if summary.coefficient is not None:
        parts.append(f"coefficient {summary.coefficient:.4g}")
    if summary.score is not None:
        parts.append(f"score {summary.score:.3f}")
    if summary.validation is not None:
        before = summary.validation_before
        was = f" (before: {before:.3f})" if before is not None else ""
        parts.append(f"validation {summary.validation:.3f}{was}")
    return ", ".join(parts)


def sparkline(values: list[float], top: float | None = None) -> str:
    """Return a curve in one line; what is not finite is a question mark.

    Args:
        values: its points.
        top: a value that is at full height at the most; None scales from least to greatest.
    """
    finite = [v for v in values if isfinite(v)]
    low = min(finite, default=0.0) if top is None else 0.0
    high = max([*finite, low if top is None else top])
    step = (high - low) / len(_BARS) or 1.0
    last = len(_BARS) - 1
    return "".join(
        _BARS[max(0, min(last, int((v - low) / step)))] if isfinite(v) else "?" for v in values
    )


def _numbers(step: Step, planned: int) -> str:
    return "  ".join(_cells(step, planned))


def _cells(step: Step, planned: int) -> Iterator[str]:
    yield f"step {step.step}/{planned}"
    if step.reference_kl is not None:
        yield f"KL {step.reference_kl:.4f}"
    if step.coefficient is not None:
        yield f"coefficient {step.coefficient:.4g}"
    if step.score is not None:
        yield f"score {step.score:.3f}"
    for value in list(step.validation.values())[:1]:
        yield f"validation {value:.3f}"
    if step.seconds is not None:
        yield f"{step.seconds:.1f} s"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
