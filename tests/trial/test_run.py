"""One trial, whatever its process does: the reference of a baseline without a search."""

import json
import time

import pytest

from kltune.cli.app import main


@pytest.fixture
def outcome_of(project, capsys):
    """Run only the reference, under a scenario; return its outcome and attempts."""

    def run(scenario="", code=None, **sections):
        search = {"trials": 0, "confirmations": 0, **sections.pop("search", {})}
        project.write(scenario, search=search, **sections)
        found = main(["run", "--quiet"])
        assert code is None or found == code, capsys.readouterr().err
        assert project.left_behind() == []
        [(trial, attempts)] = project.trials()
        return trial.outcome, [a.attempt for a in attempts]

    return run


def test_a_run_that_ends_well_is_completed(outcome_of):
    outcome, [attempt] = outcome_of()
    assert outcome.ending.value == attempt.ending.value == "completed"
    assert outcome.summary.steps == 10
    assert outcome.reason == ""
    assert 0.04 < outcome.summary.kl < 0.07
    assert outcome.summary.validation_before == pytest.approx(0.4)
    assert outcome.summary.validation is not None


def test_a_nan_stops_the_trial_and_the_journal_says_why(outcome_of, project):
    outcome, [attempt] = outcome_of("nan-at=3 hangs-at=5")
    assert outcome.ending.value == "stopped"
    assert outcome.critical == ("non-finite",)
    assert attempt.finding.step == 3
    [entry] = [e for e in project.journal("finding") if e["finding"]["rule"] == "non-finite"]
    assert entry["trial"] == "reference"
    assert "step 3" in entry["finding"]["message"] or entry["finding"]["step"] == 3


def test_a_crash_of_the_training_fails_the_trial_with_its_own_words(outcome_of, project):
    outcome, [attempt] = outcome_of("crash-at=3")
    assert outcome.ending.value == "failed"
    assert "exception" in outcome.reason
    assert attempt.last_step == 2
    [(_, [result])] = project.trials()
    assert result.exit_code == 1
    assert result.last_words[-1] == "RuntimeError: shape mismatch in the actor"


@pytest.mark.parametrize("failure", ["oom-at=3", "killed-at=3"])
def test_a_failure_of_the_machine_is_retried_with_the_same_settings(outcome_of, project, failure):
    outcome, attempts = outcome_of(f"{failure}@attempt-1")
    assert outcome.ending.value == "completed"
    assert [a.ending.value for a in attempts] == ["crashed", "completed"]
    assert attempts[0].change == attempts[1].change
    assert [e["reason"].split(":")[0] for e in project.journal("attempt-again")] == [
        "the same settings again"
    ]
    project.assert_consistent()


def test_a_machine_that_fails_again_and_again_fails_the_trial(outcome_of):
    outcome, attempts = outcome_of("oom-at=3")
    assert outcome.ending.value == "failed"
    assert len(attempts) == 3
    assert "given up after 2 retries" in outcome.reason


def test_a_run_that_ends_early_without_an_error_is_not_completed(outcome_of):
    outcome, [attempt] = outcome_of("exits-early-at=4")
    assert outcome.ending.value == "failed"
    assert attempt.last_step == 3
    assert outcome.reason == "the run ended without an error after step 3, of 10 steps"


def test_a_run_that_hangs_is_ended_and_tried_again(outcome_of):
    thresholds = {"stall_floor_s": 0.3, "stall_factor": 0}
    outcome, attempts = outcome_of("hangs-at=3@attempt-1", watch={"thresholds": thresholds})
    assert outcome.ending.value == "completed"
    assert [a.ending.value for a in attempts] == ["stopped", "completed"]
    assert attempts[0].finding.rule == "stall"


def test_a_run_that_always_hangs_fails_and_says_nothing_about_its_settings(outcome_of):
    thresholds = {"stall_floor_s": 0.2, "stall_factor": 0}
    outcome, attempts = outcome_of("hangs-at=3", watch={"thresholds": thresholds})
    assert outcome.ending.value == "failed"
    assert len(attempts) == 3


