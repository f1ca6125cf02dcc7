import json

import pytest

from kltune.calibration.fresh import set_stage_aside
from kltune.calibration.record import Calibration
from kltune.cli.app import main
from kltune.launchers.local import LocalLauncher
from kltune.trial.records import read, save

from ..calibration.test_resume import wait_for_line
from ..calibration.test_scale import SIZES
from ..drift.data import row, write


@pytest.fixture
def calibrated(project):
    """A workspace with a reference whose penalty holds the training down."""
    write(project.path / "train.parquet", [row(n) for n in range(200)])
    write(project.path / "test.parquet", [row(n, split="test") for n in range(300)])
    project.write(
        verl={"env": {"STAND_IN_STEP_S": "0.001", "STAND_IN_PROBLEMS": "300"}},
        search={"trials": 1, "steps": 8, "confirmations": 0},
        validate={"seeds": 3},
        band={"high": 0.08},
    )
    project.content["verl"]["overrides"] |= {
        "algorithm.kl_ctrl.type": "fixed",
        "algorithm.kl_ctrl.kl_coef": 1.0,
    }
    project.write()
    assert main(["baseline", "--quiet"]) in (0, 1)
    made = read(project.workspace.calibration, Calibration)
    assert made.settings is not None
    assert made.winner == "search-000"
    return project


def validated(capsys, *words):
    capsys.readouterr()
    code = main(["validate", "--format", "json", "--quiet", *words])
    return code, json.loads(capsys.readouterr().out)


def test_calibrated_settings_that_are_better_are_found_to_be(calibrated, capsys):
    code, report = validated(capsys)
    assert code == 0
    assert report["finding"] == "improved"
    levels = report["tasks"]["test"]["levels"]
    assert levels["base"]["pass_at_1"] < levels["calibrated"]["pass_at_1"]
    assert levels["base"]["seeds"] == 3
    found = report["tasks"]["test"]["comparisons"]
    assert set(found) == {
        "calibrated over reference", "calibrated over base", "reference over base"
    }  # fmt: skip
    expected = levels["calibrated"]["pass_at_1"] - levels["reference"]["pass_at_1"]
    assert found["calibrated over reference"]["difference"] == pytest.approx(expected)
    curves = report["tasks"]["test"]["curves"]
    for arm in ("reference", "calibrated"):
        points = curves[arm]["points"]
        assert [p["step"] for p in points] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
        assert points[0]["pass_at_1"] == levels["base"]["pass_at_1"]
    assert points[-1]["sqrt_kl"] == pytest.approx(points[-1]["kl"] ** 0.5)
    assert main(["export", "-o", "out", "--quiet"]) == 0
    header = (calibrated.path / "out" / "config.yaml").read_text()
    assert "# Validated on 3 fresh seeds: improved" in header
    assert "pass@1 peaked at a reference KL of 0.0" in header


