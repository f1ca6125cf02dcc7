"""One short training of real verl: what it writes of a validation is what is read from it."""

from pathlib import Path

import pytest

from kltune.calibration import prepare
from kltune.calibration.specs import rules_of, trial_spec, verl_value
from kltune.domain.attempts import Limits
from kltune.domain.kl import KlSettings
from kltune.domain.outcome import Ending
from kltune.domain.trials import Role, Trial
from kltune.launchers import open_launcher
from kltune.settings import load
from kltune.trial import run_trial
from kltune.trial.run import read_steps
from kltune.validation import tally
from kltune.verl.datasets import read_problems
from kltune.verl.dumps import dumped_steps, read_dump
from kltune.verl.keys import Key
from kltune.workspace import Workspace

REWARDS = """
rewards:
  truth: {rule: verl}
  long: {rule: length, per: 20, weight: 0.0}
  form: {rule: pattern, pattern: '#### \\d+', weight: 0.1}
"""


@pytest.mark.verl
@pytest.mark.timeout(300)
def test_dumps_metrics_and_reward_sources_agree(tmp_path):
    pytest.importorskip("verl")
    (tmp_path / "kltune.yaml").write_text(REWARDS)
    setup = prepare(load("cpu-tiny", tmp_path / "kltune.yaml", options={"search.steps": 2}))
    trial = Trial("reference-1", Role.VALIDATION, KlSettings(0.001, estimator="low_var_kl"), 1)
    spec = trial_spec(
        setup,
        trial,
        rules_of(setup, "robust"),
        Limits(restarts=0),
        steps=2,
        validate_first=True,
        test_freq=1,
        keep_answers=True,
    )
    workspace = Workspace(tmp_path / "runs")
    directory = workspace.trial("validate", trial.name)
    launcher = open_launcher(setup.settings.content.cluster)
    outcome = run_trial(spec, directory, workspace, launcher, lambda event: None)
    assert outcome.ending is Ending.COMPLETED

    problems = read_problems(Path(verl_value(setup, Key.VAL_FILES)))
    dumps = dumped_steps(directory.attempt(1).validation)
    assert list(dumps) == [0, 1, 2]
    for step in read_steps(directory):
        answers = read_dump(dumps[step.step])
        found = tally(answers, {"test": problems})["test"]
        assert len(found.tallies) == len(problems) == 256
        raw = {name.split("/")[-2]: v for name, v in step.raw.items() if name.endswith("/mean@1")}
        assert found.pass_at(1) == pytest.approx(raw["acc"])
        assert step.held_out == pytest.approx(raw["acc"])
        lengths = [len(answer.text) / 20 for answer in answers]
        assert raw["long"] == pytest.approx(sum(lengths) / len(lengths))
        assert raw["score"] == pytest.approx(raw["truth"] + 0.1 * raw["form"])
        # Of training answers verl logs the score alone; the sources are of the same answers.
        if step.step > 0:
            given = step.sources
            assert given["acc"] == given["truth"]
            assert step.score == pytest.approx(given["truth"] + 0.1 * given["form"])
            assert given["long"] != pytest.approx(raw["long"])
    left = {path.name.partition("-")[0] for path in directory.attempt(1).rewards.iterdir()}
    assert left == {"means.jsonl", "2"}
