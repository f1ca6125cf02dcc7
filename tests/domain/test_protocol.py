import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kltune.domain.kl import KlSettings
from kltune.domain.outcome import NOT_IN_EFFECT, Band, Ending, Outcome, Summary
from kltune.domain.protocol import (
    Plan,
    RunTrial,
    Search,
    Verdict,
    Wait,
    launch_is_at_fault,
    next_action,
)
from kltune.domain.trials import Role, Trial

BAND = Band(0.01, 0.03)
REFERENCE = KlSettings(0.001, 0.02, 10_000.0)


def plan(**changes):
    values = {"reference": REFERENCE, "band": BAND, "trials": 2, "seed": 1}
    return Plan(**{**values, "confirmation_seeds": (1001,), **changes})


def outcome(kl=0.02, score=0.5, ending=Ending.COMPLETED, critical=(), seconds=60.0, steps=10):
    summary = Summary(steps, kl=kl, score=score)
    return Outcome(ending, "", summary, critical, seconds, seconds / 3600, 1)


def carry_out(a_plan, ends, limit=100):
    """Carry the protocol out; ``ends`` gives the outcome of each trial."""
    history = []
    for _ in range(limit):
        action = next_action(a_plan, history)
        if isinstance(action, Verdict):
            return action, history
        if isinstance(action, Search):
            n = sum(t.role is Role.SEARCH for t in history)
            trial = Trial(f"search-{n:03d}", Role.SEARCH, KlSettings(0.01 + n), a_plan.seed)
        else:
            trial = action.trial
        history = [t for t in history if t.name != trial.name]
        history.append(
            Trial(trial.name, trial.role, trial.settings, trial.seed, ends(trial, len(history)))
        )
    raise AssertionError("the protocol does not end")


def test_it_begins_with_the_reference():
    action = next_action(plan(), [])
    assert action == RunTrial(Trial("reference", Role.REFERENCE, REFERENCE, 1))


def test_a_trial_that_has_not_ended_is_taken_up_first():
    open_trial = Trial("search-000", Role.SEARCH, KlSettings(0.01), 1)
    done = Trial("reference", Role.REFERENCE, REFERENCE, 1, outcome())
    assert next_action(plan(), [done, open_trial]) == RunTrial(open_trial)


def test_reference_search_and_confirmation_follow_each_other():
    def ends(trial, _):
        return outcome(kl=0.05 if trial.settings == REFERENCE else 0.02)

    verdict, history = carry_out(plan(), ends)
    assert [t.role for t in history] == [
        Role.REFERENCE,
        Role.SEARCH,
        Role.SEARCH,
        Role.CONFIRM_WINNER,
        Role.CONFIRM_REFERENCE,
    ]
    assert verdict.calibrated
    assert verdict.winner.name == "search-000"
    assert "0.0200 nats/token on 1 fresh seed(s), inside the band 0.01 to 0.03" in verdict.reason


def test_a_reference_that_wins_is_not_confirmed_twice():
    verdict, history = carry_out(plan(trials=0), lambda *_: outcome())
    assert [t.role for t in history] == [Role.REFERENCE, Role.CONFIRM_WINNER]
    assert verdict.calibrated


def test_a_winner_that_fails_its_confirmation_makes_room_for_the_next():
    def ends(trial, _):
        score = 0.9 if trial.settings == KlSettings(0.01) else 0.5
        fails = trial.role is Role.CONFIRM_WINNER and score == 0.9
        return outcome(kl=0.5 if fails or trial.settings == REFERENCE else 0.02, score=score)

    verdict, history = carry_out(plan(), ends)
    assert verdict.calibrated
    assert verdict.winner.settings == KlSettings(1.01)
    assert sum(t.role is Role.CONFIRM_WINNER for t in history) == 2


def test_without_a_feasible_trial_the_verdict_names_the_nearest():
    verdict, _ = carry_out(plan(), lambda t, n: outcome(kl=0.05 + n / 100))
    assert not verdict.calibrated
    assert verdict.winner is None
    assert "the nearest was reference with 0.0500 nats/token" in verdict.reason


def test_a_better_score_outside_the_band_is_told():
    def ends(trial, _):
        outside = trial.name == "search-001"
        kl = 0.07 if outside else 0.02
        return outcome(kl=kl, score=0.9 if outside else 0.5)

    verdict, _ = carry_out(plan(), ends)
    assert verdict.calibrated
    assert verdict.best_outside.name == "search-001"


def test_a_trial_that_was_stopped_has_no_score_to_compare():
    def ends(trial, _):
        if trial.name == "search-001":
            return outcome(kl=0.07, score=0.9, ending=Ending.STOPPED, critical=("kl-above-band",))
        return outcome()

    verdict, _ = carry_out(plan(), ends)
    assert verdict.best_outside is None


@pytest.mark.parametrize("budget", [{"timeout_s": 100.0}, {"max_gpu_hours": 0.02}])
def test_a_spent_budget_ends_the_search_and_still_confirms(budget):
    verdict, history = carry_out(plan(trials=50, **budget), lambda *_: outcome())
    assert sum(t.role is Role.SEARCH for t in history) == 1
    assert verdict.calibrated


