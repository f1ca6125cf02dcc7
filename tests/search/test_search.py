import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.storages import RDBStorage
from sqlalchemy.exc import OperationalError

from kltune.domain.kl import KlSettings, Placement
from kltune.domain.outcome import Band, Ending, Outcome, Summary
from kltune.domain.trials import Role, Trial
from kltune.errors import LaunchError
from kltune.search import Points, Search, SearchSpace, Seen, curve_points, violations

BAND = Band(0.01, 0.03)
BASE = KlSettings(0.001, 0.02, 10_000.0, "low_var_kl", 0.2)
SPACE = SearchSpace((1e-4, 1.0), (0.005, 0.05))


def open_search(storage="sqlite://", owner="mine", shared=False, seed=1, **changes):
    values = {"space": SPACE, "base": BASE, "band": BAND, "rows": 64, "steps": 10}
    points = Points(**{**values, **changes})
    return Search(storage, "study", owner, points, seed, shared)


def outcome(
    kl=0.02, score=0.5, ending=Ending.COMPLETED, critical=(), coefficient=None, kl_max=None
):
    summary = Summary(10, kl=kl, kl_max=kl_max or kl, score=score, coefficient=coefficient)
    return Outcome(ending, "", summary, critical, 1.0, 1.0, 1)


def train(settings):
    """The stand-in's curve."""
    kl = 0.07 / (1 + settings.kl_coef / 0.005)
    return outcome(kl, 0.4 + 1.5 * math.sqrt(kl) - 4.3 * kl, coefficient=settings.kl_coef)


def carry_out(search, trials, run=train):
    seen = [Seen(search.points.base, run(search.points.base))]
    proposals = []
    for _ in range(trials):
        proposal = search.ask(seen)
        if proposal is None:
            break
        end = run(proposal.settings)
        search.tell(proposal.number, end)
        seen.append(Seen(proposal.settings, end))
        proposals.append(proposal)
    return proposals, seen


def test_guesses_come_first_then_the_curve_then_the_sampler():
    proposals, _ = carry_out(open_search(), 8)
    sources = [p.source for p in proposals]
    assert sources[0] == "guess"
    assert (proposals[0].settings.kl_coef, proposals[0].settings.target_kl) == (0.005, 0.01)
    assert sources == sorted(sources, key=["guess", "curve", "sampler"].index)
    assert {"guess", "curve", "sampler"} == set(sources)


def test_the_curve_needs_few_trials_to_the_band():
    _, seen = carry_out(open_search(), 3)
    assert any(s.outcome.feasible(BAND) for s in seen)


def test_beyond_all_that_has_ended_it_waits_for_the_trial_that_runs_there():
    seen = [Seen(s, train(s)) for s in (BASE, replace(BASE, kl_coef=0.005, target_kl=0.01))]
    running = [replace(BASE, kl_coef=math.sqrt(0.005))]
    points = open_search().points
    settings, source = points.wanted(seen, running)
    # The next one along the guessed curve would be at 0.12, farther from the band.
    assert source == "gap"
    assert 0.005 < settings.kl_coef < 0.07
    assert points.wanted(seen)[1] == "curve"


def test_no_point_comes_twice():
    proposals, _ = carry_out(open_search(), 12)
    keys = [p.settings.key() for p in proposals]
    assert len(set(keys)) == len(keys) == 12
    assert BASE.key() not in keys
    assert len({p.number for p in proposals}) == 12


def test_every_point_lies_in_the_space():
    space = SearchSpace((0.002, 0.004), (0.02, 0.03), (3000, 5000), (0.1, 0.15), ("kl", "abs"))
    proposals, _ = carry_out(open_search(space=space), 6)
    for proposal in proposals:
        found = proposal.settings
        assert 0.002 <= found.kl_coef <= 0.004
        assert 0.02 <= found.target_kl <= 0.03
        assert 3000 <= found.horizon <= 5000
        assert 0.1 <= found.clip_ratio <= 0.15
        assert found.estimator in ("kl", "abs")


def test_a_horizon_at_which_the_coefficient_changes_sign_is_never_proposed():
    space = replace(SPACE, horizon=(10.0, 5000.0))
    proposals, _ = carry_out(open_search(space=space, rows=1024), 5)
    assert all(p.settings.horizon > 0.2 * 1024 for p in proposals)


def test_a_fixed_coefficient_stays_fixed_where_no_target_is_searched():
    base = replace(BASE, target_kl=None, horizon=None)
    space = replace(SPACE, target_kl=None)
    proposals, _ = carry_out(open_search(base=base, space=space), 4)
    assert all(p.settings.target_kl is None and p.settings.horizon is None for p in proposals)


