import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kltune.errors import SettingsError
from kltune.verl.script import read_script, rewrite

from .test_script import SCRIPTS, argv_of

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

KL = {
    "algorithm.kl_ctrl.kl_coef": 0.003,
    "algorithm.use_kl_in_reward": True,
    "+trainer.note": "it's $HOME; `x`",
}


@pytest.mark.parametrize("name", ["plain.sh", "variables.sh", "arrays.sh", "ray_job.sh"])
def test_a_changed_script_reads_back_with_the_changes(name):
    script = read_script((SCRIPTS / name).read_text())
    text = rewrite(script, KL, ["Calibrated by kltune"])
    (before,), (after,) = script.launches, read_script(text).launches
    assert after.values() == {**before.values(), **KL}
    assert "# Calibrated by kltune\n" in text
    assert after.wrapper == before.wrapper


def test_only_the_lines_that_change_change_and_each_is_marked():
    script = read_script((SCRIPTS / "plain.sh").read_text())
    text = rewrite(
        script, {"algorithm.kl_ctrl.kl_coef": 0.003, "data.seed": 1, "trainer.nnodes": 2}
    )
    before, after = script.text.splitlines(), text.splitlines()
    changed = [line.strip() for line in after if line not in before]
    assert changed == [
        "++data.seed=1 `# kltune: was 7` \\",
        "algorithm.kl_ctrl.kl_coef=0.003 `# kltune: was 0.001` \\",
        "trainer.total_epochs=15 \\",
        "trainer.nnodes=2 `# kltune: added` $@ 2>&1 | tee run.log",
    ]


def test_in_an_array_a_new_line_needs_no_backslash():
    script = read_script((SCRIPTS / "arrays.sh").read_text())
    text = rewrite(script, {"algorithm.kl_ctrl.kl_coef": 0.003})
    assert "\n    algorithm.kl_ctrl.kl_coef=0.003 `# kltune: added`\n)" in text


def test_a_script_can_be_rewritten_again():
    text = (SCRIPTS / "plain.sh").read_text()
    for coefficient in (0.003, 0.004):
        script = read_script(text)
        text = rewrite(script, {"algorithm.kl_ctrl.kl_coef": coefficient})
    assert read_script(text).launches[0].values()["algorithm.kl_ctrl.kl_coef"] == 0.004


@pytest.mark.parametrize("name", ["either.sh", "slurm.sh"])
def test_a_command_made_from_text_is_refused(name):
    script = read_script((SCRIPTS / name).read_text())
    with pytest.raises(SettingsError, match="made from text"):
        rewrite(script, KL)


def test_secrets_leave_the_script():
    script = read_script(
        "#!/bin/bash\nexport WANDB_API_KEY=s3cr3t\n"
        "python3 -m verl.trainer.main_ppo +a.hf_token=t0k3n \\\n  x=1\n"
    )
    text = rewrite(script, {"+a.hf_token": "n3w", "x": 2})
    assert not any(secret in text for secret in ("s3cr3t", "t0k3n", "n3w"))
    assert text.startswith("#!/bin/bash\n# Secrets were taken out")


@needs_bash
def test_bash_passes_the_changed_words_on(tmp_path):
    script = read_script((SCRIPTS / "plain.sh").read_text())
    text = rewrite(script, KL).replace("| tee run.log", "")
    words = argv_of(text, tmp_path)
    assert "algorithm.kl_ctrl.kl_coef=0.003" in words
    assert "algorithm.use_kl_in_reward=true" in words
    assert len(words) == len(script.launches[0].overrides) + 2 + 2


_hostile = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=20)


@needs_bash
@settings(max_examples=60, deadline=None)
@given(old=_hostile, new=_hostile)
def test_hostile_values_stay_values(old, new, tmp_path_factory):
    from kltune.verl.overrides import render

    old, new = (text.replace("${", "") for text in (old, new))
    start = read_script("python3 -m verl.trainer.main_ppo \\\n  x=0 \\\n  y=2\n")
    first = rewrite(start, {"x": old})
    second = rewrite(read_script(first), {"x": new})
    expected = ["-m", "verl.trainer.main_ppo", *render({"x": new, "y": 2})]
    assert argv_of(second, tmp_path_factory.getbasetemp()) == expected
