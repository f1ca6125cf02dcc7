import numpy
import pytest

from kltune.domain.steps import Step
from kltune.validation import Observed, Results, Tally, curve


def observed(score, chances, seed=0, problems=300):
    """A run of 60 steps whose score and pass@1 follow two functions of the step."""
    rng = numpy.random.default_rng(seed)
    steps = [Step(n, reference_kl=0.001 * n, score=score(n)) for n in range(1, 61)]
    difficulty = rng.uniform(-0.2, 0.2, problems)
    results = {
        n: Results(
            {
                str(i): Tally(int(rng.random() < chances(n) + d), 1)
                for i, d in enumerate(difficulty)
            }
        )
        for n in range(0, 61, 10)
    }
    return Observed(steps, results)


def test_a_score_that_rises_while_pass_at_1_falls_is_hacked():
    runs = [
        observed(lambda n: n / 60, lambda n: 0.5 + 0.2 * (1 - abs(n - 30) / 30), seed)
        for seed in range(3)
    ]
    found = curve(runs)
    assert found.peak.step in (20, 30, 40)
    assert found.peak.kl == pytest.approx(0.001 * (found.peak.step - 1))
    assert found.parted in (50, 60)
    assert "the reward is being hacked" in found.reason


def test_settings_that_lose_pass_at_1_again_are_told_from_a_run_that_did():
    runs = [
        observed(lambda n: n / 60, lambda n: 0.6 - n / 150, seed, problems=600)
        for seed in range(5)
    ]
    assert curve(runs).declined
    assert not curve(runs[:1]).declined  # other trainings may do otherwise


def test_one_training_that_collapses_says_little_of_the_settings():
    runs = [observed(lambda n: n / 60, lambda n: 0.5 + n / 600, seed) for seed in range(4)]
    runs.append(observed(lambda n: n / 60, lambda n: 0.6 - n / 110, 4))
    assert not curve(runs).declined


def test_the_luck_of_trainings_is_seldom_taken_for_a_decline():
    # Each training has its own course: a random walk of about 3 points from validation to
    # validation, the same for all of its problems.
    declined = 0
    for number in range(200):
        rng = numpy.random.default_rng(number)
        runs = []
        for seed in range(3):
            course = dict(zip(range(0, 61, 10), rng.normal(0, 0.03, 7).cumsum(), strict=True))
            runs.append(
                observed(lambda n: 0.5, lambda n, c=course: 0.5 + c[n], 10 * number + seed, 80)
            )
        declined += curve(runs).declined
    assert declined <= 10


def test_a_run_that_learns_is_not():
    runs = [observed(lambda n: n / 60, lambda n: 0.4 + n / 200, seed) for seed in range(3)]
    found = curve(runs)
    assert found.parted is None
    assert found.peak.step >= 50


def test_a_collapse_of_both_is_no_hacking():
    runs = [observed(lambda n: 1 - n / 60, lambda n: 0.7 - n / 120, seed) for seed in range(3)]
    assert curve(runs).parted is None


def test_noise_is_not_taken_for_hacking():
    parted = 0
    for number in range(40):
        runs = [
            observed(lambda n: n / 60, lambda n: 0.5, 10 * number + seed, problems=80)
            for seed in range(3)
        ]
        parted += curve(runs).parted is not None
    assert parted <= 4


def test_the_distance_is_the_root_of_kl_and_begins_at_nothing():
    found = curve([observed(lambda n: 0.5, lambda n: 0.5)])
    assert [p.step for p in found.points] == [0, 10, 20, 30, 40, 50, 60]
    assert found.points[0].distance == 0
    assert found.points[-1].distance == pytest.approx(0.059**0.5)


def test_one_validation_makes_no_curve():
    run = observed(lambda n: 0.5, lambda n: 0.5)
    assert curve([Observed(run.steps, {60: run.results[60]})]) is None
    assert curve([]) is None