def test_a_penalty_in_the_loss_is_searched_by_its_coefficient():
    base = KlSettings(0.001, estimator="low_var_kl", placement=Placement.LOSS)
    proposals, _ = carry_out(open_search(base=base), 4)
    assert all(p.settings.placement is Placement.LOSS for p in proposals)
    assert all(p.settings.target_kl is None for p in proposals)


def test_kl_off_is_tried_first_where_asked_for():
    proposals, _ = carry_out(open_search(kl_off=True), 4)
    assert proposals[0].source == "kl-off"
    assert proposals[0].settings.kl_coef == 0
    assert all(p.settings.kl_coef > 0 for p in proposals[1:])


def test_a_space_of_one_point_ends(monkeypatch):
    monkeypatch.setattr("kltune.search.study._REDRAWS", 3)
    space = SearchSpace((0.00999999, 0.01))
    base = replace(BASE, target_kl=None, horizon=None)
    search = open_search(space=space, base=base)
    proposals, _ = carry_out(search, 5)
    assert len(proposals) <= 3
    assert search.ask([Seen(p.settings, train(p.settings)) for p in proposals]) is None


def test_a_killed_search_finds_what_it_proposed(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    proposal = open_search(storage).ask([])
    [again] = open_search(storage).unfinished()
    assert again == proposal
    open_search(storage).tell(again.number, outcome())
    assert open_search(storage).unfinished() == []


def test_a_point_that_was_wished_for_and_not_proposed_is_wished_for_once(tmp_path, monkeypatch):
    storage = f"sqlite:///{tmp_path}/study.db"
    search = open_search(storage)
    with monkeypatch.context() as patch:
        patch.setattr(search._study, "ask", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            search.ask([Seen(BASE, train(BASE))])
    after = open_search(storage)
    proposals, _ = carry_out(after, 4)
    assert len(after._study.trials) == 4
    assert [p.source for p in proposals][:2] == ["guess", "curve"] or proposals[
        0
    ].source == "guess"


def test_trials_of_others_in_a_shared_study_are_not_ours(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    open_search(storage, owner="somebody").ask([])
    assert open_search(storage).unfinished() == []


def test_an_end_is_told_once(tmp_path):
    search = open_search()
    proposal = search.ask([])
    search.tell(proposal.number, outcome(score=0.5))
    search.tell(proposal.number, outcome(score=0.9))
    [trial] = search._study.trials
    assert trial.value == 0.5


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (outcome(), "COMPLETE"),
        (outcome(ending=Ending.STOPPED), "PRUNED"),
        (outcome(ending=Ending.FAILED), "FAIL"),
        (outcome(score=None), "FAIL"),
        (outcome(score=math.nan), "FAIL"),
    ],
)
def test_the_study_knows_how_a_trial_ended(end, state):
    search = open_search()
    search.tell(search.ask([]).number, end)
    assert search._study.trials[0].state.name == state


def test_a_study_that_lacks_our_trials_is_named():
    with pytest.raises(LaunchError, match=r"search\.storage: the study does not hold trial 3"):
        open_search().tell(3, outcome())


@pytest.mark.parametrize(
    "storage",
    ["nonsense", "sqlite:////no/such/directory/study.db", "postgresql://nobody@127.0.0.1:1/x"],
)
def test_a_storage_that_cannot_be_used_is_a_launch_error(storage):
    with pytest.raises(LaunchError, match=r"search\.storage: the study cannot be used"):
        open_search(storage)


def test_a_storage_that_fails_on_the_way_is_a_launch_error(tmp_path):
    search = open_search(f"sqlite:///{tmp_path}/study.db")
    search._study._storage._backend.engine.dispose()
    (tmp_path / "study.db").write_bytes(b"not a database any more" * 100)
    with pytest.raises(LaunchError, match=r"search\.storage"):
        search.ask([])


@pytest.fixture
def restarting(monkeypatch):
    """Have a storage fail so often before it answers; nobody waits between two questions."""
    monkeypatch.setattr("kltune.search.study.RETRY_S", 0.0)

    def fail(name, times, owner=RDBStorage):
        answer, left = getattr(owner, name), [times]

        def flaky(self, *args, **kwargs):
            if left[0]:
                left[0] -= 1
                raise OperationalError("SELECT 1", {}, Exception("the server is restarting"))
            return answer(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, flaky)

    return fail


def test_a_server_that_restarts_is_borne_with(tmp_path, restarting):
    search = open_search(f"sqlite:///{tmp_path / 'study.db'}", shared=True)
    point = search.ask([])
    restarting("set_study_user_attr", 3)
    assert search.others() == []
    restarting("set_trial_user_attr", 3)
    search.tell(point.number, outcome())
    assert search.unfinished() == []


def test_a_server_that_is_gone_is_named_in_the_end(tmp_path, restarting, monkeypatch):
    search = open_search(f"sqlite:///{tmp_path / 'study.db'}", shared=True)
    monkeypatch.setattr("kltune.search.study.PATIENCE_S", 0.05)
    restarting("set_study_user_attr", 1_000_000)
    with pytest.raises(LaunchError, match="the server is restarting"):
        search.others()


def test_who_makes_the_tables_a_moment_later_finds_them(tmp_path, restarting):
    restarting("__init__", 1)
    assert open_search(f"sqlite:///{tmp_path / 'study.db'}", shared=True).unfinished() == []


def test_constraints_are_satisfied_inside_the_band_only():
    assert all(v <= 0 for v in violations(outcome(0.02), BAND).values())
    assert violations(outcome(0.04), BAND)["kl below high"] == pytest.approx(0.01)
    assert violations(outcome(0.004), BAND)["kl above low"] == pytest.approx(0.006)
    assert violations(outcome(None), BAND)["kl below high"] > 0
    assert violations(outcome(math.nan), BAND)["kl above low"] > 0
    assert violations(outcome(critical=("non-finite",)), BAND)["no critical finding"] == 1


def test_a_stopped_divergence_shows_at_least_its_highest_kl():
    stopped = outcome(0.02, ending=Ending.STOPPED, critical=("kl-above-band",), kl_max=0.09)
    [point] = curve_points([Seen(BASE, stopped)], BAND)
    assert (point.coefficient, point.kl) == (0.001, 0.09)


def test_a_trial_that_was_stopped_for_another_reason_shows_nothing_of_the_curve():
    stopped = outcome(0.02, ending=Ending.STOPPED, critical=("length-collapse",))
    failed = outcome(0.02, ending=Ending.FAILED)
    assert curve_points([Seen(BASE, stopped), Seen(BASE, failed)], BAND) == []


OUTCOMES = st.builds(
    outcome,
    kl=st.none() | st.floats(-0.1, 1) | st.just(math.nan) | st.just(math.inf),
    score=st.none() | st.floats(0, 1) | st.just(math.nan),
    ending=st.sampled_from(Ending) | st.just(Ending.COMPLETED),
    critical=st.sampled_from([(), ("kl-above-band",), ("non-finite",)]),
    coefficient=st.none() | st.floats(0, 5),
)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.booleans())
def test_whatever_trials_come_to_the_search_goes_on_and_repeats_nothing(data, kl_off):
    proposals, seen = carry_out(open_search(kl_off=kl_off), 6, lambda _: data.draw(OUTCOMES))
    keys = [s.settings.key() for s in seen]
    assert len(proposals) == 6
    assert len(set(keys)) == len(keys)


