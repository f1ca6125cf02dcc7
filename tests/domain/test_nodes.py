import json
from dataclasses import replace
from pathlib import Path

import pytest

from kltune.domain.consistency import GATE, with_gate
from kltune.domain.curve import CurvePoint
from kltune.domain.findings import Kind, Severity
from kltune.domain.judgement import judge
from kltune.domain.kl import KlSettings
from kltune.domain.nodes import NodePlan, NodeVerdict, next_node_action
from kltune.domain.outcome import Band, Ending, Outcome, Summary
from kltune.domain.profiles import SEARCH
from kltune.domain.protocol import RunTrial, Wait
from kltune.domain.scaling import proposals
from kltune.domain.steps import Step
from kltune.domain.transfer import elasticity, predicted_kl
from kltune.domain.trials import Role, Trial
from kltune.verl.metrics import step_record

ONE = KlSettings(kl_coef=0.01, target_kl=0.02, horizon=10_000)
PLAN = NodePlan(tuple(proposals(ONE, 8, 64, 64)), Band(0.01, 0.03), 5, 1, (1e-4, 1.0))


def ended(trial, kl, score=0.5, critical=(), ending=Ending.COMPLETED, steps=10):
    summary = Summary(steps, kl=kl, kl_max=kl, coefficient=trial.settings.kl_coef, score=score)
    reason = "it says why" if ending is not Ending.COMPLETED else ""
    return replace(trial, outcome=Outcome(ending, reason, summary, critical, 1.0, 0.1, 1))


def carried_out(plan, kl_of, limit=None):
    """Carry a plan out with a function from settings to the KL that they give."""
    history = []
    while isinstance(action := next_node_action(plan, history), RunTrial):
        history.append(ended(action.trial, kl_of(action.trial.settings)))
        assert len(history) <= (limit or plan.trials)
    return history, action


def test_the_rules_are_tried_first_in_their_order():
    history, verdict = carried_out(PLAN, lambda s: 0.02)
    assert [t.name for t in history[:3]] == ["per-8-nodes", "literal", "hold"]
    assert all(t.seed == 1 for t in history)
    assert verdict.calibrated


def test_the_search_goes_where_the_curve_says():
    # KL = 0.002 / coefficient: all proposals start at 0.01 and give 0.2, far above the band.
    history, verdict = carried_out(PLAN, lambda s: 0.002 / s.kl_coef)
    assert [t.name for t in history] == ["per-8-nodes", "literal", "hold", "near-1", "near-2"]
    assert verdict.winner.name.startswith("near-")
    assert PLAN.band.holds(verdict.winner.outcome.summary.kl)


def test_without_a_trial_in_the_band_the_nearest_is_named():
    plan = replace(PLAN, trials=3)
    _, verdict = carried_out(plan, lambda s: 0.2)
    assert (verdict.calibrated, verdict.winner) == (False, None)
    assert "0.2000" in verdict.reason


def test_the_best_score_inside_the_band_wins():
    trials = [Trial(p.rule.value, Role.SEARCH, p.settings, 1) for p in PLAN.proposals]
    scores = (0.5, 0.7, 0.6)
    history = [ended(t, 0.02, score) for t, score in zip(trials, scores, strict=True)]
    history[2] = ended(trials[2], 0.2, score=0.9)
    verdict = next_node_action(replace(PLAN, trials=3), history)
    assert verdict.winner.name == "literal"


def test_a_failing_gate_ends_the_stage_and_no_setting_changes():
    trial = next_node_action(PLAN, []).trial
    failed = ended(trial, None, critical=("consistency-rollout",), ending=Ending.STOPPED, steps=1)
    verdict = next_node_action(PLAN, [failed])
    assert isinstance(verdict, NodeVerdict)
    assert (verdict.gate, verdict.winner) == ("consistency-rollout", None)
    assert "it says why" in verdict.reason


def test_a_trial_without_an_end_is_taken_up():
    trial = next_node_action(PLAN, []).trial
    assert next_node_action(PLAN, [trial]) == RunTrial(trial)


def test_a_trial_that_never_trained_ends_the_stage():
    trial = next_node_action(PLAN, []).trial
    verdict = next_node_action(PLAN, [ended(trial, None, ending=Ending.FAILED, steps=0)])
    assert "before its first step" in verdict.reason


def test_the_best_is_confirmed_on_fresh_seeds():
    plan = replace(PLAN, trials=3, confirmation_seeds=(1001, 2001))
    history, verdict = carried_out(plan, lambda s: 0.02, limit=5)
    assert [(t.role, t.seed) for t in history[3:]] == [
        (Role.CONFIRM_WINNER, 1001),
        (Role.CONFIRM_WINNER, 2001),
    ]
    assert verdict.calibrated
    assert "on 2 fresh seed(s), inside" in verdict.reason


def test_one_that_a_fresh_seed_puts_outside_makes_room_for_the_next():
    plan = replace(PLAN, trials=3, confirmation_seeds=(1001,))
    history = []
    while isinstance(action := next_node_action(plan, history), RunTrial):
        trial = action.trial
        # The rule that comes first has the best score, and does not hold.
        first = trial.settings.key() == plan.proposals[0].settings.key()
        fresh = trial.role is Role.CONFIRM_WINNER
        history.append(ended(trial, 0.2 if first and fresh else 0.02, 0.9 if first else 0.5))
    assert [t.name for t in history[3:]] == ["confirm-winner-1", "confirm-winner-2"]
    assert action.calibrated
    assert action.winner.name == "literal"


