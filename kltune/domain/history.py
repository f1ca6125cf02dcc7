"""What the rules see of a run: the step at hand and the course of each number up to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from kltune.domain.course import Course
from kltune.domain.steps import NUMBERS, Step


@dataclass(frozen=True, slots=True)
class Setup:
    """What is known of a run's configuration; None where it is not known.

    Attributes:
        adaptive: whether an adaptive KL controller was asked for.
        kl_in_reward: whether the reference KL enters the reward (``algorithm.use_kl_in_reward``).
        response_limit: longest response that is allowed, tokens.
    """

    adaptive: bool | None = None
    kl_in_reward: bool | None = None
    response_limit: float | None = None


@dataclass(slots=True)
class History:
    """A run up to the step at hand, in bounded memory.

    Attributes:
        setup: what is known of the configuration.
        step: the record at hand.
        previous: the training record before it.
        trained: training steps seen; validation before training does not count.
        seen: names of the numbers that were logged so far.
        at_best: level of each number when the score was at its best.
    """

    setup: Setup = field(default_factory=Setup)
    step: Step = field(default_factory=lambda: Step(-1))
    previous: Step | None = None
    trained: int = 0
    seen: set[str] = field(default_factory=set)
    at_best: dict[str, float] = field(default_factory=dict)
    _courses: defaultdict[str, Course] = field(default_factory=lambda: defaultdict(Course))

    def add(self, step: Step) -> None:
        """Take in the next record; one that repeats an earlier step replaces it and the later."""
        if self.trained and step.step <= self.step.step and step.names:
            for course in self._courses.values():
                course.rewind(step.step)
        step = _truncated_at_the_limit(step, self.setup.response_limit)
        self.previous = self.step if self.trained and self.step.step < step.step else None
        self.step = step
        if step.held_out is not None:
            self._courses["held_out"].add(step.step, step.held_out)
        if not step.names:
            return
        self.trained += 1
        best = self._courses["score"].peak
        for number in NUMBERS:
            value = getattr(step, number)
            if value is not None:
                self.seen.add(number)
                self._courses[number].add(step.step, value)
        for source, value in step.sources.items():
            self._courses[source_number(source)].add(step.step, value)
        peak = self._courses["score"].peak
        if peak is not None and (best is None or peak > best):
            levels = {number: course.level(3) for number, course in self._courses.items()}
            self.at_best = {n: level for n, level in levels.items() if level is not None}

    def base(self, number: str) -> float | None:
        """Return the level of a number when the score was best: what a good run looks like here.

        That is its start where the score has not risen, or is not logged.
        """
        score, course = self._courses["score"], self._courses[number]
        if score.peak is None or score.start is None or score.peak <= score.start:
            return course.start
        return self.at_best.get(number, course.start)

    def __getitem__(self, number: str) -> Course:
        """Return the course of a number of the step record, empty if it was never logged.

        ``held_out`` is among them, with its value before training, and what each reward source
        gave under its ``source_number``.
        """
        return self._courses[number]

    def name(self, number: str) -> str:
        """Return the run's own name of a number of the step record."""
        return self.step.names.get(number, number)

    def has(self, number: str) -> bool:
        """Whether the step at hand logged this number."""
        return getattr(self.step, number) is not None


def source_number(source: str) -> str:
    """Return the name of the course of a reward source."""
    return f"reward source {source}"


def _truncated_at_the_limit(step: Step, limit: float | None) -> Step:
    """Return the record without a clip ratio that cannot be one of the length limit.

    verl's V1 trainer pads a batch to its longest response and counts those of that length as cut
    (0.9.1 trainer/ppo/metric_utils.py). Answers that really are cut are as long as the limit.
    """
    ratio, length = step.clip_ratio, step.response_length
    if limit is None or ratio is None or length is None or length >= ratio * limit:
        return step
    return replace(step, clip_ratio=None)
