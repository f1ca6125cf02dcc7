import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kltune.domain.attempts import (
    Again,
    Attempt,
    AttemptEnding,
    Change,
    Limits,
    Over,
    next_attempt,
)
from kltune.domain.findings import Action, Finding, Kind, Severity
from kltune.domain.kl import KlSettings

OWN = KlSettings(0.001, 0.02, 10_000.0)
LIMITS = Limits(restarts=3)


def finding(kind=Kind.DIVERGENCE, action=Action.RAISE_COEFFICIENT, rule="max-kl", step=7):
    return Finding(rule, Severity.CRITICAL, kind, action, step, "kl", 0.1, 0.05, "KL is too high")


INFRASTRUCTURE = finding(Kind.INFRASTRUCTURE, Action.RETRY, "crash")


def ended(found=None, change=None, step=7, **more):
    ending = AttemptEnding.STOPPED if found is not None else AttemptEnding.COMPLETED
    return Attempt(change or Change(OWN), more.pop("ending", ending), step, found, **more)


def run(finding_of, limits=LIMITS):
    """Attempts until the trial is over, each ending by ``finding_of(number)``."""
    attempts = []
    for number in range(100):
        decision = next_attempt(OWN, limits, attempts)
        if isinstance(decision, Over):
            return decision, attempts
        found, step = finding_of(number)
        used = decision.change.settings.kl_coef
        attempts.append(ended(found, decision.change, step, coefficient=used))
    raise AssertionError("the trial does not end")


def test_the_first_attempt_has_the_trials_own_settings():
    assert next_attempt(OWN, LIMITS, []) == Again(Change(OWN), "first attempt")


def test_a_completed_attempt_completes_the_trial():
    assert next_attempt(OWN, LIMITS, [ended()]) == Over(True, "")


def test_an_interrupted_attempt_goes_on_from_its_checkpoint():
    last = ended(ending=AttemptEnding.INTERRUPTED, good_checkpoint=4, resume_coefficient=0.0012)
    decision = next_attempt(OWN, LIMITS, [last])
    assert decision.change.resume_step == 4
    # verl forgets what its controller has come to, so it is passed on.
    assert decision.change.settings == KlSettings(0.0012, 0.02, 10_000.0)


def test_divergence_multiplies_the_last_coefficient_by_one_and_a_half():
    last = ended(finding(), coefficient=0.002)
    decision = next_attempt(OWN, LIMITS, [last])
    assert decision.change.settings.kl_coef == pytest.approx(0.003)
    assert decision.reason == "kl_coef 0.002 -> 0.003: KL is too high"


def test_the_coefficient_is_capped_and_at_the_cap_the_trial_is_over():
    limits = Limits(restarts=9, kl_coef_max=0.0025)
    decision = next_attempt(OWN, limits, [ended(finding(), coefficient=0.002)])
    assert decision.change.settings.kl_coef == 0.0025
    over = next_attempt(OWN, limits, [ended(finding(), coefficient=0.0025)])
    assert over == Over(False, "KL is too high")


def test_a_crash_of_the_training_falls_back_to_the_protocols_settings():
    crash = finding(Kind.CRASH, Action.FALL_BACK, "crash")
    decision = next_attempt(OWN, LIMITS, [ended(crash, ending=AttemptEnding.CRASHED)])
    settings = decision.change.settings
    assert (settings.kl_coef, settings.target_kl) == (0.005, 0.01)
    assert settings.horizon == OWN.horizon


def test_restarts_are_limited():
    over, attempts = run(lambda n: (finding(), n + 1))
    assert len(attempts) == 1 + LIMITS.restarts
    assert over == Over(False, "KL is too high after 3 restarts")


def test_without_restarts_the_first_finding_ends_the_trial():
    over, attempts = run(lambda n: (finding(), n), Limits(restarts=0))
    assert len(attempts) == 1
    assert over == Over(False, "KL is too high")


def test_the_same_failure_at_the_same_step_is_not_tried_a_third_time():
    crash = finding(Kind.CRASH, Action.FALL_BACK, "crash")
    over, attempts = run(lambda n: (crash, 7))
    assert len(attempts) == 2
    assert "the same failure at the same step twice" in over.reason


def test_a_divergence_under_a_larger_coefficient_is_another_failure():
    # The first step that is judged after a cooldown is the same in every attempt.
    over, attempts = run(lambda n: (finding(), 13))
    assert len(attempts) == 1 + LIMITS.restarts
    assert over == Over(False, "KL is too high after 3 restarts")


def test_a_failure_of_the_machines_is_retried_unchanged():
    over, attempts = run(lambda n: (INFRASTRUCTURE, 7))
    assert len(attempts) == 1 + LIMITS.retries
    assert {a.change for a in attempts} == {Change(OWN)}
    assert "given up after 2 retries" in over.reason


def test_milder_proposals_are_taken_up_with_the_next_change():
    last = ended(
        finding(), coefficient=0.001, proposals=(Action.PACK_SEQUENCES, Action.PENALTY_K1)
    )
    change = next_attempt(OWN, LIMITS, [last]).change
    assert change.remove_padding
    assert change.settings.estimator == "kl"
    on_cpu = next_attempt(OWN, Limits(3, may_pack=False), [last]).change
    assert not on_cpu.remove_padding


def test_an_end_that_nothing_explains_ends_the_trial():
    last = ended(ending=AttemptEnding.CRASHED)
    assert next_attempt(OWN, LIMITS, [last]) == Over(
        False, "ended without a reason that can be named"
    )


FINDINGS = st.builds(
    finding,
    kind=st.sampled_from(Kind),
    action=st.sampled_from(Action),
    rule=st.sampled_from(["a", "b"]),
    step=st.none() | st.integers(0, 3),
)
ENDS = st.builds(
    lambda found, step, proposals, checkpoint, coefficient: (
        found, step, proposals, checkpoint, coefficient
    ),
    FINDINGS,
    st.none() | st.integers(1, 3),
    st.lists(st.sampled_from(Action), max_size=2).map(tuple),
    st.none() | st.integers(1, 9),
    st.none() | st.floats(1e-6, 2),
)  # fmt: skip


@settings(max_examples=500)
@given(st.data(), st.integers(0, 2), st.integers(0, 2), st.floats(0.001, 1))
def test_whatever_happens_a_trial_ends_within_its_limits(data, restarts, retries, largest):
    limits = Limits(restarts, retries, largest)
    attempts = []
    while isinstance(decision := next_attempt(OWN, limits, attempts), Again):
        assert len(attempts) <= restarts + retries
        found, step, proposals, checkpoint, coefficient = data.draw(ENDS)
        if attempts:
            last = attempts[-1].finding
            raised = decision.change.settings.kl_coef
            assert math.isfinite(raised)
            assert raised > 0
            if last.action is Action.RAISE_COEFFICIENT:
                assert last.kind is Kind.DIVERGENCE
                assert raised <= largest
            if last.action is Action.RETRY:
                # Machines do not change KL settings; the coefficient of a checkpoint is kept.
                before = attempts[-1].change
                assert decision.change.settings.target_kl == before.settings.target_kl
                assert decision.change.remove_padding == before.remove_padding
        attempts.append(
            Attempt(
                decision.change,
                AttemptEnding.STOPPED,
                step,
                found,
                proposals,
                coefficient,
                checkpoint,
                coefficient,
            )
        )
    assert not decision.completed
