import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from kltune.cli.app import main
from kltune.settings import load

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "verl" / "scripts"


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_script_becomes_settings_that_load(capsys):
    code = main(["init", "--from", str(SCRIPTS / "plain.sh")])
    assert code == 0
    settings = load(config=Path("kltune.yaml"))
    assert settings.content.verl.command == ["python3", "-m", "verl.trainer.main_ppo"]
    assert settings.content.verl.overrides["actor_rollout_ref.actor.optim.lr"] == 1e-6
    assert settings.content.verl.overrides["trainer.logger"] == ["console", "wandb"]
    assert "kltune lint kltune.yaml" in capsys.readouterr().err


def test_what_a_script_leaves_open_is_asked_for(capsys):
    script = str(SCRIPTS / "variables.sh")
    assert main(["init", "--from", script]) == 3
    said = capsys.readouterr().err
    assert "line 32: data.val_files=${VAL_FILE}: ${VAL_FILE} is not set in the script" in said
    assert not Path("kltune.yaml").exists()
    assert main(["init", "--from", script, "--answer", "VAL_FILE=/v.parquet"]) == 0
    content = yaml.safe_load(Path("kltune.yaml").read_text())
    assert content["verl"]["overrides"]["data.val_files"] == "/v.parquet"
    assert content["verl"]["env"]["WANDB_MODE"] == "offline"
    assert content["cluster"]["nodes"] == 4
    assert content["about"]["script"] == script
    assert content["about"]["answers"] == ["VAL_FILE=/v.parquet"]
    # kltune names each attempt itself.
    assert "trainer.experiment_name" not in content["verl"]["overrides"]


def test_an_answer_is_text_as_in_a_shell(capsys):
    script = str(SCRIPTS / "variables.sh")
    assert main(["init", "--from", script, "--answer", "VAL_FILE='/a,b.parquet'"]) == 0
    assert 'data.val_files: "/a,b.parquet"' in Path("kltune.yaml").read_text()
    assert main(["init", "--from", script, "--answer", "VAL_FILE", "-o", "x.yaml"]) == 3
    assert "--answer VAL_FILE: an answer is NAME=VALUE" in capsys.readouterr().err


def test_an_override_answers_too():
    script = str(SCRIPTS / "variables.sh")
    assert main(["init", "--from", script, "--set", "data.val_files=/w.parquet"]) == 0
    assert "/w.parquet" in Path("kltune.yaml").read_text()


def test_several_starts_have_to_be_chosen_from(capsys):
    script = str(SCRIPTS / "sweep.sh")
    assert main(["init", "--from", script, "--answer", "EXTRA_ARGS="]) == 3
    assert "--launch 2: line 3, under coef=0.001" in capsys.readouterr().err
    assert main(["init", "--from", script, "--answer", "EXTRA_ARGS=", "--launch", "2"]) == 0
    assert "algorithm.kl_ctrl.kl_coef: 0.001" in Path("kltune.yaml").read_text()


def test_secrets_of_a_script_are_not_written_down(capsys):
    Path("run.sh").write_text(
        "export WANDB_API_KEY=s3cr3tkey\npython3 -m verl.trainer.main_ppo +a.hf_token=$HF_TOKEN\n"
    )
    assert main(["init", "--from", "run.sh", "--answer", "HF_TOKEN=t0k3nt0k3n"]) == 0
    said = Path("kltune.yaml").read_text() + "".join(capsys.readouterr())
    assert "s3cr3tkey" not in said
    assert "t0k3nt0k3n" not in said
    assert "set them where kltune runs: WANDB_API_KEY" in said


def test_a_file_that_is_there_is_kept(capsys):
    Path("kltune.yaml").write_text("preset: cpu-tiny\n")
    assert main(["init", "--preset", "cpu-tiny"]) == 3
    assert "--force" in capsys.readouterr().err
    assert main(["init", "--preset", "cpu-tiny", "--force", "--set", "data.seed=3"]) == 0
    assert load(config=Path("kltune.yaml")).content.verl.overrides["data.seed"] == 3


@pytest.mark.parametrize("arguments", [[], ["--from", "x.sh", "--preset", "cpu-tiny"]])
def test_init_wants_one_source(arguments):
    assert main(["init", *arguments]) == 3


