"""The judge over a run: once per episode, worse again, resumed, idle; and its cost."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.domain.course import RECENT, START, Course
from kltune.domain.findings import Action, Finding, Kind, Severity
from kltune.domain.judgement import Judge, judge
from kltune.domain.profiles import PROFILES, PROTOCOL, ROBUST, profile
from kltune.domain.steps import NUMBERS, Step
from kltune.errors import SettingsError
from tests.rules.series import steps


def found(findings: list[Finding]) -> list[tuple[str, str, int | None]]:
    return [(f.rule, f.severity.value, f.step) for f in findings]


def test_an_episode_is_reported_once() -> None:
    run = steps({"entropy": "0.3@5 nan@30", "reference_kl": "0.1@35"})
    assert found(judge(run, ROBUST)) == [("non-finite", "critical", 6)]


def test_another_episode_is_reported_after_a_quiet_while() -> None:
    run = steps({"entropy": "nan 0.3@9 nan 0.3@11 nan", "reference_kl": "0.1@23"})
    assert found(judge(run, ROBUST)) == [
        ("non-finite", "critical", 1),
        ("non-finite", "critical", 23),
    ]


def test_a_warning_that_becomes_critical_is_reported_twice() -> None:
    run = steps({"reference_kl": "0.01@9", "grad_norm": "1 nan 1 1 nan nan 1@3"})
    assert found(judge(run, ROBUST)) == [
        ("non-finite", "warning", 2),
        ("non-finite", "critical", 6),
    ]


def test_judging_live_is_judging_the_whole() -> None:
    run = steps({"reference_kl": "0.15@20 0.2*1.6@8", "score": "0.6@20 0.5 0.4 0.2 0.1@5"})
    live = Judge(ROBUST)
    assert [f for step in run for f in live.see(step)] == judge(run, ROBUST)


def test_a_resumed_run_replaces_the_steps_that_it_repeats() -> None:
    good = steps({"reference_kl": "0.1@30", "score": "0.3+0.005@30"})
    bad = steps({"reference_kl": "2", "score": "0.01"}, first=31)
    once_more = steps({"reference_kl": "2", "score": "0.01"}, first=31)
    assert judge([*good, *bad, *once_more, *once_more], ROBUST) == []
    worse = steps({"reference_kl": "2@3", "score": "0.01@3"}, first=31)
    assert judge([*good, *worse], ROBUST) != []


def test_a_validation_before_training_is_no_step_of_it() -> None:
    alone = Step(0, validation={"val": 0.5}, raw={"val": 0.5})
    run = steps({"grad_norm": "0@4", "score": "0@4"})
    assert found(judge([alone, *run, alone], ROBUST)) == [("no-reference-kl", "info", 2)]


def test_a_step_costs_the_same_however_long_the_run_is() -> None:
    live = Judge(ROBUST)
    numbers = dict.fromkeys(NUMBERS, 0.5)

    def seconds(first: int, count: int) -> float:
        began = time.process_time()
        for i in range(first, first + count):
            live.see(Step(i, names={n: n for n in numbers}, raw=numbers, **numbers))
        return time.process_time() - began

    seconds(1, 100)
    early = min(seconds(1000 * k, 100) for k in range(1, 4))
    seconds(10_000, 3000)
    late = min(seconds(100_000 + 1000 * k, 100) for k in range(3))
    assert late < 3 * early


@pytest.mark.parametrize(
    ("run", "idle_s", "fires"),
    [
        ([], 3000, False),
        ([], 4000, True),
        (steps({"score": "0.5@5", "seconds": "30@5"}), 800, False),
        (steps({"score": "0.5@5", "seconds": "30@5"}), 1000, True),
        (steps({"score": "0.5@5", "seconds": "30@4 600"}), 5000, False),
        (steps({"score": "0.5@5", "seconds": "30@4 600"}), 7000, True),
    ],
)
def test_a_run_stalls_by_its_own_measure(run: list[Step], idle_s: float, fires: bool) -> None:
    live = Judge(PROTOCOL)
    for step in run:
        live.see(step)
    findings = live.idle(idle_s)
    assert bool(findings) == fires
    for finding in findings:
        assert (finding.kind, finding.action) == (Kind.INFRASTRUCTURE, Action.RETRY)
    assert live.idle(idle_s) == []


VALUES = st.none() | st.floats() | st.sampled_from([0.0, 1.0, math.nan, math.inf, 1e308, -1e308])


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(NUMBERS, VALUES)), max_size=12), st.randoms())
def test_any_numbers_are_a_run(rows: list[dict[str, float | None]], rng: object) -> None:
    run = []
    for i, row in enumerate(rows):
        numbers = {n: v for n, v in row.items() if v is not None}
        run.append(Step(i % 7, names={n: n for n in numbers}, raw=numbers, **numbers))
    for one in PROFILES.values():
        judge(run, one)


def test_only_divergence_may_change_the_coefficient() -> None:
    changing = {Action.RAISE_COEFFICIENT, Action.FALL_BACK}
    for one in PROFILES.values():
        for rule in one.rules:
            assert rule.action not in changing or rule.kind is Kind.DIVERGENCE


def test_thresholds_can_be_set_and_faults_are_named_together() -> None:
    assert profile("protocol", {"max_kl": 0.3}).limits["max_kl"] == 0.3
    assert "max_kl" not in profile("robust", {"max_kl": 0.3}).limits
    with pytest.raises(SettingsError) as caught:
        profile("robust", {"kl_grwth": 2, "kl_floor": "high"})  # type: ignore[dict-item]
    unknown, no_number = caught.value.faults
    assert unknown.startswith("unknown threshold 'kl_grwth'; did you mean kl_growth")
    assert no_number == "threshold kl_floor: must be a number, got 'high'"
    with pytest.raises(SettingsError, match="did you mean robust"):
        profile("robbust")


def test_severity_decides_the_action() -> None:
    (warned,) = judge(steps({"grad_norm": "1 1 nan", "reference_kl": "0.1@3"}), ROBUST)
    assert (warned.severity, warned.action) == (Severity.WARNING, Action.INSPECT)


@given(st.lists(st.floats(-1e6, 1e6), max_size=80))
def test_a_course_knows_what_it_was_shown(shown: list[float]) -> None:
    course = Course()
    for i, value in enumerate(shown):
        course.add(i, value)
    assert [v for _, v in course.recent] == shown[-RECENT:]
    assert (course.start is None) == (len(shown) < START)
    assert course.highest == max(shown, default=None)
    assert course.last(3) == (shown[-3:] if len(shown) >= 3 else [])
    course.rewind(max(0, len(shown) - 2))
    assert [v for _, v in course.recent] == shown[:-2][-(RECENT - 2) :] or len(shown) < 2
