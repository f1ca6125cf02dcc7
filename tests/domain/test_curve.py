import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.domain.curve import CurvePoint, coefficient_for, must_exceed

LOW, HIGH = 1e-4, 1.0
POINTS = st.builds(CurvePoint, st.floats(LOW, HIGH), st.floats(1e-5, 10) | st.just(math.inf))


def true_kl(coefficient):
    return 0.07 / (1 + coefficient / 0.005)


def test_without_a_trial_there_is_nothing_to_go_by():
    assert coefficient_for(0.02, [], LOW, HIGH) is None
    assert coefficient_for(0.02, [CurvePoint(0.0, 0.1)], LOW, HIGH) is None


def test_between_two_trials_it_interpolates_in_logarithms():
    points = [CurvePoint(0.001, 0.04), CurvePoint(0.1, 0.01)]
    assert coefficient_for(0.02, points, LOW, HIGH) == pytest.approx(0.01)


def test_on_one_side_it_halves_the_way_to_the_end_of_the_range():
    assert coefficient_for(0.02, [CurvePoint(0.01, 0.05)], LOW, HIGH) == pytest.approx(0.1)
    assert coefficient_for(0.02, [CurvePoint(0.01, 0.001)], LOW, HIGH) == pytest.approx(0.001)


def test_on_one_side_it_follows_a_gentle_slope_farther():
    slope = [CurvePoint(0.005, 0.07), CurvePoint(0.05, 0.05)]
    assert coefficient_for(0.02, slope, LOW, HIGH) == pytest.approx(HIGH)
    steeper = [CurvePoint(0.001, 0.16), CurvePoint(0.01, 0.08)]
    assert coefficient_for(0.02, steeper, LOW, HIGH) == pytest.approx(HIGH)
    steep = [CurvePoint(0.001, 0.32), CurvePoint(0.01, 0.08)]
    assert coefficient_for(0.02, steep, LOW, HIGH) == pytest.approx(0.1)


def test_a_slope_in_the_wrong_direction_is_noise():
    points = [CurvePoint(0.001, 0.04), CurvePoint(0.01, 0.05)]
    assert coefficient_for(0.02, points, LOW, HIGH) == pytest.approx(0.1)


def test_beyond_the_range_there_is_nothing_to_try():
    assert coefficient_for(0.02, [CurvePoint(HIGH, 0.05)], LOW, HIGH) is None
    assert coefficient_for(0.02, [CurvePoint(LOW, 0.001)], LOW, HIGH) is None


def test_trials_in_the_wrong_order_are_noise_and_the_answer_lies_between():
    points = [CurvePoint(0.04, 0.03), CurvePoint(0.01, 0.015)]
    assert coefficient_for(0.02, points, LOW, HIGH) == pytest.approx(0.02)


def test_next_to_a_diverged_trial_it_halves():
    points = [CurvePoint(0.01, math.inf), CurvePoint(0.04, 0.001)]
    assert coefficient_for(0.02, points, LOW, HIGH) == pytest.approx(0.02)


@given(st.lists(POINTS, max_size=6), st.floats(1e-3, 0.1))
def test_an_answer_lies_among_the_trials_and_the_range(points, kl):
    found = coefficient_for(kl, points, LOW, HIGH)
    assert found is None or LOW * (1 - 1e-9) <= found <= HIGH * (1 + 1e-9)


@pytest.mark.parametrize("first", [1e-4, 1e-3, 0.05, 1.0])
def test_a_handful_of_trials_finds_the_coefficient_of_a_smooth_curve(first):
    points = [CurvePoint(first, true_kl(first))]
    while abs(points[-1].kl / 0.0173 - 1) > 0.1:
        coefficient = coefficient_for(0.0173, points, LOW, HIGH)
        points.append(CurvePoint(coefficient, true_kl(coefficient)))
    assert len(points) <= 6


def test_what_a_larger_coefficient_could_not_hold_a_smaller_one_cannot():
    points = [CurvePoint(0.01, 0.07)]
    assert must_exceed(0.03, 0.005, points)
    assert must_exceed(0.03, 0.01, points)
    assert not must_exceed(0.03, 0.02, points)
    assert not must_exceed(0.04, 0.005, points)  # less than twice the limit may be noise
