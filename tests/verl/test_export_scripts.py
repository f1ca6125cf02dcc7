import json
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kltune.verl.difference import difference
from kltune.verl.exports import Training, bash_script, overrides_text, ray_job, sbatch_script
from kltune.verl.overrides import render
from kltune.verl.script import read_script

from .test_script import argv_of

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

COMMAND = ("python3", "-m", "verl.trainer.main_ppo")
TRAINING = Training(
    COMMAND,
    {
        "algorithm.kl_ctrl.kl_coef": 0.003,
        "trainer.logger": ["console", "file"],
        "data.train_files": "${oc.env:HOME}/data/a b.parquet",
        "+trainer.note": "it's 'quoted' \"$HOME\" `id` \\ (x) #y",
    },
    {"NCCL_DEBUG": "WARN", "NOTE": "a b'$(id)"},
    nodes=2,
)
SECRETS = Training(
    COMMAND,
    {
        "+ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY": "s3cr3t-value",
        "+trainer.db": "postgresql://u:s3cr3t-value@h/x",
        "+x": {"hf_token": "s3cr3t-value"},
    },
    {"HF_TOKEN": "s3cr3t-value", "URL": "http://u:s3cr3t-value@h"},
)


@needs_bash
def test_the_bash_script_passes_every_word_on(tmp_path):
    words = argv_of(bash_script(TRAINING, ["kltune"]), tmp_path)
    assert words == ["-m", "verl.trainer.main_ppo", *render(TRAINING.overrides)]


@needs_bash
def test_the_bash_script_sets_the_environment_and_takes_arguments(tmp_path):
    text = bash_script(TRAINING).replace("exec python3", 'printf "%s|" "$NOTE"; echo')
    result = subprocess.run(
        ["bash", "-c", text, "x", "extra=1"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("a b'$(id)|")
    assert result.stdout.rstrip().endswith("extra=1")


def test_an_exported_script_can_be_read_again():
    (launch,) = read_script(bash_script(TRAINING)).launches
    assert launch.values() == TRAINING.overrides
    (launch,) = read_script(sbatch_script(TRAINING)).launches
    assert launch.values() == TRAINING.overrides
    assert read_script(sbatch_script(TRAINING)).sbatch[1] == "--nodes=2"


@needs_bash
def test_overrides_can_be_pasted(tmp_path):
    text = overrides_text(TRAINING)
    assert argv_of(f"python3 {text}", tmp_path) == render(TRAINING.overrides)


@needs_bash
@pytest.mark.parametrize("nodes", [1, 8])
def test_the_sbatch_script_is_bash(nodes):
    text = sbatch_script(Training(COMMAND, TRAINING.overrides, nodes=nodes, name="a b\nc"), ["x"])
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    head = text.split("set -euo pipefail")[0].splitlines()
    assert head[1] == "#SBATCH --job-name=a-b-c"
    assert f"#SBATCH --nodes={nodes}" in head
    assert all(line.startswith("#") for line in head)


@needs_bash
def test_the_ray_job_gives_the_cluster_the_same_words(tmp_path, monkeypatch):
    package = tmp_path / "ray"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "job_submission.py").write_text(
        "import json\n"
        "class JobSubmissionClient:\n"
        "    def __init__(self, address): pass\n"
        "    def submit_job(self, **job): return json.dumps(job)\n"
    )
    (tmp_path / "job.py").write_text(ray_job(SECRETS, ["by kltune"]))
    (tmp_path / "job2.py").write_text(ray_job(TRAINING))
    env = {"PYTHONPATH": str(tmp_path), "HF_TOKEN": "t", "WANDB_API_KEY": "w"}
    jobs = [
        json.loads(
            subprocess.run(
                [sys.executable, tmp_path / name], capture_output=True, env=env, check=True
            ).stdout
        )
        for name in ("job.py", "job2.py")
    ]
    assert jobs[0]["runtime_env"]["env_vars"].items() >= {"HF_TOKEN": "t"}.items()
    assert argv_of(jobs[1]["entrypoint"], tmp_path)[2:] == render(TRAINING.overrides)
    assert jobs[1]["runtime_env"]["env_vars"] == TRAINING.env


@pytest.mark.parametrize("export", [overrides_text, bash_script, ray_job, sbatch_script])
def test_no_export_carries_a_secret(export):
    text = export(SECRETS, ["HF_TOKEN=s3cr3t-value"])
    assert "s3cr3t-value" not in text
    assert "${oc.env:WANDB_API_KEY}" in text
    if export is not overrides_text:
        assert "HF_TOKEN" in text


@needs_bash
def test_a_missing_secret_is_asked_for():
    command = [shutil.which("bash"), "-c", bash_script(SECRETS)]
    result = subprocess.run(command, capture_output=True, text=True, env={"PATH": ""})
    assert result.returncode != 0
    assert "set it before you start" in result.stderr


_hostile = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=20)
_values = st.none() | st.booleans() | st.integers() | _hostile | st.lists(_hostile, max_size=3)


@needs_bash
@settings(max_examples=80, deadline=None)
@given(value=_values, header=st.text(max_size=30))
def test_hostile_values_reach_verl_as_they_are(value, header, tmp_path_factory):
    training = Training(COMMAND, {"trainer.x": value, "y": 1})
    # Shapes of secrets are hidden on purpose.
    words = training.words()
    cwd = tmp_path_factory.getbasetemp()
    assert argv_of(bash_script(training, [header]), cwd) == [*COMMAND[1:], *words]
    sbatch = sbatch_script(training, [header]).replace("srun --nodes=1 --ntasks=1", "")
    assert argv_of(sbatch, cwd) == [*COMMAND[1:], *words]


def test_a_difference_shows_before_after_and_why():
    changes = difference(
        {"a": 1, "+b": 2, "~c": None, "d.hf_token": "k3y", "same": [1]},
        {"a": 3, "b": 2, "new": "x", "d.hf_token": "0ther", "same": [1]},
        {"a": "trial 4", "new": "preset"},
    )
    assert [line for change in changes for line in change.lines()] == [
        "- a=1",
        "+ a=3   # trial 4",
        "+ new=x   # preset",
        "- d.hf_token=REDACTED",
        "+ d.hf_token=REDACTED",
        "- ~c",
    ]


def test_no_difference_between_equals():
    assert difference({"+a": 1}, {"a": 1}, {}) == []
