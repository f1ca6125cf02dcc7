"""The main job on real verl: calibrate from nothing, export, train with the export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from kltune.launchers.local import TOKEN

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(sys.platform != "linux", reason="verl on a CPU needs Linux"),
]

#: A short trial barely moves the policy, so this band begins close to 0.
SETTINGS = {
    "preset": "cpu-tiny",
    "band": {"low": 0.00001, "high": 0.5},
    "search": {"trials": 1, "steps": 4},
}


def kltune(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kltune", *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
    )


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN, "").startswith(str(folder)):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_a_fresh_machine_gets_a_config_that_verl_trains_with(tmp_path):
    (tmp_path / "kltune.yaml").write_text(yaml.safe_dump(SETTINGS))

    done = kltune("run", "--format", "json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    calibration = json.loads(done.stdout)
    assert calibration["calibrated"] is True
    roles = [trial["role"] for trial in calibration["trials"]]
    assert roles[:2] == ["reference", "search"]
    assert "confirm-winner" in roles
    for trial in calibration["trials"]:
        assert trial["outcome"]["ending"] == "completed", trial
        # In fp32 on one machine the policy of step 1 is the reference, exactly; then it moves.
        assert trial["outcome"]["summary"]["kl"] > 0
    tuning = {t["seed"] for t in calibration["trials"] if t["role"] in ("reference", "search")}
    fresh = {t["seed"] for t in calibration["trials"] if t["role"].startswith("confirm")}
    assert not tuning & fresh
    assert "verl's own configuration holds all" in done.stderr
    assert processes_of(tmp_path) == []

    again = kltune("run", "--format", "json", cwd=tmp_path)
    assert again.returncode == 0
    assert json.loads(again.stdout)["trials"] == calibration["trials"], "nothing is run twice"

    exported = kltune("export", "--format", "json", "-o", "calibrated", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    config = yaml.safe_load((tmp_path / "calibrated" / "config.yaml").read_text())
    assert config["algorithm"]["kl_ctrl"]["kl_coef"] == calibration["settings"]["kl_coef"]

    export = json.loads(exported.stdout)
    env = {**os.environ, **export["environment"]}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    trained = subprocess.run(
        [
            *export["command"],
            "trainer.total_training_steps=3",
            "trainer.val_before_train=false",
        ],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert trained.returncode == 0, trained.stdout[-3000:] + trained.stderr[-3000:]
    assert "step:3 - " in trained.stdout
