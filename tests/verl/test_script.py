import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kltune.verl.overrides import render
from kltune.verl.script import read_script
from kltune.verl.script.text import shown

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "verl" / "scripts"


def read(name, **given_values):
    return read_script((SCRIPTS / name).read_text(), given_values)


def only(script):
    (launch,) = script.launches
    return launch


def test_overrides_come_in_order_with_their_lines_and_hydra_types():
    launch = only(read("plain.sh"))
    assert [shown(word) for word in launch.command] == ["python3", "-m", "verl.trainer.main_ppo"]
    values = launch.values()
    assert values["data.train_files"] == "${oc.env:HOME}/data/gsm8k/train.parquet"
    assert values["data.truncation"] == "error"
    assert values["actor_rollout_ref.actor.optim.lr"] == 1e-6
    assert values["trainer.logger"] == ["console", "wandb"]
    assert values["+trainer.val_before_train"] is False
    assert values["++data.seed"] == 7
    assert "~trainer.experiment_name" in values
    assert launch.overrides[0].word.line == 5
    assert launch.overrides[-1].word.line == 20
    assert launch.takes_arguments
    assert launch.unresolved() == ()


def test_variables_defaults_and_arithmetic_are_resolved():
    script = read("variables.sh")
    launch = only(script)
    values = launch.values()
    assert values["data.train_files"] == ["/data/train.parquet", "/data/extra.parquet"]
    assert values["data.max_response_length"] == 8192
    assert values["actor_rollout_ref.rollout.max_num_batched_tokens"] == 10240
    assert values["actor_rollout_ref.model.path"] == "${oc.env:HOME}/models/Qwen2.5-7B"
    assert values["trainer.project_name"] == "math rl"
    assert values["trainer.default_local_dir"] == "/ckpt/Qwen2.5-7B"
    assert ("NNODES", "4") in [(p.name, p.default) for p in script.parameters]
    assert shown(launch.env["PYTHONUNBUFFERED"]) == "1"
    assert shown(launch.env["WANDB_MODE"]) == "offline"
    assert "project" not in launch.env


def test_what_cannot_be_told_is_shown_and_not_guessed():
    launch = only(read("variables.sh"))
    unresolved = {o.key: o.unknown[0] for o in launch.unresolved()}
    assert set(unresolved) == {"trainer.experiment_name", "data.val_files"}
    assert unresolved["data.val_files"].source == "${VAL_FILE}"
    assert unresolved["data.val_files"].why == "is not set in the script"
    assert unresolved["trainer.experiment_name"].source == "$(date +%Y%m%d)"
    assert unresolved["trainer.experiment_name"].line == 15


def test_answers_resolve_and_go_before_defaults():
    launch = only(read("variables.sh", VAL_FILE="/v.parquet", NNODES="8"))
    assert launch.values()["data.val_files"] == "/v.parquet"
    assert launch.values()["trainer.nnodes"] == 8


def test_arrays_conditions_and_wrappers():
    launch = only(read("arrays.sh"))
    assert launch.wrapper == ("uv", "run", "--frozen")
    values = launch.values()
    # Both branches that do not exit agree on this one.
    assert values["trainer.n_gpus_per_node"] == 8
    assert values["algorithm.kl_ctrl.target_kl"] == 0.02
    assert values["trainer.logger"] == ["console", "wandb"]
    assert "data.seed" not in values
    (micro,) = launch.unresolved()
    assert micro.unknown[0].why == 'depends on "${DEVICE}"'
    assert only(read("arrays.sh", DEVICE="gpu")).unresolved() == ()
    npu = only(read("arrays.sh", DEVICE="npu"))
    assert npu.values()["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == 4
    assert shown(npu.env["HCCL_CONNECT_TIMEOUT"]) == "2400"
    assert read("arrays.sh", DEVICE="abacus").launches == ()


def test_a_ray_job_and_a_recipe():
    launch = only(read("ray_job.sh"))
    assert launch.wrapper[:3] == ("ray", "job", "submit")
    assert launch.wrapper[-1] == "--"
    assert shown(launch.command[-1]) == "recipe.dapo.main_dapo"
    assert launch.options == ("--config-name=dapo_trainer",)
    assert shown(launch.env["NCCL_DEBUG"]) == "WARN"
    assert launch.values()["+actor_rollout_ref.model.override_config.attention_dropout"] == 0.0


def test_slurm_with_a_shell_in_a_container():
    script = read("slurm.sh", SLURM_NNODES="2")
    launch = only(script)
    assert script.sbatch == ("--nodes=2", "--gpus-per-node=8", "--time=12:00:00")
    assert launch.wrapper[:1] == ("srun",)
    assert launch.wrapper[-2:] == ("bash", "-c")
    assert launch.values()["trainer.nnodes"] == 2


def test_a_loop_over_a_function_gives_one_launch_for_each_turn():
    script = read("sweep.sh")
    assert [launch.context for launch in script.launches] == [("coef=0.0005",), ("coef=0.001",)]
    second = script.launches[1]
    assert second.values() == {
        "algorithm.kl_ctrl.kl_coef": 0.001,
        "trainer.experiment_name": "kl_0.001",
    }
    assert "EXTRA_ARGS" in second.faults[0].text
    assert read("sweep.sh", EXTRA_ARGS="").launches[1].faults == ()


def test_a_comment_that_ends_the_command_early_is_told():
    script = read("cut.sh")
    assert only(script).values() == {"data.train_batch_size": 256}
    (note,) = script.notes
    assert note.line == 4
    assert "algorithm.use_kl_in_reward, trainer.logger" in note.text


def test_text_that_is_evaluated_later():
    launch = only(read("either.sh"))
    assert launch.values() == {"algorithm.kl_ctrl.kl_coef": 0.002, "trainer.total_epochs": 1}
    assert launch.unresolved()[0].unknown[0].why == "depends on [ -f /etc/cluster ]"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("trainer.logger={console,file}", {"trainer.logger": "file"}),
        ("x='a b' z=a\\ b \"w='q'\"", {"x": "a b", "z": "a b", "w": "q"}),
        ("'+m={a:1,b:[2,3]}'", {"+m": {"a": 1, "b": [2, 3]}}),
        ("k=$'a\\tb'", {"k": "a\tb"}),
        ("k=0.1 `# remark, b=2` j=1", {"k": 0.1, "j": 1}),
        ("a=12:30 b=012 c=yes d=1e3", {"a": "12:30", "b": "012", "c": "yes", "d": 1000.0}),
    ],
)
def test_words_are_what_bash_and_hydra_make_of_them(body, expected):
    launch = only(read_script(f"python3 -m verl.trainer.main_ppo {body}"))
    assert launch.values() == expected
    assert launch.faults == ()


