"""From verl's configuration to KL settings and back."""

import pytest

from kltune.domain.kl import KlSettings, Placement
from kltune.verl.command import kl_overrides, kl_settings, reasons
from kltune.verl.keys import Key
from kltune.verl.releases import NEWEST, RELEASES


def config(in_reward=False, in_loss=False, **controller):
    return {
        "algorithm": {
            "use_kl_in_reward": in_reward,
            "kl_penalty": "low_var_kl",
            "kl_ctrl": {
                "type": "adaptive",
                "kl_coef": 0.001,
                "target_kl": 0.02,
                "horizon": 10000,
                **controller,
            },
        },
        "actor_rollout_ref": {
            "actor": {"use_kl_loss": in_loss, "kl_loss_coef": 0.01, "kl_loss_type": "k2"}
        },
    }


def test_an_adaptive_penalty_in_the_reward_has_target_and_horizon():
    assert kl_settings(config(in_reward=True), NEWEST) == KlSettings(
        0.001, 0.02, 10000.0, "low_var_kl"
    )


def test_a_fixed_penalty_has_neither():
    found = kl_settings(config(in_reward=True, type="fixed"), NEWEST)
    assert found == KlSettings(0.001, estimator="low_var_kl")


def test_a_penalty_in_the_loss_is_never_adaptive():
    found = kl_settings(config(in_loss=True), NEWEST)
    assert found == KlSettings(0.01, estimator="k2", placement=Placement.LOSS)


def test_a_probe_in_the_reward_beside_a_loss_leaves_the_loss_to_act():
    found = kl_settings(config(in_reward=True, in_loss=True, type="fixed", kl_coef=0), NEWEST)
    assert found.placement is Placement.LOSS


def test_no_penalty_is_a_coefficient_of_nothing():
    found = kl_settings(config(), NEWEST)
    assert found.kl_coef == 0
    overrides = kl_overrides(found, NEWEST)
    assert overrides["algorithm.use_kl_in_reward"] is True
    assert overrides["algorithm.kl_ctrl.type"] == "fixed"
    assert overrides["algorithm.kl_ctrl.kl_coef"] == 0
    assert overrides["actor_rollout_ref.actor.use_kl_loss"] is False


def test_a_second_penalty_in_the_loss_stays_the_users_own():
    found = kl_settings(config(in_reward=True, in_loss=True), NEWEST)
    assert "actor_rollout_ref.actor.use_kl_loss" not in kl_overrides(found, NEWEST)


def test_the_two_sides_of_a_clip_range_stay_unless_it_is_searched():
    assert not any("clip_ratio" in key for key in kl_overrides(KlSettings(0.1), NEWEST))
    searched = kl_overrides(KlSettings(0.1, clip_ratio=0.15), NEWEST)
    assert {
        searched[f"actor_rollout_ref.actor.clip_ratio{side}"] for side in ("_low", "_high")
    } == {0.15}


def test_a_penalty_in_the_loss_is_measured_by_the_metric_of_all_releases():
    overrides = kl_overrides(KlSettings(0.01, placement=Placement.LOSS), NEWEST)
    assert overrides["actor_rollout_ref.actor.kl_loss_coef"] == 0.01
    assert overrides["algorithm.use_kl_in_reward"] is True
    assert overrides["algorithm.kl_ctrl.kl_coef"] == 0.0


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_what_is_written_is_read_back(release):
    settings = KlSettings(0.05, 0.015, 5000.0, "kl")
    tree = {}
    for key, value in kl_overrides(settings, release).items():
        node = tree
        *parents, name = key.lstrip("+").split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    assert kl_settings(tree, release) == settings


def test_every_key_that_a_trial_sets_has_a_reason():
    known = reasons(NEWEST)
    for settings in (KlSettings(0.1, 0.02, 1e4, "kl"), KlSettings(0.1, placement=Placement.LOSS)):
        for key in kl_overrides(settings, NEWEST):
            assert known[key.lstrip("+")], key
    assert known[NEWEST.path(Key.TOTAL_STEPS)]