def test_side_by_side_the_rules_are_begun_at_once_and_the_curve_waits():
    history, running = [], set()
    while isinstance(action := next_node_action(PLAN, history, running), RunTrial):
        history.append(action.trial)
        running.add(action.trial.name)
    assert [t.name for t in history] == ["per-8-nodes", "literal", "hold"]
    assert action == Wait()
    # KL 0.2 at a coefficient of 0.01: the curve asks for a larger one, once.
    history[0] = ended(history[0], 0.2)
    running.remove("per-8-nodes")
    action = next_node_action(PLAN, history, running)
    assert action.trial.name == "near-1"
    history.append(action.trial)
    running.add("near-1")
    history[1] = ended(history[1], 0.21)
    running.remove("literal")
    again = next_node_action(PLAN, history, running)
    assert again == Wait() or abs(again.trial.settings.kl_coef / 0.1 - 1) > 0.2


def test_a_failing_gate_ends_what_runs_beside_it():
    first = next_node_action(PLAN, []).trial
    second = next_node_action(PLAN, [first], {first.name}).trial
    failed = ended(first, None, critical=("consistency-rollout",), ending=Ending.STOPPED, steps=1)
    assert isinstance(next_node_action(PLAN, [failed, second], {second.name}), NodeVerdict)


GOOD = Step(
    1,
    reference_kl=0.0,
    update_kl=0.0005,
    score=0.4,
    score_min=0.0,
    score_max=1.0,
    entropy=0.5,
    mismatch_prob=0.002,
    mismatch_kl=0.0004,
)


def gate(step, one_node=GOOD, updates=2):
    profile = with_gate(SEARCH, one_node, updates, rows=64)
    return [f for f in judge([step], profile) if f.rule.startswith("consistency-")]


def test_a_consistent_first_step_passes():
    assert gate(GOOD) == []
    assert gate(replace(GOOD, score=0.5, entropy=0.55, update_kl=-0.004)) == []
    assert gate(GOOD, one_node=None) == []


@pytest.mark.parametrize(
    ("rule", "changed", "updates"),
    [
        ("reference-kl", {"reference_kl": 0.001}, 2),
        ("reference-kl", {"reference_kl": -0.0002}, 2),
        ("reference-kl", {"reference_kl": float("nan")}, 2),
        ("update-kl", {"update_kl": 0.0005}, 1),
        ("update-kl", {"update_kl": 0.02}, 4),
        ("rollout", {"mismatch_prob": 0.02}, 2),
        ("rollout", {"mismatch_kl": 0.2}, 2),
        ("one-node", {"entropy": 0.7}, 2),
        ("one-node", {"score": 0.9}, 2),
        ("one-node", {"mismatch_prob": 0.0045}, 2),
        ("one-node", {"reference_kl": 2e-6}, 2),
    ],
)
def test_what_differs_at_step_1_ends_the_trial(rule, changed, updates):
    found = gate(replace(GOOD, **changed), updates=updates)
    assert f"consistency-{rule}" in [f.rule for f in found]
    for finding in found:
        assert (finding.severity, finding.kind) == (Severity.CRITICAL, Kind.MISMATCH)
        assert "No KL setting was changed" in finding.message


RECORDED = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "scale" / "step-1.json").read_text()
)


@pytest.mark.parametrize("name", sorted(RECORDED["steps"]))
def test_first_steps_that_verl_made_on_two_nodes(name):
    steps = {key: step_record(1, data) for key, data in RECORDED["steps"].items()}
    found = {f.rule: f for f in gate(steps[name], one_node=steps["1 node"])}
    if "bf16" not in name:
        assert found == {}
        return
    # Far below what verl's documentation warns of; only one node shows that it is wrong.
    assert found.keys() == {"consistency-one-node"}
    assert "reference_kl is 7.53e-06 at step 1 and 0 on" in found["consistency-one-node"].message


def test_the_gate_is_closed_after_step_1():
    profile = with_gate(SEARCH, GOOD, 2, 64)
    later = replace(GOOD, step=2, reference_kl=0.02, update_kl=0.01, entropy=0.9)
    assert judge([GOOD, later], profile) == []


def test_every_threshold_of_the_gate_has_a_source():
    assert all(threshold.source for threshold in GATE.values())


def series(kls, coefficient=0.01):
    return [Step(n, reference_kl=kl, coefficient=coefficient) for n, kl in enumerate(kls, start=1)]


def test_the_same_settings_are_predicted_to_do_the_same():
    settings = KlSettings(kl_coef=0.01)
    steps = series([0.0, 0.01, 0.02, 0.04])
    assert predicted_kl(steps, settings, 64, 0.8) == pytest.approx(0.03)


def test_a_larger_coefficient_is_predicted_to_lower_the_kl_along_the_curve():
    steps = series([0.0, 0.01, 0.02, 0.04])
    settings = KlSettings(kl_coef=0.02)
    assert predicted_kl(steps, settings, 64, 1.0) == pytest.approx(0.015)
    assert predicted_kl(steps, settings, 64, 0.0) == pytest.approx(0.03)


def test_a_lower_target_is_predicted_to_lower_the_kl():
    steps = series([0.02] * 200)
    high = predicted_kl(steps, KlSettings(0.01, target_kl=0.04, horizon=1000), 64, 1.0)
    low = predicted_kl(steps, KlSettings(0.01, target_kl=0.01, horizon=1000), 64, 1.0)
    assert low < 0.02 < high
    assert low == pytest.approx(0.01, rel=0.1)  # the controller has reached it


def test_no_kl_no_prediction():
    assert predicted_kl([Step(1)], ONE, 64, 1.0) is None


def test_elasticity_of_the_curve():
    points = [CurvePoint(c, 0.0002 / c) for c in (0.001, 0.01, 0.1)]
    assert elasticity(points) == pytest.approx(1.0)
    assert elasticity(points[:1]) == 0.0
    assert elasticity([CurvePoint(0.01, 0.1), CurvePoint(0.02, 0.2)]) == 0.0
