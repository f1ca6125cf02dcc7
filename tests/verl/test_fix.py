import pytest
import yaml

from kltune.errors import SettingsError
from kltune.verl.lint import Level, LintFinding
from kltune.verl.lint.fix import apply_fixes

TEXT = """\
# mine
verl:
  overrides:
    trainer.test_freq: -1   # never
    # about the logger
    "trainer.logger": [wandb]
    +data.seed: 1

cluster: {nodes: 1}
"""


def finding(fix=None, drop=(), safe=True):
    return LintFinding("x", Level.WARNING, "", fix=fix or {}, drop=drop, safe=safe)


def test_values_are_changed_added_and_taken_away_in_place():
    fixes = [
        finding({"trainer.test_freq": 5}),
        finding({"trainer.logger": ["wandb", "file"]}),
        finding({"data.seed": 1}, drop=("+data.seed",)),
        finding({"trainer.save_freq": 20}),
        finding({"data.train_batch_size": 8}, safe=False),
    ]
    text = apply_fixes(TEXT, fixes)
    assert yaml.safe_load(text) == {
        "verl": {
            "overrides": {
                "trainer.test_freq": 5,
                "trainer.logger": ["wandb", "file"],
                "data.seed": 1,
                "trainer.save_freq": 20,
            }
        },
        "cluster": {"nodes": 1},
    }
    assert "# mine" in text
    assert "# about the logger" in text
    assert text.endswith("\n\ncluster: {nodes: 1}\n")


def test_without_safe_fixes_nothing_changes():
    assert apply_fixes(TEXT, [finding({"a": 1}, safe=False)]) == TEXT


@pytest.mark.parametrize(
    "text", ["verl: {overrides: {a: 1}}\n", "preset: x\n", "verl:\n  overrides: {a: 1}\n"]
)
def test_overrides_that_stand_on_one_line_are_left_to_the_user(text):
    with pytest.raises(SettingsError, match="paste"):
        apply_fixes(text, [finding({"a": 2})])