def test_a_point_that_is_drawn_again_is_no_trial_of_its_own(tmp_path):
    """One worker wished for it and was killed; another draws what was left waiting."""
    storage = f"sqlite:///{tmp_path}/study.db"
    first = open_search(storage, owner="first", shared=True)
    run = first.ask([])
    first.tell(run.number, outcome())
    first._study.enqueue_trial(first._params(run.settings))
    second = open_search(storage, owner="second", shared=True)
    proposal = second.ask([Seen(run.settings, outcome())])
    assert proposal.settings.key() != run.settings.key()
    assert [trial.name for trial in second.others()] == ["search-000"]
    assert first.others() == [Trial("search-002", Role.SEARCH, proposal.settings, 1)]


def test_a_point_that_came_and_went_while_we_asked_is_not_run_again(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    first = open_search(storage, owner="first", shared=True)
    run = first.ask([])
    first.tell(run.number, outcome())
    second = open_search(storage, owner="second", shared=True)
    # What the second knows is from before the first began.
    assert second.ask([]).settings.key() != run.settings.key()


def test_the_point_of_a_worker_that_is_gone_does_not_stand_in_the_way_of_the_curve(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    gone = open_search(storage, owner="gone", shared=True).ask([])
    second = open_search(storage, owner="second", shared=True)
    proposals, _ = carry_out(second, 3)
    assert gone.settings.key() not in {p.settings.key() for p in proposals}
    assert [p.source for p in proposals][1:] == ["curve", "curve"]
    assert [p.number for p in proposals] == [1, 2, 3]


def test_of_two_that_take_a_point_at_once_not_both_keep_it(tmp_path):
    storage = f"sqlite:///{tmp_path}/study.db"
    first = open_search(storage, owner="first", shared=True)
    second = open_search(storage, owner="second", shared=True)
    suggest, proposals = first._suggest, []

    def slow(trial):
        settings = suggest(trial)
        if not proposals:
            # Before the first has said what it takes, the second asks, says and looks.
            proposals.append(second.ask([]))
        return settings

    first._suggest = slow
    assert first.ask([]).settings.key() != proposals[0].settings.key()
