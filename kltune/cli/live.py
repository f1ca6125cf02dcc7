"""Shows a calibration while it runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kltune.cli.trial_table import trial_table
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
from kltune.domain.steps import Step
from kltune.domain.trials import Trial
from kltune.report.rows import clock, row_of
from kltune.verl.secrets import redact

if TYPE_CHECKING:
    from kltune.cli.output import Output

_BARS = "▁▂▃▄▅▆▇█"
_LINES_A_TRIAL = 6
_WIDTH = 60
_SAID = 4


@dataclass(slots=True)
class _Running:
    """A trial that runs now: the last steps seen of it, and when it was begun."""

    trial: Trial
    planned: int
    steps: list[Step] = field(default_factory=list)
    attempt: str = ""
    began: float = field(default_factory=time.monotonic)


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
        self._runs = runs
        self._began = time.monotonic()
        self._running: dict[str, _Running] = {}
        self._rows: list[tuple[str, ...]] = []
        self._taken: list[float] = []
        self._said: deque[str] = deque(maxlen=_SAID)
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
                self._running[trial.name] = _Running(trial, steps)
                self._line(f"{trial.name}: {trial.settings.describe()}, seed {trial.seed}")
            case AttemptStarted(trial, number, reason, console):
                running = self._running[trial.name]
                running.attempt = f"attempt {number}" if number > 1 else ""
                if number > 1:
                    self._say(f"{self._of(trial)}attempt {number}: {reason}")
                self._line(f"{self._of(trial)}log: {console}")
            case StepSeen(trial, step):
                running = self._running[trial.name]
                running.steps = [*running.steps[-_WIDTH:], step]
                if step.step % max(1, running.planned // _LINES_A_TRIAL) == 0:
                    self._line(f"{self._of(trial)}{_numbers(step, running.planned)}")
            case FindingSeen(trial, finding):
                if finding.severity is not Severity.INFO:
                    self._say(f"{self._of(trial)}{finding.severity.value}: {finding.message}")
            case TrialEnded(trial, outcome):
                self._taken.append(outcome.seconds)
                self._rows.append(row_of(trial, outcome, self._band))
                ending = outcome.ending.value
                why = f": {outcome.reason}" if outcome.reason else ""
                of = self._of(trial)
                self._line(f"{of}{ending} after {clock(outcome.seconds)}{why}")
                self._line(f"{of}{summary_line(outcome.summary)}")
                del self._running[trial.name]
            case Note(text):
                self._say(f"  {text}")

    def _of(self, trial: Trial) -> str:
        """Return how a line about a trial begins: with its name where several run."""
        return f"  {trial.name}: " if len(self._running) > 1 else "  "

    def _line(self, text: str) -> None:
        if self._view is None:
            self._out.note(text)

    def _say(self, text: str) -> None:
        """Tell something that the live view does not show otherwise."""
        self._said.append(redact(text.strip()))
        self._line(text)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        elapsed = time.monotonic() - self._began
        head = Text(f"kltune {self._stage}   {len(self._rows)} of {self._runs} trials   ", "bold")
        head.append(f"{clock(elapsed)} gone{self._left()}", "default")
        parts: list[Any] = [head]
        if self._rows:
            parts.append(trial_table(self._rows, self._console.width))
        for running in list(self._running.values()):  # the view has a thread of its own
            parts.extend(self._render_one(running))
        parts.extend(Text(text, "dim", no_wrap=True, overflow="ellipsis") for text in self._said)
        return Group(*parts)

    def _render_one(self, running: _Running) -> Iterator[Any]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        trial, steps = running.trial, running.steps
        done = steps[-1].step if steps else 0
        head = Text(f"{trial.name}  ", "bold")
        head.append(f"{trial.settings.describe()}  {running.attempt}", "default")
        yield head
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=running.planned, completed=done, width=_WIDTH),
            f"{done}/{running.planned}",
        )
        yield bar
        if steps:
            yield Text(_numbers(steps[-1], running.planned))
            kls = [s.reference_kl for s in steps if s.reference_kl is not None]
            yield Text(f"KL {sparkline(kls, top=2 * self._band.high)}  band {self._band}")
        else:
            yield Text(f"verl is starting ({clock(time.monotonic() - running.began)})")

    def _left(self) -> str:
        if not self._taken:
            return ""
        mean = sum(self._taken) / len(self._taken)
        now = time.monotonic()
        spent = sum(now - running.began for running in list(self._running.values()))
        left = max(0.0, (self._runs - len(self._rows)) * mean - spent)
        return f", about {clock(left / max(1, len(self._running)))} left"


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
