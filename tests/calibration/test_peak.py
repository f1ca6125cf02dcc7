from dataclasses import replace

import pytest

from kltune.calibration.peak import choose
from kltune.calibration.record import Calibration
from kltune.calibration.validation import TaskReport, ValidationReport
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Band, Ending, Outcome, Summary
from kltune.domain.trials import Role, Trial
from kltune.errors import NotCalibratedError
from kltune.validation import Curve, Finding, Point

ADAPTIVE = KlSettings(0.001, target_kl=0.02, horizon=10000, estimator="low_var_kl")
FIXED = KlSettings(0.002, estimator="low_var_kl")


def trial(name, settings, kl, coefficient=None, ending=Ending.COMPLETED, critical=()):
    summary = Summary(10, kl=kl, coefficient=coefficient or settings.kl_coef)
    role = Role.REFERENCE if name == "reference" else Role.SEARCH
    return Trial(name, role, settings, 1, Outcome(ending, "", summary, critical, 1, 0, 1))


def calibration(settings, *trials):
    return Calibration(
        stage="baseline",
        calibrated=True,
        reason="inside",
        settings=settings,
        winner="search-000" if settings else None,
        reference=KlSettings(0.5, estimator="low_var_kl"),
        best_outside=None,
        band=Band(0.01, 0.03),
        trials=trials,
        steps=10,
        held_fixed={},
        overrides={},
        environment={},
        command=(),
        nodes=1,
        gpus_per_node=1,
        about={},
        origins={},
        seconds=1,
        gpu_hours=0,
        verl="0.9.1",
        kltune="0",
        finished=0,
    )


def curve(kls, levels, declined=True):
    points = tuple(
        Point(10 * n, kl, 0.5, level)
        for n, (kl, level) in enumerate(zip(kls, levels, strict=True))
    )
    return Curve(points, max(points, key=lambda p: p.pass_at_1), None, declined, "")


def report(settings, **curves):
    tasks = {
        name: TaskReport(300, {}, {}, {"calibrated": drawn}) for name, drawn in curves.items()
    }
    return ValidationReport(
        finding=Finding.IMPROVED,
        reason="",
        settings={"reference": "other", "calibrated": settings.describe()},
        seeds=(1, 2, 3),
        left_out={},
        tasks=tasks,
        samples=1,
        finished=0,
    )


HACKED = curve([0, 0.004, 0.0123, 0.02, 0.024], [0.4, 0.5, 0.6, 0.5, 0.3])


def test_where_pass_at_1_holds_the_winner_is_exported():
    made = calibration(ADAPTIVE, trial("search-000", ADAPTIVE, 0.02))
    noise = curve([0, 0.01, 0.02], [0.4, 0.6, 0.59], declined=False)
    for found in (None, report(ADAPTIVE, gsm8k=noise), report(FIXED, gsm8k=HACKED)):
        choice = choose(made, found)
        assert (choice.settings, choice.origin) == (ADAPTIVE, "trial search-000")
        assert (choice.moved, choice.measured, choice.reason) == (False, True, "")


def test_an_adaptive_coefficient_aims_at_the_kl_of_the_peak():
    made = calibration(ADAPTIVE, trial("search-000", ADAPTIVE, 0.02))
    choice = choose(made, report(ADAPTIVE, gsm8k=HACKED))
    assert choice.settings == replace(ADAPTIVE, target_kl=0.0123)
    assert (choice.moved, choice.measured) == (True, False)
    assert choice.reason == (
        "gsm8k: pass@1 fell from 0.600 at a reference KL of 0.0123 nats/token (step 20) to 0.300 "
        "at 0.0240 (step 40), beyond the chance of problems and seeds. That KL is the target now"
    )


def test_it_begins_with_the_coefficient_that_the_trials_show_for_that_kl():
    stronger = replace(ADAPTIVE, kl_coef=0.1)
    made = calibration(
        ADAPTIVE, trial("search-000", ADAPTIVE, 0.02), trial("search-001", stronger, 0.002)
    )
    found = choose(made, report(ADAPTIVE, gsm8k=HACKED)).settings
    assert found.target_kl == 0.0123
    assert 0.001 < found.kl_coef < 0.01


