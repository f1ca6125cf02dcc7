import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kltune.domain.outcome import NOT_IN_EFFECT, Band, Ending, Outcome, Summary, summarize
from kltune.domain.steps import KlSource, Step


def run(kls, **numbers):
    return [
        Step(n, reference_kl=kl, kl_source=KlSource("actor/reward_kl_penalty"), **numbers)
        for n, kl in enumerate(kls, 1)
    ]


def test_the_kl_is_the_mean_of_the_last_half():
    summary = summarize(run([0.0, 0.0, 0.02, 0.04]), planned=4)
    assert summary.kl == pytest.approx(0.03)
    assert summary.kl_whole_run == pytest.approx(0.015)
    assert (summary.kl_max, summary.kl_last) == (0.04, 0.04)
    assert summary.kl_metric == "actor/reward_kl_penalty"
    assert summary.steps == 4


def test_halves_are_those_of_the_plan():
    assert summarize(run([0.0, 0.0, 0.02]), planned=4).kl == pytest.approx(0.02)


def test_a_run_that_never_reached_its_second_half_shows_the_end_of_what_there_is():
    assert summarize(run([0.0, 0.02, 0.04, 0.06]), planned=100).kl == pytest.approx(0.05)


def test_nothing_logged_is_none_everywhere():
    summary = summarize([])
    assert summary == Summary(steps=0)
    assert summarize(run([None, None])).kl is None


def test_a_nan_is_kept_and_lies_in_no_band():
    summary = summarize(run([0.01, math.nan]))
    assert math.isnan(summary.kl)
    assert summary.kl_max == 0.01
    assert not outcome(summary).feasible(Band(0, 1))


def test_the_score_is_the_mean_of_the_last_fifth():
    steps = [Step(n, score=float(n)) for n in range(1, 11)]
    assert summarize(steps).score == pytest.approx(9.5)


def test_the_validation_before_training_is_no_result():
    name = "val-core/gsm8k/acc/mean@1"
    before = Step(0, validation={name: 0.4})
    after = Step(5, validation={name: 0.6})
    assert summarize([before]).validation is None
    summary = summarize([before, after])
    assert (summary.validation_before, summary.validation) == (0.4, 0.6)
    assert (summary.objective, summary.validation_metric) == (0.6, name)


def test_without_validation_the_score_is_the_objective():
    assert summarize([Step(1, score=0.3)]).objective == 0.3


def outcome(summary, ending=Ending.COMPLETED, critical=()):
    return Outcome(ending, "", summary, critical, 1.0, 1.0, 1)


@pytest.mark.parametrize(("kl", "inside"), [(0.02, True), (0.01, False), (0.03, False)])
def test_the_ends_of_the_band_lie_outside(kl, inside):
    assert outcome(Summary(3, kl=kl)).feasible(Band(0.01, 0.03)) is inside


def test_only_a_healthy_completed_trial_is_feasible():
    good = Summary(3, kl=0.02)
    assert not outcome(good, Ending.STOPPED).feasible(Band(0.01, 0.03))
    assert not outcome(good, Ending.FAILED).feasible(Band(0.01, 0.03))
    assert not outcome(good, critical=("non-finite",)).feasible(Band(0.01, 0.03))
    assert not outcome(Summary(3)).feasible(Band(0.01, 0.03))


def test_a_launch_at_fault_is_told_from_a_training_that_failed():
    assert outcome(Summary(0), Ending.FAILED).never_trained
    assert outcome(Summary(2), Ending.FAILED, (NOT_IN_EFFECT,)).never_trained
    assert not outcome(Summary(2), Ending.FAILED).never_trained


def test_a_series_that_has_no_mean_is_not_a_number():
    assert math.isnan(summarize(run([math.inf, -math.inf], score=1e308)).kl_whole_run)


FLOATS = st.none() | st.floats()


@example([(1, 1.7e308, None, None), (2, 1.7e308, None, None)], None)
@given(
    st.lists(st.tuples(st.integers(0, 30), FLOATS, FLOATS, FLOATS), max_size=9),
    st.none() | st.integers(1, 40),
)
def test_any_run_has_a_summary(rows, planned):
    steps = [
        Step(n, reference_kl=kl, score=score, coefficient=c)
        for n, kl, score, c in sorted(rows, key=lambda row: row[0])
    ]
    summary = summarize(steps, planned)
    assert summary.steps == max((s.step for s in steps), default=0)
