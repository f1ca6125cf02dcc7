"""What each reward source gave to the answers of a training step."""

import json

import pytest

from kltune.calibration import Baseline, prepare
from kltune.cli.app import main
from kltune.domain.attempts import Change
from kltune.domain.steps import Step
from kltune.domain.trials import Role, Trial
from kltune.settings import load
from kltune.trial.run import read_steps
from kltune.verl.reward_notes import RewardNotes, with_sources
from kltune.verl.rewards import compute_score

from ..drift.data import row, write

LENGTH = json.dumps({"length": {"rule": "length", "per": 1, "weight": 1.0}})


def grade(directory, version, *texts):
    for text in texts:
        told = {"max_global_steps": version}
        compute_score("sums", text, "1", told, sources=LENGTH, notes=str(directory))


def test_a_step_has_the_means_of_its_own_answers(tmp_path):
    grade(tmp_path, 0, "a" * 90)  # the validation before training
    grade(tmp_path, 0, "a", "aaa")
    grade(tmp_path, 1, "a" * 50)
    grade(tmp_path, 1, "aaaa", "aaaaaa")
    notes = RewardNotes(tmp_path, rows=2)
    assert notes.complete(Step(0)).sources == {}
    assert notes.complete(Step(1)).sources == {"length": 2}
    assert notes.complete(Step(2)).sources == {"length": 5}
    assert notes.complete(Step(3)).sources == {}


def test_only_means_stay_and_the_next_reader_finds_them(tmp_path):
    grade(tmp_path, 0, "a secret", "a")
    RewardNotes(tmp_path, rows=2).complete(Step(1))
    assert [p.name for p in tmp_path.iterdir()] == ["means.jsonl"]
    assert "secret" not in (tmp_path / "means.jsonl").read_text()
    again = RewardNotes(tmp_path, rows=2)
    assert again.complete(Step(1)).sources == {"length": 4.5}
    assert with_sources([Step(1), Step(2)], tmp_path) == [again.complete(Step(1)), Step(2)]


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path):
    grade(tmp_path, 0, "a", "aaa")
    (path,) = tmp_path.glob("0-*.jsonl")
    path.write_text(path.read_text() + '{"at": 12')
    assert RewardNotes(tmp_path, rows=2).complete(Step(1)).sources == {"length": 2}


def test_a_verl_that_does_not_tell_the_policy_leaves_no_notes(tmp_path):
    compute_score("sums", "a", "1", {}, sources=LENGTH, notes=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert RewardNotes(tmp_path / "nowhere", rows=2).complete(Step(1)) == Step(1)


REWARDS = {
    "form": {"rule": "pattern", "pattern": "#### 1"},
    "length": {"rule": "length", "per": 20, "weight": 0.1},
}


def test_a_trial_sees_a_source_that_rises_alone(project):
    for name in ("train", "test"):
        write(project.path / f"{name}.parquet", [row(n) for n in range(10)])
    env = {"STAND_IN_SPEED": "0.06", "STAND_IN_STEP_S": "0.001"}
    project.write(
        scenario="hacked",
        verl={"env": env},
        rewards=REWARDS,
        search={"trials": 0, "steps": 24, "confirmations": 0},
        cluster={"gpus_per_node": 1},
    )
    project.content["verl"]["overrides"] |= {
        "data.train_batch_size": 256,
        "trainer.test_freq": 12,
        "algorithm.kl_ctrl.kl_coef": 0.0001,
    }
    project.write()
    main(["run", "--quiet"])
    steps = read_steps(project.workspace.trial("baseline", "reference"))
    trained = [s for s in steps if s.step > 0]
    assert [set(s.sources) for s in trained] == [{"form", "length"}] * 24
    # Answers of a validation are empty; none of them was counted.
    for step in trained:
        right = 0.35 * step.sources["form"]  # " #### 1" over 20
        length = (int(1000 * step.reference_kl)) / 20 + right
        assert step.sources["length"] == pytest.approx(length)
    assert trained[-1].sources["length"] > 2 > trained[2].sources["length"]
    # Nobody trains on the answers of the last policy: its notes are the validation's.
    left = {p.name.partition("-")[0] for p in project.attempt("reference").rewards.iterdir()}
    assert left == {"means.jsonl", "24"}
    said = [e["finding"] for e in project.journal("finding")]
    (alone,) = [f for f in said if f["rule"] == "reward-hacking"]
    assert (alone["severity"], alone["metric"]) == ("warning", "reward source form")
    assert "by length alone (length from " in alone["message"]
    assert "while form fell from" in alone["message"]


@pytest.mark.parametrize(
    ("rewards", "shared", "noted"),
    [(REWARDS, True, True), (REWARDS, False, False), ({}, True, False)],
)
def test_notes_are_asked_for_where_somebody_sees_them(project, rewards, shared, noted):
    project.write(rewards=rewards, cluster={"shared": shared})
    setup = prepare(load(config=project.path / "kltune.yaml"))
    spec = Baseline(setup, project.workspace, lambda event: None).spec(
        Trial("reference", Role.REFERENCE, setup.reference, 1)
    )
    found = spec.overrides(project.attempt("reference"), Change(setup.reference), None)
    place = found.get("+reward.custom_reward_function.reward_kwargs.notes")
    assert place == (str(project.attempt("reference").rewards) if noted else None)
