import ast
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kltune.domain.kl import (
    KlSettings,
    Placement,
    next_coefficient,
    reachable,
    smallest_horizon,
)

COEFFICIENTS = st.floats(1e-6, 10)
KLS = st.floats(-1, 10)
TARGETS = st.floats(1e-3, 1)
ROWS = st.integers(1, 8192)


def verls_controller():
    """Return verl's own class, cut out of its source: importing it would load torch."""
    spec = find_spec("verl")
    if spec is None:
        pytest.skip("verl is not installed")
    source = Path(spec.origin).parent / "trainer" / "ppo" / "core_algos.py"
    [found] = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "AdaptiveKLController"
    ]
    names = {"np": pytest.importorskip("numpy")}
    exec(compile(ast.Module([found], []), source, "exec"), names)  # noqa: S102
    return names["AdaptiveKLController"]


def test_the_coefficient_moves_as_in_verls_own_controller():
    controller_of = verls_controller()

    @given(COEFFICIENTS, TARGETS, ROWS, st.floats(10, 1e6), st.lists(KLS, max_size=5))
    def agree(coefficient, target, rows, horizon, kls):
        controller = controller_of(coefficient, target, horizon)
        for kl in kls:
            controller.update(kl, rows)
            coefficient = next_coefficient(coefficient, kl, target, rows, horizon)
            assert coefficient == pytest.approx(float(controller.value), rel=1e-9)

    agree()


@given(COEFFICIENTS, TARGETS, ROWS, st.floats(1, 1e6))
def test_on_target_the_coefficient_stays(coefficient, target, rows, horizon):
    assert next_coefficient(coefficient, target, target, rows, horizon) == coefficient


@given(COEFFICIENTS, KLS, TARGETS, ROWS)
def test_above_the_smallest_horizon_the_coefficient_stays_positive(coefficient, kl, target, rows):
    horizon = smallest_horizon(rows) * 1.001
    assert next_coefficient(coefficient, kl, target, rows, horizon) > 0


@given(COEFFICIENTS, TARGETS, ROWS)
def test_below_the_smallest_horizon_one_step_turns_it_negative(coefficient, target, rows):
    horizon = smallest_horizon(rows) * 0.9
    assert next_coefficient(coefficient, 0.0, target, rows, horizon) < 0


@given(COEFFICIENTS, TARGETS, ROWS, st.lists(KLS, max_size=8))
def test_no_course_of_kl_leaves_what_is_reachable(coefficient, target, rows, kls):
    horizon = smallest_horizon(rows) * 4
    low, high = reachable(coefficient, rows, horizon, len(kls))
    for kl in kls:
        coefficient = next_coefficient(coefficient, kl, target, rows, horizon)
    assert low * (1 - 1e-9) <= coefficient <= high * (1 + 1e-9)


def test_the_protocols_own_settings_hardly_move_in_one_epoch():
    # Seven steps of 1024 sequences: the controller can only multiply by 1.02 a step.
    assert reachable(0.001, 1024, 10_000, 7)[1] == pytest.approx(0.001 * 1.02048**7)


def test_settings_are_the_same_point_up_to_four_digits():
    one = KlSettings(0.0012345678, 0.02, 10_000.0)
    assert one.key() == KlSettings(0.001234568, 0.02, 10_000).key()
    assert one.key() != KlSettings(0.001236, 0.02, 10_000).key()
    assert one.key() != KlSettings(0.0012345678, None, 10_000.0).key()
    assert one.key() != KlSettings(0.0012345678, 0.02, 10_000.0, placement=Placement.LOSS).key()


@given(COEFFICIENTS, COEFFICIENTS)
def test_points_that_differ_by_a_percent_are_two(one, other):
    assume(abs(one / other - 1) > 0.01)
    assert KlSettings(one).key() != KlSettings(other).key()


def test_settings_are_described_in_verls_words():
    settings = KlSettings(0.001, 0.02, 10_000, "low_var_kl", 0.2, Placement.LOSS)
    assert settings.describe() == (
        "kl_coef=0.001 target_kl=0.02 horizon=1e+04 estimator=low_var_kl clip_ratio=0.2 "
        "in the loss"
    )
    assert KlSettings(0.0).describe() == "kl_coef=0"