@pytest.mark.parametrize("arguments", [["nothing.sh"], [], ["a.yaml", "b.yaml"]])
def test_lint_says_what_it_cannot_read(arguments, capsys):
    assert main(["lint", *arguments]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_lint_of_a_script_gives_lines_ids_and_fixes(capsys):
    assert main(["lint", str(SCRIPTS / "plain.sh"), "--verl", "0.8.0"]) == 1
    said = capsys.readouterr()
    assert "plain.sh:18: error: algorithm.kl_ctrl.kl_coef is without effect" in said.out
    assert "[kl-ctrl-inert]" in said.out
    assert "fix: algorithm.use_kl_in_reward=true" in said.out
    assert "judged by what kltune knows of verl 0.8.0" in said.err


def test_lint_as_json(capsys):
    words = ["--", "algorithm.kl_ctrl.target_kl=0.02", "+trainer.api_key=s3cr3tkey"]
    assert main(["lint", "--format", "json", "--verl", "0.9.1", *words]) == 1
    out = capsys.readouterr().out
    found = json.loads(out)
    assert found["verl"] == "0.9.1"
    finding = next(f for f in found["findings"] if f["id"] == "kl-ctrl-inert")
    assert finding["level"] == "error"
    assert finding["fix"] == ["algorithm.use_kl_in_reward=true"]
    assert found["errors"] == sum(f["level"] == "error" for f in found["findings"])
    assert "s3cr3tkey" not in out


def test_a_clean_preset_passes_and_its_band_is_looked_at(capsys):
    assert main(["lint", "--preset", "gsm8k-7b-8gpu", "--verl", "0.8.0"]) == 0
    assert "0 error, 0 warning" in capsys.readouterr().out
    wider = ["--set", "algorithm.kl_ctrl.target_kl=0.08"]
    assert main(["lint", "--preset", "gsm8k-7b-8gpu", "--verl", "0.8.0", *wider]) == 0
    assert "target-outside-band" in capsys.readouterr().out


def test_fixes_go_to_the_settings_and_stay_fixed(capsys):
    Path("kltune.yaml").write_text(
        "preset: gsm8k-7b-8gpu\nverl:\n  overrides:\n    +trainer.nnodes: 1   # mine\n"
        "    ray_init.num_cpus: 64\n"
    )
    assert main(["lint", "--verl", "0.8.0"]) == 1
    assert main(["lint", "--fix", "--verl", "0.8.0"]) == 0
    assert "ray_kwargs.ray_init.num_cpus: 64" in Path("kltune.yaml").read_text()
    capsys.readouterr()
    assert main(["lint", "--fix", str(SCRIPTS / "plain.sh")]) == 3
    assert "is no kltune.yaml" in capsys.readouterr().err


def test_lint_of_an_exported_configuration():
    Path("config.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nhydra: {searchpath: [x]}\n"
        "algorithm:\n  kl_ctrl: {target_kl: 0.02}\n"
    )
    assert main(["lint", "config.yaml"]) == 1


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_keys_are_checked_against_the_installed_verl(capsys):
    main(["lint", "--", "algorithm.kl_ctrl.target_k1=0.02"])
    out = capsys.readouterr().out
    assert "[key-unknown]" in out
    assert "fix: algorithm.kl_ctrl.target_kl=0.02" in out


def test_lint_imports_neither_verl_nor_torch():
    program = (
        "import sys\nfrom kltune.cli.app import main\n"
        f"main(['lint', {str(SCRIPTS / 'plain.sh')!r}])\n"
        "heavy = {'verl', 'torch', 'ray', 'transformers', 'optuna', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
@pytest.mark.parametrize(
    "command",
    [
        "verl.trainer.main_ppo --config-path=./mine --config-name=mine",
        "recipe.dapo.main_dapo --config-name=dapo_trainer",
    ],
)
def test_a_configuration_that_is_not_verls_own_is_judged_without_its_keys(command, capsys):
    Path("run.sh").write_text(f"python3 -m {command} algorithm.filter_groups.enable=True\n")
    main(["lint", "run.sh"])
    said = capsys.readouterr()
    assert "has a configuration of its own" in said.err
    assert "key-unknown" not in said.out
    assert "does-not-compose" not in said.out
    assert "[kl-both-off]" in said.out