@pytest.mark.parametrize("body", ["lr=1e-6,1e-5", "a.b", "x=[1,2", "$MORE", "k={a:1,b:[2]}"])
def test_what_hydra_would_refuse_is_a_fault_with_its_line(body):
    launch = only(read_script(f"\npython3 -m verl.trainer.main_ppo a=1 \\\n {body}"))
    assert {fault.line for fault in launch.faults} == {3}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "echo python3 -m verl.trainer.main_ppo",
        "pip install verl",
        "exit 0\npython3 -m verl.trainer.main_ppo a=1",
        "if false; then python3 -m verl.trainer.main_ppo a=1; fi",
        "f() { f; }; f",
        "while true; do :; done",
    ],
)
def test_scripts_that_start_nothing(text):
    assert read_script(text).launches == ()


def test_sft_is_named_as_nothing_to_calibrate():
    script = read_script("torchrun -m verl.trainer.fsdp_sft_trainer data.train_batch_size=8")
    assert script.launches == ()
    assert "no PPO training" in script.notes[0].text


def test_nothing_is_executed(tmp_path):
    mark = tmp_path / "mark"
    read_script(f"touch {mark}; X=$(touch {mark}); python3 -m verl.trainer.main_ppo a=$X")
    assert not mark.exists()


@given(st.text(alphabet="ab$({[<`'\"\\ \n#;&|=+-@*?~})>!", max_size=60))
def test_no_text_makes_reading_fail(text):
    read_script(text)
    read_script("python3 -m verl.trainer.main_ppo " + text)


_BASH = shutil.which("bash")


def argv_of(text, cwd):
    """Run a script with a python3 that prints its arguments, and return what it got."""
    stub = cwd / "bin" / "python3"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text("#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n")
    stub.chmod(0o755)
    env = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "HOME": "/home/me"}
    result = subprocess.run([_BASH, "-c", text], capture_output=True, cwd=cwd, env=env, check=True)
    return result.stdout.decode().split("\0")[:-1]


@pytest.mark.skipif(_BASH is None, reason="bash is not installed")
@pytest.mark.parametrize("name", ["plain.sh", "cut.sh", "ray_job.sh"])
def test_words_are_those_that_a_real_bash_passes_on(name, tmp_path):
    text = (SCRIPTS / name).read_text().replace("ray job", "true; exec python3 ray job")
    text = text.replace("\n    algorithm.use_kl", "\n    true algorithm.use_kl")
    seen = argv_of(text.replace("| tee run.log", ""), tmp_path)
    launch = read_script((SCRIPTS / name).read_text()).launches[0]
    words = [shown(o.word.text).replace("$HOME", "/home/me") for o in launch.overrides]
    assert seen[-len(words) :] == words


_texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=20)


@pytest.mark.skipif(_BASH is None, reason="bash is not installed")
@settings(max_examples=60, deadline=None)
@given(value=_texts)
def test_a_quoted_value_survives_bash_and_reading(value, tmp_path_factory):
    value = value.replace("${", "")
    (word,) = render({"trainer.x": value})
    text = f"python3 -m verl.trainer.main_ppo {shlex.quote(word)}"
    assert argv_of(text, tmp_path_factory.getbasetemp()) == ["-m", "verl.trainer.main_ppo", word]
    launch = only(read_script(text))
    assert shown(launch.overrides[0].word.text) == word


@pytest.mark.parametrize(
    ("setup", "value"),
    [
        ("A=2; X=${B:-$((A * 3))}", "6"),
        ("X=$(cd -- \"$(dirname \"${BASH_SOURCE[0]}\")/..\" >/dev/null 2>&1 && pwd)", "/scripts"),
        ("if [ \"${A:-1}\" != 0 ] && { [ a = b ] || [ a = a ]; }; then X=1; else X=2; fi", "1"),
        ("A='k=1 j=2'; X=\"${A//k/m}\"", "m=1 j=2"),
        ("A=/x/y.parquet; X=$(basename ${A%.parquet} y)done", "done"),
        ("A=(1 2); A+=(3); X=${#A[@]}-${A[1]}", "3-2"),
        ("A=q; case $A in p) X=1;; q|r) X=2;; esac", "2"),
        ("X=\"a\n  b\\\n c\"", "a\n  b c"),
    ],
)  # fmt: skip
def test_shell_idioms(setup, value):
    text = f'{setup}\npython3 -m verl.trainer.main_ppo x="\'$X\'" "${{@:2}}"'
    launch = only(read_script(text, path="/scripts/run/go.sh"))
    assert shown(launch.overrides[0].word.text) == f"x='{value}'"
    assert launch.faults == ()