def test_people_see_levels_differences_curves_and_what_the_protocol_expects(calibrated, capsys):
    capsys.readouterr()
    assert main(["validate", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "test: 300 problems, 3 seeds, greedy" in out
    assert "The protocol expects +5 to +10 % of a stable KL" in out
    assert "calibrated over sqrt(KL)" in out
    assert "pass@1 peaks at" in out
    assert "improved: test: +" in out


def test_settings_that_have_become_worse_end_with_code_1(calibrated, capsys):
    made = read(calibrated.workspace.calibration, Calibration)
    swapped = json.loads(calibrated.workspace.calibration.read_text())
    swapped["settings"], swapped["reference"] = swapped["reference"], swapped["settings"]
    calibrated.workspace.calibration.write_text(json.dumps(swapped))
    code, report = validated(capsys)
    assert (code, report["finding"]) == (1, "regressed")
    save(calibrated.workspace.calibration, made)


def test_run_again_it_trains_nothing_twice_and_adds_seeds(calibrated, capsys):
    _, first = validated(capsys, "--seeds", "2")
    began = len(calibrated.journal("trial-started"))
    _, again = validated(capsys, "--seeds", "2")
    assert len(calibrated.journal("trial-started")) == began
    assert again["tasks"] == first["tasks"]
    _, more = validated(capsys, "--seeds", "3")
    assert len(calibrated.journal("trial-started")) == began + 2
    assert more["seeds"][:2] == first["seeds"]


def test_seeds_are_paired_and_fresh(calibrated, capsys):
    _, report = validated(capsys, "--seeds", "2")
    trials = [e["trial"] for e in calibrated.journal("trial-started")][-4:]
    assert trials == ["reference-1", "calibrated-1", "reference-2", "calibrated-2"]
    assert set(report["seeds"]).isdisjoint({1, 1001})


def test_a_trial_that_dies_takes_its_seed_out_of_the_comparison(calibrated, capsys):
    # verl ends before its first step, so that no validation was ever made.
    calibrated.write(scenario="crash-before-step-1@calibrated-2")
    capsys.readouterr()
    # The environment is part of what a workspace was made with.
    assert main(["validate", "--quiet"]) == 3
    identity = json.loads(calibrated.workspace.identity.read_text())
    identity["made_with"]["verl.env"]["STAND_IN"] = "crash-before-step-1@calibrated-2"
    calibrated.workspace.identity.write_text(json.dumps(identity))
    _, report = validated(capsys)
    assert list(report["left_out"]) == ["calibrated-2"]
    assert len(report["seeds"]) == 2
    assert report["tasks"]["test"]["levels"]["reference"]["seeds"] == 2


def test_another_test_set_is_another_validation(calibrated, capsys):
    validated(capsys, "--seeds", "1")
    other = write(calibrated.path / "other.parquet", [row(n) for n in range(300)])
    assert main(["validate", "--quiet", "--seeds", "1", "--task", str(other)]) == 3
    # The --fresh of kltune run, which validates as well, would set the calibration aside, too.
    said = capsys.readouterr().err
    assert "made otherwise; kltune validate --fresh sets it aside" in said
    code, report = validated(capsys, "--seeds", "1", "--task", str(other), "--fresh")
    assert (code, list(report["tasks"])) == (0, ["other"])
    assert (calibrated.workspace.path / "set-aside" / "validate-1").is_dir()


def test_every_test_set_has_its_curves(calibrated, capsys):
    half = [row(n, split="test") for n in range(300)]
    first = write(calibrated.path / "first.parquet", half[:150])
    second = write(calibrated.path / "second.parquet", half[150:])
    _, report = validated(capsys, "--seeds", "2", "--task", str(first), "--task", str(second))
    curves = {task: found["curves"] for task, found in report["tasks"].items()}
    assert {task: set(arms) for task, arms in curves.items()} == {
        "first": {"reference", "calibrated"}, "second": {"reference", "calibrated"}
    }  # fmt: skip
    peaks = {task: arms["calibrated"]["peak"]["pass_at_1"] for task, arms in curves.items()}
    assert peaks["first"] != peaks["second"]
    assert main(["export", "-o", "out", "--quiet"]) == 0
    header = (calibrated.path / "out" / "config.yaml").read_text()
    assert "# first: pass@1 peaked at" in header
    assert "# second: pass@1 peaked at" in header


def test_thirty_problems_ask_for_repeated_samples(calibrated, capsys):
    few = write(calibrated.path / "few.parquet", [row(n) for n in range(300)][:30])
    assert main(["validate", "--quiet", "--task", str(few)]) == 3
    err = capsys.readouterr().err
    assert (
        "few has 30 problems, so with 1 answer(s) to each a pass@1 of 50 % is off by up to 18"
        in (err)
    )
    assert "give samples: 32" in err


def test_several_answers_are_sampled_and_counted(calibrated, capsys):
    calibrated.write(validate={"samples": 4, "pass_at": [2, 4]})
    code, report = validated(capsys, "--seeds", "2")
    assert code == 0
    level = report["tasks"]["test"]["levels"]["calibrated"]
    assert level["samples"] == 4
    assert level["pass_at_1"] < level["pass_at"]["2"] < level["pass_at"]["4"]
    script = calibrated.workspace.trial("validate", "calibrated-1").attempt(1).command.read_text()
    assert "val_kwargs.n=4" in script
    assert "val_kwargs.do_sample=true" in script


def test_a_test_set_that_cannot_be_fetched_is_said_before_anything_runs(
    calibrated, capsys, monkeypatch, tmp_path
):
    pytest.importorskip("datasets")
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *a, **k: (_ for _ in ()).throw(ConnectionError("no route"))
    )
    assert main(["validate", "--quiet", "--task", "gsm8k"]) == 4
    err = capsys.readouterr().err
    assert "neither in the cache of datasets nor to be had from the hub here (no route)" in err
    assert calibrated.workspace.trials("validate") == []


def test_nothing_is_validated_without_a_calibration(project, capsys):
    write(project.path / "test.parquet", [row(n) for n in range(300)])
    write(project.path / "train.parquet", [row(n) for n in range(10)])
    assert main(["validate", "--quiet"]) == 1
    assert "holds no calibration yet" in capsys.readouterr().err


def test_where_answers_would_not_be_seen_nothing_is_trained(calibrated, capsys):
    calibrated.write(cluster={"shared": False})
    identity = json.loads(calibrated.workspace.identity.read_text())
    identity["made_with"]["cluster"]["shared"] = False
    calibrated.workspace.identity.write_text(json.dumps(identity))
    assert main(["validate", "--quiet"]) == 3
    assert "cluster.shared: false" in capsys.readouterr().err
    assert calibrated.workspace.trials("validate") == []


def test_side_by_side_the_same_is_found(calibrated, capsys):
    _, together = validated(capsys, "--parallel", "3")
    _, alone = validated(capsys, "--fresh")
    assert {**together, "finished": 0} == {**alone, "finished": 0}


def test_what_a_killed_validation_left_running_ends_when_it_is_set_aside(calibrated):
    calibrated.write("waits-at=2")
    identity = json.loads(calibrated.workspace.identity.read_text())
    identity["made_with"]["verl.env"]["STAND_IN"] = "waits-at=2"
    calibrated.workspace.identity.write_text(json.dumps(identity))
    process = calibrated.start("validate", "--parallel", "2")
    for name in ("reference-1", "calibrated-1"):
        wait_for_line(process, f"{name}: step 1/")
    process.kill()
    process.communicate()
    assert calibrated.left_behind()
    with calibrated.workspace.locked():
        set_stage_aside(calibrated.workspace, "validate")
    assert calibrated.left_behind() == []


def test_run_carries_out_the_stages_that_the_settings_name(project, monkeypatch, capsys):
    monkeypatch.setattr("kltune.calibration.crews.open_launcher", lambda _: LocalLauncher())
    write(project.path / "train.parquet", [row(n) for n in range(200)])
    write(project.path / "test.parquet", [row(n, split="test") for n in range(300)])
    project.content["verl"]["overrides"] |= SIZES
    project.content["verl"]["env"] |= {"STAND_IN_STEP_S": "0.001", "STAND_IN_PROBLEMS": "300"}
    project.write(search={"trials": 3}, scale={"nodes": [2], "trials": 1}, validate={"seeds": 2})
    assert main(["run", "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["calibrated"]
    assert [r["nodes"] for r in result["scale"]] == [2]
    assert result["scale"][0]["calibrated"]
    assert result["validation"]["seeds"] == [100_002, 100_003]
    assert (project.workspace.calibrated / "nodes-2" / "config.yaml").is_file()
    header = (project.workspace.calibrated / "config.yaml").read_text()
    assert "# Validated on 2 fresh seeds" in header
    assert main(["run"]) == 0
    out = capsys.readouterr().out
    for text in ("calibrated: average reference KL", "2 nodes", "pass@1"):
        assert text in out


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"scale": {"nodes": [2]}}, "only a CPU can stand in for several"),
        ({"validate": {"tasks": ["few.parquet"]}}, "few has 30 problems"),
    ],
    ids=["scale", "validate"],
)
def test_a_later_stage_that_cannot_start_is_told_before_the_first_trial(
    project, capsys, sections, said
):
    write(project.path / "few.parquet", [row(n, split="test") for n in range(30)])
    project.write(**sections)
    assert main(["run"]) == 3
    assert said in capsys.readouterr().err
    assert project.trials() == []
    # The baseline alone needs none of it.
    assert main(["baseline", "--quiet", "--trials", "1"]) in (0, 1)


def test_settings_found_since_are_validated_anew(calibrated, capsys):
    validated(capsys)
    swapped = json.loads(calibrated.workspace.calibration.read_text())
    swapped["settings"]["kl_coef"] *= 2
    calibrated.workspace.calibration.write_text(json.dumps(swapped))
    capsys.readouterr()
    assert main(["validate", "--format", "json"]) == 0
    said = capsys.readouterr()
    assert "the baseline has found other settings since; validated anew" in said.err
    assert (
        f"kl_coef={swapped['settings']['kl_coef']:.4g}"
        in json.loads(said.out)["settings"]["calibrated"]
    )


@pytest.mark.parametrize(("ending", "code"), [("stopped", 0), ("completed", 5)])
def test_answers_that_were_being_written_when_a_rule_ended_the_run(
    calibrated, capsys, ending, code
):
    validated(capsys)
    attempt = calibrated.workspace.trial("validate", "calibrated-1").attempt(1)
    result = json.loads(attempt.result.read_text())
    result["attempt"]["ending"] = ending
    attempt.result.write_text(json.dumps(result))
    dump = attempt.validation / "8.jsonl"
    dump.write_text(dump.read_text()[:-30])
    assert main(["validate", "--quiet"]) == code