def test_the_killed_data_loader_at_a_normal_end_is_no_error(outcome_of):
    outcome, _ = outcome_of("dataloader-line")
    assert outcome.ending.value == "completed"


def test_half_written_lines_are_read_whole(outcome_of):
    outcome, _ = outcome_of("half-lines")
    assert outcome.summary.steps == 10
    assert outcome.ending.value == "completed"


def test_without_a_metrics_file_the_console_is_read(outcome_of, project):
    outcome, _ = outcome_of("console-only")
    assert outcome.ending.value == "completed"
    assert outcome.summary.steps == 10
    assert not project.attempt("reference").metrics.exists()


def test_what_a_run_leaves_behind_is_ended(outcome_of):
    outcome, _ = outcome_of("leaves-grandchildren")
    assert outcome.ending.value == "completed"  # the fixture has looked for what is left


def test_the_attempt_directory_holds_all_that_was_run(outcome_of, project):
    outcome_of()
    attempt = project.attempt("reference")
    names = {path.name for path in attempt.path.iterdir()}
    assert {"attempt.json", "command.sh", "console.log", "metrics.jsonl", "result.json"} <= names
    script = attempt.command.read_text()
    assert f"trainer.default_local_dir={attempt.checkpoints}" in script
    assert "trainer.resume_mode=disable" in script
    assert f"VERL_FILE_LOGGER_PATH={attempt.metrics}" in script


def test_overrides_that_are_not_in_effect_end_the_trial_and_the_calibration(
    project, capsys, outcome_of
):
    scenario = "other-value=algorithm.kl_ctrl.kl_coef:0.5"
    outcome, [attempt] = outcome_of(scenario, code=4, search={"trials": 3})
    assert attempt.finding.rule == "override-not-in-effect"
    assert outcome.reason == (
        "verl trains with other settings than it was given: algorithm.kl_ctrl.kl_coef: should be "
        "0.001, and is 0.5 in the run"
    )


def test_a_reference_that_dies_at_once_ends_with_its_own_error_and_goes_on_when_mended(
    project, capsys
):
    package = project.path / "flash_attn"
    project.write(f"needs={package}", search={"trials": 0, "confirmations": 0})
    assert main(["run"]) == 4
    said = capsys.readouterr()
    assert "ModuleNotFoundError: No module named 'flash_attn'" in said.err
    assert "console.log" in said.err
    assert said.out == ""

    package.touch()
    assert main(["run", "--format", "json"]) in (0, 1)
    [trial] = json.loads(capsys.readouterr().out)["trials"]
    assert trial["outcome"]["ending"] == "completed"
    assert (project.workspace.stage("baseline") / "set-aside" / "reference-1").is_dir()


def test_a_search_that_cannot_start_ends_and_goes_on_when_mended(project, capsys):
    package = project.path / "flash_attn"
    project.write(f"needs={package}@search", search={"trials": 4, "confirmations": 0})
    assert main(["run"]) == 4
    assert "No module named 'flash_attn'" in capsys.readouterr().err
    package.touch()
    assert main(["run", "--quiet"]) in (0, 1)
    assert len(project.trials()) == 5
    assert {t.outcome.ending.value for t, _ in project.trials()} <= {"completed", "stopped"}


def test_an_attempt_that_ended_while_nobody_looked_took_its_own_time(project, outcome_of):
    outcome, _ = outcome_of()
    # kltune was killed before it wrote how the attempt ended, and comes back a day later.
    directory = project.workspace.trial("baseline", "reference")
    directory.outcome.unlink()
    directory.attempt(1).result.unlink()
    later = time.time() + 86_400
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kltune.trial.attempt.time.time", lambda: later)
        again, _ = outcome_of()
    assert again.ending.value == "completed"
    assert again.seconds == pytest.approx(outcome.seconds, abs=2)
