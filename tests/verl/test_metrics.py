"""verl's metric names become one step record."""

from __future__ import annotations

import math

import pytest

from kltune.domain.steps import NUMBERS
from kltune.verl.metrics import METRICS, step_record


@pytest.mark.parametrize(
    ("verl", "data", "number", "value"),
    [
        ("0.3", {"critic/kl": 0.1}, "reference_kl", 0.1),
        ("0.3", {"critic/kl_coeff": 0.001}, "coefficient", 0.001),
        ("0.3", {"actor/entropy_loss": 0.5}, "entropy", 0.5),
        (
            "0.4 to 0.9",
            {"actor/reward_kl_penalty": 0.1, "actor/kl_loss": 9.0},
            "reference_kl",
            0.1,
        ),
        ("0.4 to 0.9", {"actor/reward_kl_penalty_coeff": 0.02}, "coefficient", 0.02),
        ("0.6.0", {"mismatch/mismatch_kl": 0.02}, "mismatch_kl", 0.02),
        ("0.6.1 to 0.9", {"rollout_corr/kl": 0.02}, "mismatch_kl", 0.02),
        ("engine", {"actor/entropy": 0.5, "actor/entropy_loss": 9.0}, "entropy", 0.5),
        ("loss only", {"actor/kl_loss": 0.1, "actor/kl_coef": 0.001}, "reference_kl", 0.1),
        ("loss only", {"actor/kl_loss": 0.1, "actor/kl_coef": 0.001}, "coefficient", None),
        ("forks", {"actor/prefix_ppo_kl": 3.0, "actor/cont_ppo_kl": 0.0}, "update_kl", None),
        ("forks", {"actor/token_kl/mean": -0.5}, "reference_kl", None),
    ],
)
def test_names_of_a_release(
    verl: str, data: dict[str, float], number: str, value: float | None
) -> None:
    step = step_record(1, data)
    assert getattr(step, number) == value
    assert step.names.get(number) in (*METRICS[number], None)
    assert step.raw == data


def test_the_map_and_the_record_know_the_same_numbers() -> None:
    assert set(METRICS) == set(NUMBERS)


def test_a_kl_keeps_its_metric_and_caveat() -> None:
    loss = step_record(1, {"actor/kl_loss": 0.1}).kl_source
    assert loss is not None
    assert loss.metric == "actor/kl_loss"
    assert "0.7" in loss.caveat
    assert step_record(1, {"actor/ppo_kl": 0.1}).kl_source is None


def test_validation_scores_of_all_releases() -> None:
    data = {
        "val/test_score/openai/gsm8k": 0.5,
        "val-core/openai/gsm8k/reward/mean@1": 0.5,
        "val-aux/num_turns/mean": 2.0,
    }
    assert set(step_record(0, data).validation) == set(data) - {"val-aux/num_turns/mean"}


def test_non_finite_numbers_are_found_by_verls_name() -> None:
    step = step_record(1, {"actor/ppo_kl": math.nan, "critic/vf_explained_var": -math.inf})
    assert [name for name, _ in step.non_finite()] == ["actor/ppo_kl", "critic/vf_explained_var"]
