"""``kltune export --as …``: the same training in the forms that people launch verl with."""

import json
import shlex
import subprocess

import pytest

from kltune.cli.app import main

SCRIPT = """#!/usr/bin/env bash
set -x
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=64 \\
    algorithm.kl_ctrl.kl_coef=0.001 \\
    trainer.nnodes=1 "$@"
"""


@pytest.fixture
def calibrated(project):
    project.write(search={"trials": 2}, band={"low": 0.0001, "high": 0.9})
    assert main(["run", "--quiet"]) == 0
    return project


def export(project, capsys, *words):
    capsys.readouterr()
    code = main(["export", "-o", "out", "--format", "json", *words])
    return code, json.loads(capsys.readouterr().out or "{}")


def test_every_form_carries_the_calibrated_coefficient_and_its_evidence(calibrated, capsys):
    code, written = export(calibrated, capsys, "--as", "config,overrides,script,ray-job,slurm")
    assert code == 0
    coefficient = calibrated.calibration()["settings"]["kl_coef"]
    for form in ("config", "overrides", "script", "ray-job", "slurm"):
        text = (calibrated.path / written[form]).read_text()
        assert str(coefficient) in text, form
        assert "average reference KL" in text, form


def test_the_scripts_are_valid_bash(calibrated, capsys):
    _, written = export(calibrated, capsys, "--as", "script,slurm")
    for form in ("script", "slurm"):
        subprocess.run(["bash", "-n", written[form]], check=True, cwd=calibrated.path)


def test_the_script_starts_verl_with_the_exact_words(calibrated, capsys):
    _, written = export(calibrated, capsys, "--as", "script")
    shell = f"exec() {{ printf '%s\\n' \"$@\"; }}; source {shlex.quote(written['script'])} more=1"
    words = subprocess.run(
        ["bash", "-c", shell], check=True, cwd=calibrated.path, capture_output=True, text=True
    ).stdout.splitlines()
    assert "algorithm.kl_ctrl.type=adaptive" in words
    assert "trainer.nnodes=1" in words
    assert words[-1] == "more=1"


def test_the_users_own_script_comes_back_with_the_changed_lines_marked(project, capsys):
    script = project.path / "my run.sh"
    script.write_text(SCRIPT)
    project.content["about"] = {"script": str(script), "launch": 1, "answers": {}}
    project.write(search={"trials": 2}, band={"low": 0.0001, "high": 0.9})
    assert main(["run", "--quiet"]) == 0
    code, written = export(project, capsys, "--as", "script")
    assert code == 0
    text = (project.path / written["script"]).read_text()
    assert "data.train_batch_size=64 \\\n" in text
    assert "algorithm.kl_ctrl.kl_coef=" in text
    assert "kltune" in text
    subprocess.run(["bash", "-n", written["script"]], check=True, cwd=project.path)


def test_a_script_that_is_gone_is_named(project, capsys):
    project.content["about"] = {"script": "/no/such/run.sh"}
    project.write(search={"trials": 2}, band={"low": 0.0001, "high": 0.9})
    assert main(["run", "--quiet"]) == 0
    assert main(["export", "-o", "out", "--as", "script"]) == 3
    assert "/no/such/run.sh" in capsys.readouterr().err


def test_unknown_forms_are_refused_all_at_once(calibrated, capsys):
    assert main(["export", "-o", "out", "--as", "yaml,helm"]) == 3
    complaint = capsys.readouterr().err
    assert "yaml" in complaint
    assert "helm" in complaint