def test_a_raised_budget_goes_on_from_a_verdict():
    _, history = carry_out(plan(trials=1), lambda *_: outcome())
    assert isinstance(next_action(plan(trials=2), history), Search)


def test_a_reference_that_never_trained_ends_it():
    failed = outcome(kl=None, score=None, ending=Ending.FAILED, steps=0)
    verdict, history = carry_out(plan(), lambda *_: failed)
    assert [t.name for t in history] == ["reference"]
    assert not verdict.calibrated
    assert launch_is_at_fault(history)


def test_a_reference_with_other_settings_than_it_was_given_ends_it():
    wrong = outcome(ending=Ending.FAILED, critical=(NOT_IN_EFFECT,), steps=1)
    _, history = carry_out(plan(), lambda *_: wrong)
    assert [t.name for t in history] == ["reference"]


def test_three_search_trials_in_a_row_that_never_trained_end_it():
    def ends(trial, _):
        if trial.role is Role.SEARCH:
            return outcome(kl=None, score=None, ending=Ending.FAILED, steps=0)
        return outcome()

    _, history = carry_out(plan(trials=10), ends)
    assert len(history) == 4


NUMBERS = st.none() | st.floats(0, 1) | st.just(math.nan) | st.just(math.inf)
OUTCOMES = st.builds(
    outcome,
    kl=NUMBERS | st.floats(0.01, 0.03),
    score=NUMBERS,
    ending=st.sampled_from(Ending) | st.just(Ending.COMPLETED),
    critical=st.sampled_from([(), ("non-finite",)]),
    seconds=st.floats(0, 1000),
    steps=st.integers(0, 10),
)


@settings(max_examples=300)
@given(
    st.data(),
    st.integers(0, 6),
    st.lists(st.integers(1001, 1005), unique=True, max_size=3),
    st.none() | st.floats(1, 3000),
)
def test_whatever_trials_come_to_the_protocol_ends_and_repeats_nothing(
    data, trials, seeds, timeout
):
    a_plan = plan(trials=trials, confirmation_seeds=tuple(seeds), timeout_s=timeout)
    verdict, history = carry_out(a_plan, lambda *_: data.draw(OUTCOMES))
    points = [(t.role, t.settings.key(), t.seed) for t in history]
    assert len(points) == len(set(points))
    assert len({t.name for t in history}) == len(history)
    assert sum(t.role is Role.REFERENCE for t in history) == 1
    assert sum(t.role is Role.SEARCH for t in history) <= trials
    for trial in history:
        fresh = trial.role in (Role.CONFIRM_WINNER, Role.CONFIRM_REFERENCE)
        assert (trial.seed in seeds) is fresh
    if verdict.calibrated:
        assert verdict.winner.outcome.feasible(BAND)
        confirmed = [t.outcome for t in history if t.role is Role.CONFIRM_WINNER]
        assert bool(confirmed) is bool(seeds)


def test_nothing_is_decided_before_the_search_has_ended():
    done = Trial("reference", Role.REFERENCE, REFERENCE, 1, outcome())
    running = Trial("search-000", Role.SEARCH, KlSettings(0.01), 1)
    assert next_action(plan(trials=1), [done, running], {"search-000"}) == Wait()
    assert isinstance(next_action(plan(trials=2), [done, running], {"search-000"}), Search)


def test_searching_does_not_wait_for_the_reference():
    running = Trial("reference", Role.REFERENCE, REFERENCE, 1)
    assert isinstance(next_action(plan(trials=2), [running], {"reference"}), Search)


def test_what_nobody_watches_is_taken_up_before_anything_is_begun():
    running = Trial("reference", Role.REFERENCE, REFERENCE, 1)
    left = Trial("search-000", Role.SEARCH, KlSettings(0.01), 1)
    action = next_action(plan(trials=5), [running, left], {"reference"})
    assert action == RunTrial(left)


@settings(max_examples=200)
@given(st.data(), st.integers(1, 4), st.integers(0, 5), st.integers(0, 2))
def test_side_by_side_the_protocol_ends_and_repeats_nothing_as_well(data, width, trials, fresh):
    a_plan = plan(trials=trials, confirmation_seeds=tuple(range(1001, 1001 + fresh)))
    history, running, verdict = [], set(), None
    for _ in range(200):
        action = next_action(a_plan, history, running)
        if isinstance(action, Verdict):
            verdict = action
            break
        if not isinstance(action, Wait) and len(running) < width:
            if isinstance(action, Search):
                n = sum(t.role is Role.SEARCH for t in history)
                action = RunTrial(Trial(f"search-{n}", Role.SEARCH, KlSettings(0.01 + n), 1))
            history.append(action.trial)
            running.add(action.trial.name)
        else:
            name = data.draw(st.sampled_from(sorted(running)))
            running.remove(name)
            end = data.draw(OUTCOMES)
            history = [replace(t, outcome=end) if t.name == name else t for t in history]
    assert verdict is not None
    points = [(t.role, t.settings.key(), t.seed) for t in history]
    assert len(points) == len(set(points))
    assert len({t.name for t in history}) == len(history)
    assert launch_is_at_fault(history) or not running
    if not launch_is_at_fault(history):
        assert sum(t.role is Role.SEARCH for t in history) == trials
