"""``kltune replay`` and ``kltune watch`` over console logs, finished and growing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kltune.cli.app import main


def line(step: int, kl: float, score: float) -> str:
    return (
        f"\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m step:{step} - actor/reward_kl_penalty:{kl} - "
        f"actor/reward_kl_penalty_coeff:0.01 - critic/score/mean:np.float64({score}) - "
        f"actor/grad_norm:1.2 - response_length/mean:100.0 - training/global_step:{step}\n"
    )


def healthy(steps: int = 20) -> str:
    return "".join(line(n, 0.001 * n, 0.3 + 0.01 * n) for n in range(1, steps + 1))


def broken(steps: int = 6) -> str:
    return healthy(steps) + line(steps + 1, float("nan"), 0.4)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def replay_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict]:
    code = main(["replay", "--format", "json", *argv])
    return code, json.loads(capsys.readouterr().out)


def test_replay_of_a_healthy_run_has_the_documented_shape(log, capsys):
    log.write_text(healthy())
    code, record = replay_json(capsys, str(log))
    assert code == 0
    assert set(record) == {
        "source", "format", "steps", "first_step", "last_step", "kl", "profiles",
    }  # fmt: skip
    assert record["format"] == "console"
    assert (record["steps"], record["first_step"], record["last_step"]) == (20, 1, 20)
    assert record["kl"] == {
        "metric": "actor/reward_kl_penalty",
        "mean": pytest.approx(0.0105),
        "max": 0.02,
        "last": 0.02,
    }
    assert record["profiles"]["robust"]["verdict"] == "healthy"


def test_replay_ends_with_one_when_the_chosen_profile_is_critical(log, capsys):
    log.write_text("".join(line(n, 0.004 * n, 0.3 + 0.01 * n) for n in range(1, 21)))
    code, record = replay_json(capsys, str(log))
    assert code == 0
    code, record = replay_json(capsys, str(log), "--profile", "protocol")
    assert code == 1
    first = record["profiles"]["protocol"]["findings"][0]
    assert first["rule"] == "max-kl"
    assert first["step"] == 13
    assert first["value"] == pytest.approx(0.052)
    assert first["threshold"] == 0.05
    assert first["action"] == "raise-coefficient"


def test_replay_of_several_sources_is_a_list(log, tmp_path, capsys):
    log.write_text(healthy())
    other = tmp_path / "other.log"
    other.write_text(broken())
    code = main(["replay", "--format", "json", str(log), str(other)])
    records = json.loads(capsys.readouterr().out)
    assert code == 1
    assert [r["profiles"]["robust"]["verdict"] for r in records] == ["healthy", "broken"]


def test_a_non_finite_value_is_null_in_json_and_a_finding(log, capsys):
    log.write_text(broken())
    code, record = replay_json(capsys, str(log))
    assert code == 1
    assert record["kl"]["last"] is None
    assert record["profiles"]["robust"]["findings"][-1]["rule"] == "non-finite"


def test_a_missing_source_is_a_message_and_code_five(tmp_path, capsys):
    assert main(["replay", str(tmp_path / "nothing.log")]) == 5
    complaint = capsys.readouterr().err
    assert "nothing.log" in complaint
    assert "Traceback" not in complaint


def test_an_unknown_profile_names_the_known_ones(log, capsys):
    log.write_text(healthy())
    assert main(["replay", str(log), "--profile", "robut"]) == 3
    assert "robust" in capsys.readouterr().err


def test_watch_gives_the_finding_to_the_command_as_json(log, tmp_path, capsys):
    log.write_text(broken())
    told = tmp_path / "told it.json"
    script = tmp_path / "page me.sh"
    script.write_text(f"#!/bin/sh\ncat > '{told}'\n")
    script.chmod(0o755)
    assert main(["watch", str(log), "--on-critical", f"'{script}'"]) == 1
    finding = json.loads(told.read_text())
    assert finding["rule"] == "non-finite"
    assert finding["step"] == 7
    assert finding["source"] == str(log)


def test_a_command_that_fails_is_told_and_changes_nothing(log, capsys):
    log.write_text(broken())
    assert main(["watch", str(log), "--on-critical", "/no/such/command"]) == 1
    assert "/no/such/command" in capsys.readouterr().err


def test_watch_reads_standard_input_to_its_end():
    argv = [sys.executable, "-m", "kltune", "watch", "-", "--follow", "--format", "json"]
    done = subprocess.run(argv, input=broken(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    findings = [json.loads(text) for text in done.stdout.splitlines()]
    assert "non-finite" in [finding["rule"] for finding in findings]


def test_a_growing_log_is_followed_and_told_of_soon_after_the_line(log):
    log.write_text(healthy(6))
    argv = [sys.executable, "-m", "kltune", "watch", str(log), "--follow", "--format", "json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        time.sleep(1.5)
        with log.open("a") as stream:
            text = line(7, float("nan"), 0.4)
            stream.write(text[:40])
            stream.flush()
            time.sleep(0.3)
            stream.write(text[40:])
        written = time.monotonic()
        finding = json.loads(process.stdout.readline())
        waited = time.monotonic() - written
        process.send_signal(signal.SIGINT)
    assert finding["rule"] == "non-finite"
    assert finding["step"] == 7
    # Two seconds are promised; a loaded machine gets some more before the test gives up.
    assert waited < 10
    assert process.returncode == 1


def test_the_human_view_names_run_rule_and_step(log, capsys):
    log.write_text(broken())
    assert main(["replay", str(log)]) == 1
    shown = capsys.readouterr().out
    assert "broken (step 7)" in shown
    assert "non-finite" in shown
    assert "reference KL" in shown


@pytest.mark.skipif(
    not Path("../shared/data/logs").is_dir(), reason="the labelled logs are not here"
)
def test_a_crash_before_the_first_step_is_told_apart(capsys):
    code, record = replay_json(capsys, os.fspath(Path("../shared/data/logs/ppo-crash-oom.log")))
    assert code == 1
    assert record["profiles"]["robust"]["verdict"] == "crashed"
    assert record["steps"] == 0


def test_a_controller_that_a_log_says_is_inert_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (
        "{'actor_rollout_ref': {'actor': {'use_kl_loss': False}},\n"
        " 'algorithm': {'kl_ctrl': {'horizon': 10000, 'type': 'adaptive'},\n"
        "               'use_kl_in_reward': False},\n"
        " 'trainer': {'nnodes': 1}}\n"
    )
    steps = "".join(f"step:{i} - critic/score/mean:{i / 20}\n" for i in range(1, 15))
    path = tmp_path / "train.log"
    path.write_text(config + steps)
    _, record = replay_json(capsys, os.fspath(path))
    findings = record["profiles"]["robust"]["findings"]
    assert ("inert-controller", 10) in [(f["rule"], f["step"]) for f in findings]
