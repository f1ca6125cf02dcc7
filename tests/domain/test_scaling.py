import pytest
from hypothesis import given
from hypothesis import strategies as st

from kltune.domain.kl import KlSettings
from kltune.domain.scaling import (
    FLOOR,
    Batch,
    MiniBatch,
    Rule,
    fit,
    proposals,
    scale,
    scaled_target,
)

ONE = KlSettings(kl_coef=0.001, target_kl=0.02, horizon=10_000)


@pytest.mark.parametrize(
    ("rule", "nodes", "target"),
    [
        (Rule.PER_8_NODES, 1, 0.02),
        (Rule.PER_8_NODES, 2, 0.01375),
        (Rule.PER_8_NODES, 8, 0.01),  # the protocol's worked example
        (Rule.LITERAL, 2, 0.0175),
        (Rule.LITERAL, 8, 0.019375),
        (Rule.HOLD, 8, 0.02),
    ],
)
def test_target_by_rule_from_the_protocols_one_node(rule, nodes, target):
    assert scaled_target(rule, 0.02, nodes) == pytest.approx(target)


def test_per_8_nodes_tends_to_the_protocols_target_of_several_nodes():
    assert scaled_target(Rule.PER_8_NODES, 0.02, 2) + 0.005 * 2 / 8 == pytest.approx(0.015)


def test_a_target_stops_at_the_floor_and_says_so():
    scaled = scale(Rule.PER_8_NODES, ONE, 64, 1024, 1024)
    assert scaled.settings.target_kl == FLOOR
    assert any("-0.025" in note and "floor" in note for note in scaled.notes)


def test_the_floor_raises_no_target():
    below = KlSettings(kl_coef=0.001, target_kl=0.003, horizon=10_000)
    assert scale(Rule.PER_8_NODES, below, 64, 64, 64).settings.target_kl == 0.003


@given(
    rule=st.sampled_from(list(Rule)),
    target=st.floats(1e-4, 1.0),
    nodes=st.integers(1, 512),
    before=st.integers(1, 10_000),
    after=st.integers(1, 10_000),
)
def test_every_proposal_is_one_that_verl_can_train_with(rule, target, nodes, before, after):
    one = KlSettings(kl_coef=0.01, target_kl=target, horizon=0.3 * before)
    settings = scale(rule, one, nodes, before, after, tensor_parallel=4).settings
    assert settings.target_kl > 0
    assert after / settings.horizon == pytest.approx(before / one.horizon)
    assert settings.horizon > 0.2 * after  # the coefficient keeps its sign


def test_more_rows_a_step_lengthen_the_horizon():
    scaled = scale(Rule.HOLD, ONE, 8, 64, 512)
    assert scaled.settings.horizon == 80_000
    assert any("512" in note and "gain stays 0.0064" in note for note in scaled.notes)


def test_the_same_batch_leaves_the_horizon_alone():
    scaled = scale(Rule.HOLD, ONE, 8, 64, 64)
    assert scaled.settings == ONE
    assert not any("horizon" in note for note in scaled.notes)


def test_a_fixed_coefficient_has_nothing_to_scale():
    fixed = KlSettings(kl_coef=0.01)
    found = proposals(fixed, 8, 64, 64)
    assert [p.settings for p in found] == [fixed]
    assert "fixed coefficient" in found[0].notes[0]


def test_proposals_begin_with_the_chosen_rule_and_leave_tensor_parallel_out():
    rules = [p.rule for p in proposals(ONE, 8, 64, 64, first=Rule.HOLD)]
    assert rules == [Rule.HOLD, Rule.PER_8_NODES, Rule.LITERAL]


def test_tensor_parallel_is_proposed_when_asked_for_with_its_warning():
    found = {p.rule: p for p in proposals(ONE, 8, 64, 64, tensor_parallel=4)}
    scaled = found[Rule.TENSOR_PARALLEL]
    assert scaled.settings.target_kl == pytest.approx(0.08)
    assert any("above the protocol's own alarm of 0.05" in note for note in scaled.notes)


def test_proposals_that_are_the_same_are_made_once():
    at_floor = KlSettings(kl_coef=0.001, target_kl=FLOOR, horizon=10_000)
    assert len(proposals(at_floor, 8, 64, 64)) == 1
    assert len(proposals(ONE, 1, 64, 64)) == 1


TINY = Batch(64, 1, MiniBatch(32, 32), MiniBatch(32, 32), 64, 64)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, TINY),
        (2, Batch(64, 1, MiniBatch(32, 16), MiniBatch(32, 16), 32, 32)),
        (8, Batch(64, 1, MiniBatch(32, 4), MiniBatch(32, 4), 8, 8)),
        (3, Batch(66, 1, MiniBatch(33, 11), MiniBatch(33, 11), 22, 22)),
    ],
)
def test_a_batch_is_fitted_to_the_ranks(ranks, expected):
    assert fit(TINY, ranks)[0] == expected


def test_what_was_changed_is_said():
    _, changes = fit(TINY, 3)
    assert "prompts per step 64 -> 66" in changes
    assert "rows per GPU at a time (critic) 32 -> 11" in changes
    assert fit(TINY, 1)[1] == ()


@given(
    prompts=st.integers(1, 2000),
    responses=st.integers(1, 16),
    mini=st.integers(1, 512),
    micro=st.integers(1, 64),
    ranks=st.integers(1, 128),
)
def test_a_fitted_batch_passes_every_check_of_verl(prompts, responses, mini, micro, ranks):
    batch = Batch(prompts, responses, MiniBatch(min(mini, prompts), micro), None, micro, None)
    fitted, changes = fit(batch, ranks)
    assert fitted.rows % ranks == 0
    rows_of_update, rest = divmod(fitted.actor.prompts * responses, ranks)
    assert rest == 0
    assert rows_of_update > 0
    assert rows_of_update % fitted.actor.micro == 0
    assert fitted.rows // ranks % fitted.rollout_micro == 0
    assert fitted.actor.micro <= micro
    assert fitted.prompts >= prompts
    assert fitted.actor.prompts <= fitted.prompts
    assert fitted.reference_micro is None
    assert bool(changes) == (fitted != batch)
    assert fit(fitted, ranks) == (fitted, ())
