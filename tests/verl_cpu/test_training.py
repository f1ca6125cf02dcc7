"""Real training on the CPU beside what the end-to-end test trains: GRPO, two ranks, resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kltune.settings import load
from kltune.verl.overrides import lay_over, render

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(sys.platform != "linux", reason="verl on a CPU needs Linux"),
]

#: GRPO over groups of four, the penalty in the loss, two ranks of FSDP2 over gloo.
GRPO = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.1,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.rollout.n": 4,
    "data.train_batch_size": 16,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 16,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 32,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 32,
    "trainer.n_gpus_per_node": 2,
    "+ray_kwargs.ray_init.num_gpus": 2,
    "trainer.nnodes": 1,
    "trainer.val_before_train": False,
    "trainer.save_freq": 2,
    "trainer.logger": ["console", "file"],
}


def train(folder: Path, name: str, **changes: object) -> list[dict]:
    settings = load("cpu-tiny").content.verl
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    overrides = lay_over(
        settings.overrides,
        GRPO,
        {"trainer.default_local_dir": str(folder / "checkpoints")},
        changed,
    )
    metrics = folder / f"{name}.jsonl"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "verl.trainer.main_ppo",
            *render(overrides),
            f"hydra.run.dir={folder / name}",
        ],
        cwd=folder,
        env={
            **os.environ,
            **settings.env,
            "RAY_ADDRESS": "local",
            "VERL_FILE_LOGGER_PATH": str(metrics),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def test_grpo_with_a_loss_penalty_on_two_ranks_is_saved_and_resumed(tmp_path):
    first = train(tmp_path, "first", trainer__total_training_steps=2)
    assert [record["step"] for record in first] == [1, 2]
    saved = tmp_path / "checkpoints" / "global_step_2"
    assert (saved / "actor").is_dir()

    resumed = train(
        tmp_path,
        "resumed",
        trainer__total_training_steps=3,
        trainer__resume_mode="resume_path",
        trainer__resume_from_path=str(saved),
    )
    assert [record["step"] for record in resumed] == [3]

    for record in (*first, *resumed):
        data = record["data"]
        # Rollout and training are the same arithmetic in fp32, whichever rank made the answer.
        assert data["training/rollout_probs_diff_mean"] < 1e-4
        assert data["actor/kl_loss"] < 0.2
        assert data["actor/grad_norm"] > 0
    assert first[0]["data"]["actor/kl_loss"] < resumed[0]["data"]["actor/kl_loss"]
