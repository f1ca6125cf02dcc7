"""What a user sees: exit codes, stdout against stderr, and no traceback ever."""

import json
import os
import re
import subprocess
import sys

import pytest

from kltune.cli.app import app, main

COMMANDS = [command.name for command in app.registered_commands]


@pytest.fixture
def run(capsys):
    """Run a command line; return its exit code, stdout and stderr."""

    def call(*words):
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback (most recent call last)" not in said.out + said.err
        return code, said.out, said.err

    return call


def shell(*words, cwd, **env):
    return subprocess.run(
        [sys.executable, "-m", "kltune", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
        check=False,
    )


def strict_json(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(run, command):
    code, out, err = run(command, "--help")
    assert code == 0
    assert f"kltune {command}" in " ".join(out.split())
    assert err == ""


def test_help_and_version_need_no_command(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Exit codes" in out
    assert run("--version")[1].startswith("kltune ")


@pytest.mark.parametrize(
    "words", [("nonsense",), ("run", "--nonsense"), ("run", "--trials", "many")]
)
def test_wrong_usage_is_2_and_says_so_on_stderr(run, words):
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert "Usage" in err


def test_a_whole_run_prints_data_on_stdout_and_progress_on_stderr(project, run):
    code, out, err = run("run", "--format", "json")
    assert code == 0
    data = strict_json(out)
    assert data["calibrated"] is True
    assert data["winner"] in {trial["name"] for trial in data["trials"]}
    assert "reference: kl_coef=0.001" in err
    assert "step 10/10" in err
    assert "kltune export" in err

    code, out, err = run("run", "--quiet")
    assert code == 0
    assert "calibrated: average reference KL" in out
    assert err == ""

    code, out, err = run("status", "--format", "json")
    assert code == 0
    assert strict_json(out)["calibrated"] is True

    code, out, err = run("export", "-o", project.path / "with blank", "--quiet")
    assert code == 0
    assert out.strip() == str(project.path / "with blank" / "config.yaml")


def test_numbers_that_are_not_finite_are_null_in_json(project, run):
    project.write("nan-kl-at=8", search={"trials": 0, "confirmations": 0})
    code, out, _ = run("run", "--format", "json")
    assert code == 1
    [trial] = strict_json(out)["trials"]
    assert trial["outcome"]["summary"]["kl"] is None


def test_nothing_started_is_1_with_a_way_on(project, run):
    for command in (("status",), ("export", "-o", "x")):
        code, out, err = run(*command)
        assert (code, out) == (1, "")
        assert "kltune run" in err


def test_plan_starts_and_writes_nothing(project, run):
    before = sorted(project.path.iterdir())
    code, out, _ = run("plan", "--format", "json", "--trials", "2")
    assert code == 0
    plan = strict_json(out)
    assert plan["trials"] == 1 + 2 + 2
    assert plan["steps"] == 10
    assert "main_ppo.py" in plan["script"]
    assert sorted(project.path.iterdir()) == before
    code, out, _ = run("plan", "--quiet")
    assert "Changed by kltune" in out


def test_doctor_looks_at_everything(project, run):
    code, out, _ = run("doctor", "--format", "json")
    checks = {check["name"]: check for check in strict_json(out)["checks"]}
    assert code in (0, 4)
    assert checks["verl's configuration"]["health"] == "good"
    assert (code == 4) is any(check["health"] == "missing" for check in checks.values())


def test_doctor_without_verl_says_how_to_get_it(project, run, monkeypatch):
    monkeypatch.setattr("kltune.verl.installation.find_spec", lambda name: None)
    code, out, _ = run("doctor")
    assert code == 4
    assert "pip install 'kltune[cpu]'" in out


def test_without_verl_nothing_is_started(project, run, monkeypatch):
    monkeypatch.setattr("kltune.verl.installation.find_spec", lambda name: None)
    code, out, err = run("run")
    assert (code, out) == (4, "")
    assert "verl: not installed" in err
    assert "pip install 'kltune[cpu]'" in err
    assert not project.workspace.path.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--preset", "cpu-tinny"), "did you mean cpu-tiny?"),
        (("--config", "none.yaml"), "none.yaml: there is no such file"),
        (("--set", "data.train_batch_sizee=8"), "near: data.train_batch_size"),
        (
            ("--set", "data.train_files=/no/such.parquet"),
            "there is no such file: /no/such.parquet",
        ),
        (("--set", "actor_rollout_ref.model.path=/no/model"), "there is no such directory"),
        (("--set", "algorithm.kl_ctrl.target_kl=0"), "must be > 0"),
        (("--set", "algorithm.kl_ctrl.kl_coef=-1"), "must be >= 0, got -1"),
        (("--set", "algorithm.kl_ctrl.kl_coef=much"), "a number is expected"),
        (("--set", "algorithm.kl_ctrl.kl_coef=null"), "a number is expected"),
        (("--set", "algorithm.kl_ctrl.kl_coef=nan"), "must be >= 0, got nan"),
        (("--set", "algorithm.kl_ctrl.kl_coef=0"), "an adaptive controller never leaves 0"),
        (("--set", "algorithm.kl_ctrl.horizon=12"), "must be above 12.8"),
        (
            ("--set", "algorithm.kl_ctrl.type=adaptiv"),
            "must be one of fixed, adaptive; got adaptiv",
        ),
        (("--set", "algorithm.kl_penalty=k9"), "got k9"),
        (("--set", "data.train_batch_size=0"), "must be at least 1, got 0"),
        (("--set", "actor_rollout_ref.rollout.n=0"), "must be at least 1, got 0"),
        (("--set", "algorithm.use_kl_in_reward=maybe"), "must be one of true, false; got maybe"),
        (("--set", "trainer.test_freq=often"), "must be a number of steps, got often"),
        (("--set", "trainer.logger=3"), "must be a list of names, got 3"),
        (("--set", "data.train_files=[]"), "data.train_files (--set): names no file"),
        (("--set", "data.train_batch_size"), "an override is key=value"),
        (("--set", "data.train_batch_size=[1"), "the brackets hold what Hydra cannot read"),
        (("--set", "data.train_files=3"), "there is no such file: 3"),
        (("--set", "data.train_files=~nobody-here/x"), "no such file: ~nobody-here/x"),
        (("--steps", "1"), "search.steps (--steps)"),
        (("--trials", "-1"), "search.trials (--trials)"),
        (("--timeout", "0"), "search.timeout_minutes (--timeout)"),
        (("--epochs", "inf"), "search.epochs (--epochs)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_3_with_the_value_and_a_way_out(project, run, words, says):
    code, out, err = run("run", *words)
    assert (code, out) == (3, ""), err
    assert err.startswith("kltune: invalid configuration\n")
    assert says in err
    assert not project.workspace.path.exists()


def test_every_fault_is_told_at_once(project, run):
    words = ["algorithm.kl_ctrl.target_kl=0", "algorithm.kl_ctrl.horizon=1", "data.val_files=/x"]
    code, _, err = run("run", *(part for word in words for part in ("--set", word)))
    assert code == 3
    assert len(err.splitlines()) == 4


def test_wrong_thresholds_and_profiles_are_named(project, run):
    thresholds = {"max_kll": 1.0, "kl_floor": float("nan")}
    project.write(watch={"profile": "robst", "thresholds": thresholds})
    code, _, err = run("run")
    assert code == 3
    assert "did you mean max_kl?" in err
    assert "kl_floor: must be a number, got nan" in err
    assert "did you mean robust?" in err


def test_a_workspace_that_is_a_file_or_below_one_is_4(project, run):
    (project.path / "file").write_text("")
    for path in ("file", "file/below"):
        code, out, err = run("run", "--workspace", path)
        assert (code, out) == (4, "")
        assert "cannot be written" in err
        assert "--workspace" in err


def test_a_full_disk_is_4(project):
    project.write(search={"trials": 1, "confirmations": 0})
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (20, 20)); "
    code = f"{limit}from kltune.cli.app import main; raise SystemExit(main(['run', '--quiet']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=project.path
    )
    assert done.returncode == 4, done.stderr
    assert re.search(r"cannot be written \(File too large\)", done.stderr)


def test_a_disk_that_fills_up_under_the_study_is_4(project, run, monkeypatch):
    from sqlalchemy.exc import OperationalError

    def full(*args, **kwargs):
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    monkeypatch.setattr("optuna.Study.ask", full)
    code, _, err = run("run", "--quiet")
    assert code == 4
    assert "database or disk is full" in err
    assert "search.storage" in err


def test_a_damaged_file_is_4_and_fresh_gets_over_it(project, run):
    project.write(search={"trials": 0, "confirmations": 0})
    run("run", "--quiet")
    (project.workspace.trial("baseline", "reference").trial).write_text("{")
    code, _, err = run("run")
    assert code == 4
    assert "--fresh" in err
    assert run("status")[0] == 4
    assert run("run", "--fresh", "--quiet")[0] == 1
    [aside] = project.path.glob("kltune-runs.*")
    assert (aside / "workspace.json").is_file()


def test_another_verl_environment_or_setting_is_3_with_the_difference(project, run):
    project.write(search={"trials": 0, "confirmations": 0})
    run("run", "--quiet")
    code, _, err = run("run", "--set", "data.train_batch_size=32", "--steps", "11")
    assert code == 3
    assert "was made with other settings" in err
    assert "data.train_batch_size: 64 there, 32 now" in err
    assert "search.steps: 10 there, 11 now" in err


def test_a_bug_of_ours_is_70_with_a_report(project, run, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("kltune.calibration.prepare", lambda settings: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["kltune", "--token=hf_abcdefghijklmnopqrst"])
    code, out, err = run("run")
    assert (code, out) == (70, "")
    assert "this is a bug of kltune: ZeroDivisionError" in err
    [report] = tmp_path.glob("kltune-crash-*.txt")
    assert str(report) in err
    assert "Traceback" in report.read_text()
    assert "hf_abc" not in report.read_text()


def test_as_a_process_it_has_the_same_exit_codes(project):
    done = shell("status", cwd=project.path)
    assert (done.returncode, done.stdout) == (1, "")
    done = shell("run", "--preset", "none", cwd=project.path)
    assert (done.returncode, done.stdout) == (3, "")
    done = shell("--version", cwd=project.path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_seen_enough_is_no_error(project):
    with subprocess.Popen(
        [sys.executable, "-m", "kltune", "plan", "--format", "json"],
        cwd=project.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


def test_what_a_terminal_cannot_show_is_no_error(project):
    project.path.joinpath("ünïcode").mkdir()
    done = shell("status", "-w", "ünïcode/€", cwd=project.path, PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "nothing was started here yet" in done.stderr


def test_shell_completion_can_be_installed(project):
    home = project.path / "home"
    home.mkdir()
    # Where these tests run there may be no shell above them to detect.
    named = {"HOME": str(home), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = shell("--install-completion", "bash", cwd=project.path, **named)
    assert done.returncode == 0, done.stderr
    assert list(home.rglob("*kltune*"))


SECRET = "k3y-0123456789abcdef0123456789abcdef01234567"  # noqa: S105 - of nobody


def test_a_secret_stands_in_no_file_and_no_output(project, run):
    project.content["verl"]["env"]["WANDB_API_KEY"] = SECRET
    project.content["verl"]["overrides"]["+trainer.hf_token"] = SECRET
    project.write(search={"trials": 1})
    said = "".join(
        "".join(run(*words)[1:])
        for words in (("plan",), ("run",), ("status",), ("run", "--format", "json"))
    )
    run("export", "-o", "exported")
    assert SECRET not in said
    files = [p for p in project.workspace.path.rglob("*") if p.is_file()]
    files += list((project.path / "exported").rglob("*"))
    with_secret = [p.name for p in files if SECRET.encode() in p.read_bytes()]
    # verl itself prints its whole configuration; that log is its own.
    assert set(with_secret) <= {"console.log"}


@pytest.mark.parametrize(
    "name", ["with blank", 'it\'s "quoted"', "ünï€", "a,b=c{d}[e]", "-x", "what?#%41"]
)
def test_odd_paths_work(project, run, name, monkeypatch):
    directory = project.path / name
    directory.mkdir()
    project.write(search={"trials": 1, "confirmations": 0})
    monkeypatch.chdir(directory)
    code, _, err = run("run", "--config", "../kltune.yaml", "--workspace", f"./{name}", "--quiet")
    assert (code, err) == (1, "")
    monkeypatch.chdir(project.path)
    assert run("status", "--workspace", f"{name}/{name}")[0] == 0


def test_the_current_directory_can_be_the_workspace(project, run, monkeypatch):
    place = project.path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    project.write(search={"trials": 0, "confirmations": 0})
    words = ("run", "--config", project.path / "kltune.yaml", "--workspace", ".", "--quiet")
    assert run(*words)[0] == 1
    assert run(*words, "--fresh")[0] == 1
    assert (place / "workspace.json").is_file()
    assert len(list(project.path.glob("place.*"))) == 1
