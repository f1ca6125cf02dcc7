"""A user's directory: a kltune.yaml that starts the stand-in, and the workspace beside it."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import yaml

from kltune.launchers.local import TOKEN
from kltune.trial.records import AttemptRecord, AttemptResult, read, read_trial
from kltune.workspace import Workspace

STAND_IN = Path(__file__).with_name("main_ppo.py")


class Project:
    """Writes settings, runs kltune, and looks at what it left."""

    def __init__(self, path):
        self.path = path
        self.workspace = Workspace(path / "kltune-runs")
        for name in ("train.parquet", "test.parquet"):
            (path / name).touch()
        self.content = {
            "verl": {
                "command": [sys.executable, "-S", str(STAND_IN)],
                "overrides": {
                    "data.train_files": str(path / "train.parquet"),
                    "data.val_files": str(path / "test.parquet"),
                    "data.train_batch_size": 64,
                    "actor_rollout_ref.model.path": "example/model",
                    "actor_rollout_ref.rollout.name": "vllm",
                    "algorithm.use_kl_in_reward": True,
                    "algorithm.kl_penalty": "low_var_kl",
                    "algorithm.kl_ctrl.type": "adaptive",
                    "algorithm.kl_ctrl.kl_coef": 0.001,
                    "algorithm.kl_ctrl.target_kl": 0.02,
                    "algorithm.kl_ctrl.horizon": 10000,
                },
                "env": {"STAND_IN_STEP_S": "0.002"},
            },
            "cluster": {"gpus_per_node": 1},
            "search": {"trials": 3, "steps": 10},
        }
        self.write()

    def write(self, scenario=None, **sections):
        """Write kltune.yaml; sections are laid over the present ones."""
        for section, values in sections.items():
            self.content.setdefault(section, {}).update(values)
        if scenario is not None:
            self.content["verl"]["env"]["STAND_IN"] = scenario
        text = yaml.safe_dump(self.content, allow_unicode=True)
        (self.path / "kltune.yaml").write_text(text, encoding="utf-8")

    def start(self, *words, **options):
        """Start ``kltune`` as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "kltune", *words],
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def trials(self):
        """Return the trials in the directories, with what every attempt of each came to."""
        found = []
        for directory in self.workspace.trials("baseline"):
            results = [read(a.result, AttemptResult) for a in directory.attempts()]
            found.append((read_trial(directory), results))
        return found

    def attempt(self, trial, number=1):
        return self.workspace.trial("baseline", trial).attempt(number)

    def record(self, trial, number=1):
        return read(self.attempt(trial, number).plan, AttemptRecord)

    def identity(self):
        return json.loads(self.workspace.identity.read_text())["id"]

    def calibration(self):
        return json.loads(self.workspace.calibration.read_text())

    def journal(self, what=None):
        entries = self.workspace.decisions()
        return entries if what is None else [e for e in entries if e["what"] == what]

    def left_behind(self):
        """Return the processes of this project's trials that are still there."""
        mine = str(self.path.resolve())
        return [p for p in psutil.process_iter() if (_token(p) or "").startswith(mine)]

    def assert_consistent(self):
        """Journal, study and directories tell the same story."""
        trials = self.trials()
        unfinished = [trial.name for trial, _ in trials if trial.outcome is None]
        assert unfinished == []
        points = Counter((t.role, t.settings.key(), t.seed) for t, _ in trials)
        assert set(points.values()) == {1}
        for what in ("trial-started", "trial-ended"):
            told = Counter(entry["trial"] for entry in self.journal(what))
            assert told == Counter(trial.name for trial, _ in trials), what
        attempts = Counter((e["trial"], e["attempt"]) for e in self.journal("attempt-ended"))
        assert attempts == Counter(
            (trial.name, n) for trial, results in trials for n in range(1, len(results) + 1)
        )
        searched = {t.name: t.outcome for t, _ in trials if t.role.value == "search"}
        proposed = {}
        for point in self.study():
            assert point.state.is_finished(), point.number
            # Killed between the question and the answer, a point was never proposed.
            if "kltune:settings" in point.user_attrs:
                proposed[f"search-{point.number:03d}"] = point
        assert proposed.keys() == searched.keys()
        for name, outcome in searched.items():
            if outcome.ending.value == "completed":
                assert proposed[name].value == outcome.summary.objective

    def study(self):
        """Return the trials of the workspace's study."""
        import optuna

        url = self.workspace.study_url
        name = optuna.get_all_study_names(url)[0]
        return optuna.load_study(study_name=name, storage=url).get_trials(deepcopy=False)


def _token(process):
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(TOKEN)
    except (psutil.Error, OSError):
        return None


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
