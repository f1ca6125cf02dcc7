import json

import pytest

from kltune.cli.app import main


def roles(project):
    return [trial.role.value for trial, _ in project.trials()]


def test_reference_search_and_confirmation_lead_to_a_calibrated_verdict(project):
    assert main(["run", "--quiet"]) == 0
    project.assert_consistent()
    assert roles(project) == [
        "reference",
        "search",
        "search",
        "search",
        "confirm-winner",
        "confirm-reference",
    ]
    calibration = project.calibration()
    assert calibration["calibrated"] is True
    assert 0.01 < calibration["settings"]["kl_coef"] < 0.05
    assert calibration["held_fixed"]["sequences per step"] == 64
    seeds = {trial.role.value: trial.seed for trial, _ in project.trials()}
    assert seeds["reference"] == seeds["search"] == 1
    assert seeds["confirm-winner"] == seeds["confirm-reference"] == 1001
    [verdict] = project.journal("verdict")
    assert verdict["winner"] == calibration["winner"]
    sources = [entry["source"] for entry in project.journal("proposal")]
    assert sources[0] == "guess"
    assert "curve" in sources
    assert (project.workspace.calibrated / "config.yaml").is_file()


def test_a_finished_calibration_runs_nothing_again(project):
    project.write(search={"trials": 1})
    main(["run", "--quiet"])
    before = [trial for trial, _ in project.trials()]
    journal = project.journal()
    main(["run", "--quiet"])
    assert [trial for trial, _ in project.trials()] == before
    assert project.journal("trial-started") == [e for e in journal if e["what"] == "trial-started"]
    project.assert_consistent()


def test_more_trials_go_on_where_fewer_have_ended(project):
    assert main(["run", "--quiet", "--trials", "1"]) == 1
    first = [trial for trial, _ in project.trials()]
    assert main(["run", "--quiet", "--trials", "4"]) == 0
    assert [trial for trial, _ in project.trials()][: len(first)] == first
    assert roles(project).count("search") == 4
    project.assert_consistent()


@pytest.mark.parametrize("option", ["--timeout", "--max-gpu-hours"])
def test_a_spent_budget_starts_no_search_trial_and_a_raised_one_goes_on(project, option):
    project.write(search={"confirmations": 0})
    main(["run", "--quiet", option, "0.00001"])
    assert roles(project) == ["reference"]
    assert main(["run", "--quiet", option, "60"]) == 0
    assert roles(project).count("search") == 3


def test_a_search_trial_far_above_the_band_is_stopped_with_its_reason(project):
    project.write("explodes@search hangs-at=9@search", search={"trials": 1})
    assert main(["run", "--quiet"]) == 1
    [trial] = [trial for trial, _ in project.trials() if trial.role.value == "search"]
    assert trial.outcome.ending.value == "stopped"
    assert "kl-above-band" in trial.outcome.critical
    assert trial.outcome.summary.steps < 9
    [ended] = [e for e in project.journal("trial-ended") if e["trial"] == trial.name]
    assert "reference KL is above 0.06 nats/token" in ended["outcome"]["reason"]
    [point] = project.study()
    assert point.state.name == "PRUNED"


def test_the_reference_runs_on_where_a_candidate_would_be_stopped(project):
    project.content["verl"]["overrides"]["algorithm.kl_ctrl.kl_coef"] = 1e-5
    project.write(search={"trials": 0}, band={"low": 0.001, "high": 0.01})
    main(["run", "--quiet"])
    [(reference, _)] = project.trials()
    assert reference.outcome.summary.kl > 0.06
    assert reference.outcome.ending.value == "completed"


def test_without_a_feasible_trial_nothing_is_confirmed_or_exported(project, capsys):
    project.write("explodes@search", search={"trials": 1})
    assert main(["run"]) == 1
    assert roles(project) == ["reference", "search"]
    assert not project.workspace.calibrated.exists()
    assert main(["export", "-o", "here"]) == 1
    assert "nothing to export" in capsys.readouterr().err


def test_several_fresh_seeds_confirm(project):
    project.write(search={"confirmations": 2})
    assert main(["run", "--quiet"]) == 0
    seeds = [t.seed for t, _ in project.trials() if t.role.value == "confirm-winner"]
    assert sorted(seeds) == [1001, 2001]
    assert "on 2 fresh seed(s)" in project.calibration()["reason"]


def test_kl_off_is_one_of_the_trials_where_asked_for(project):
    project.write(search={"kl_off": True, "trials": 2, "confirmations": 0})
    main(["run", "--quiet"])
    off = [t for t, _ in project.trials() if t.settings.kl_coef == 0]
    assert len(off) == 1
    project.assert_consistent()


def test_a_penalty_in_the_loss_is_calibrated_by_its_coefficient(project):
    overrides = project.content["verl"]["overrides"]
    overrides["algorithm.use_kl_in_reward"] = False
    overrides["actor_rollout_ref.actor.use_kl_loss"] = True
    overrides["actor_rollout_ref.actor.kl_loss_coef"] = 0.003
    project.write(search={"trials": 1, "confirmations": 0})
    assert main(["run", "--quiet"]) in (0, 1)
    assert {t.settings.placement.value for t, _ in project.trials()} == {"loss"}
    script = project.attempt("search-000").command.read_text()
    assert "actor_rollout_ref.actor.use_kl_loss=true" in script
    assert "algorithm.kl_ctrl.kl_coef=0.0" in script


def test_the_study_may_live_elsewhere(project):
    storage = f"sqlite:///{project.path}/shared.db"
    project.write(search={"storage": storage, "trials": 1, "confirmations": 0})
    main(["run", "--quiet"])
    assert not (project.workspace.path / "study.db").exists()
    assert main(["run", "--quiet", "-w", "another"]) in (0, 1)
    import optuna

    # Two workspaces, two studies: trials under different settings must never be mixed.
    assert len(optuna.get_all_study_names(storage)) == 2


def test_a_study_that_was_removed_is_told(project, capsys):
    project.write(search={"trials": 1, "confirmations": 0})
    main(["run", "--quiet"])
    (project.workspace.path / "study.db").unlink()
    assert main(["run", "--trials", "2"]) == 4
    assert "the study does not hold trial 0" in capsys.readouterr().err


def test_starting_over_sets_the_old_content_aside_and_ends_what_still_runs(project):
    project.write("waits-at=5", search={"trials": 0, "confirmations": 0})
    process = project.start("run")
    assert any("log:" in line for line in process.stderr)
    process.kill()
    process.communicate()
    [old] = [p.pid for p in project.left_behind() if "main_ppo.py" in p.cmdline()[2]]
    (project.path / "gate").touch()
    assert main(["run", "--quiet", "--fresh"]) == 1
    assert old not in [p.pid for p in project.left_behind()]
    [aside] = project.path.glob("kltune-runs.*")
    assert json.loads((aside / "workspace.json").read_text())
    assert len(project.trials()) == 1


def test_where_machines_do_not_see_the_workspace_metrics_are_read_from_what_verl_prints(project):
    assert main(["run", "--quiet"]) == 0
    seen = project.calibration()
    project.write(cluster={"shared": False})
    assert main(["run", "--quiet", "--fresh"]) == 0
    attempt = project.attempt("reference")
    assert not attempt.metrics.exists()
    assert attempt.metrics.name not in attempt.command.read_text()
    printed = project.calibration()
    assert printed["settings"] == pytest.approx(seen["settings"])
    assert [t["outcome"]["summary"]["steps"] for t in printed["trials"]] == [10] * 6