def test_a_trial_that_measured_that_kl_goes_first():
    nearest, near = replace(ADAPTIVE, target_kl=0.012), replace(ADAPTIVE, target_kl=0.014)
    trials = [
        trial("search-000", ADAPTIVE, 0.02),
        trial("search-001", near, 0.0140),
        trial("search-002", nearest, 0.0120),
        trial("search-003", replace(nearest, kl_coef=1), 0.0123, critical=("kl-divergence",)),
        trial("search-004", replace(nearest, estimator="kl"), 0.0123),
        trial("search-005", replace(nearest, kl_coef=2), 0.0123, ending=Ending.STOPPED),
    ]
    choice = choose(calibration(ADAPTIVE, *trials), report(ADAPTIVE, gsm8k=HACKED))
    assert choice.settings == nearest
    assert (choice.moved, choice.measured) == (True, True)
    assert choice.origin == "trial search-002, nearest to the peak of pass@1"
    assert choice.reason.endswith("search-002 held 0.0120")


def test_the_mean_over_the_seeds_of_a_setting_counts():
    near = replace(ADAPTIVE, target_kl=0.012)
    again = replace(trial("confirm-winner-1", near, 0.03), role=Role.CONFIRM_WINNER, seed=2)
    made = calibration(
        ADAPTIVE, trial("search-000", ADAPTIVE, 0.02), trial("search-001", near, 0.012), again
    )
    assert choose(made, report(ADAPTIVE, gsm8k=HACKED)).settings == replace(
        ADAPTIVE, target_kl=0.0123
    )


def test_a_fixed_coefficient_is_read_off_the_trials_curve():
    made = calibration(
        FIXED,
        trial("reference", replace(FIXED, kl_coef=0.5), 0.001),
        trial("search-000", FIXED, 0.024),
        trial("search-001", replace(FIXED, kl_coef=0.02), 0.006),
    )
    choice = choose(made, report(FIXED, gsm8k=HACKED))
    assert (choice.moved, choice.measured) == (True, False)
    # KL falls fourfold over a tenfold coefficient; half of that way is wanted.
    assert choice.settings.kl_coef == pytest.approx(0.002 * 10**0.482, rel=0.01)
    assert choice.settings.target_kl is None


def test_the_curve_is_never_asked_beyond_the_trials():
    made = calibration(FIXED, trial("search-000", FIXED, 0.024))
    choice = choose(made, report(FIXED, gsm8k=HACKED))
    assert (choice.settings, choice.moved) == (FIXED, False)
    assert "the coefficient that holds it is not known" in choice.reason


def test_a_target_alone_is_not_moved_where_the_controller_did_not_hold_it():
    made = calibration(ADAPTIVE, trial("search-000", ADAPTIVE, 0.028))
    choice = choose(made, report(ADAPTIVE, gsm8k=HACKED))
    assert (choice.settings, choice.moved) == (ADAPTIVE, False)
    assert "the coefficient that holds it is not known" in choice.reason


def test_a_fall_at_the_same_kl_is_not_the_kls():
    made = calibration(ADAPTIVE, trial("search-000", ADAPTIVE, 0.02))
    late = curve([0, 0.019, 0.02, 0.021], [0.4, 0.6, 0.5, 0.3])
    choice = choose(made, report(ADAPTIVE, gsm8k=late))
    assert not choice.moved
    assert choice.reason.endswith("so it is the length of the training: end it at step 10")


def test_a_training_that_only_loses_is_for_people_to_look_at():
    made = calibration(ADAPTIVE, trial("search-000", ADAPTIVE, 0.02))
    choice = choose(made, report(ADAPTIVE, gsm8k=curve([0, 0.01, 0.02], [0.6, 0.5, 0.3])))
    assert not choice.moved
    assert choice.reason.endswith("verify the reward")


def test_of_several_test_sets_the_one_that_peaks_first_decides():
    made = calibration(ADAPTIVE, trial("search-000", ADAPTIVE, 0.02))
    first = curve([0, 0.005, 0.02], [0.4, 0.6, 0.3])
    choice = choose(made, report(ADAPTIVE, gsm8k=HACKED, aime24=first))
    assert choice.settings.target_kl == 0.005
    assert "aime24: pass@1 fell" in choice.reason
    assert "The peak lies outside the band 0.01 to 0.03" in choice.reason


def test_nothing_is_chosen_where_nothing_was_found():
    with pytest.raises(NotCalibratedError, match="nothing to export or train with"):
        choose(calibration(None), None)
