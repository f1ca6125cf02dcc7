import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from kltune.errors import SettingsError
from kltune.verl.exports import config_yaml

from .wheels import LAUNCHABLE, compose

CALIBRATED = {
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.kl_ctrl.kl_coef": 1e-06,
    "algorithm.kl_ctrl.target_kl": 0.02,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.rollout.name": "vllm",
    "trainer.logger": ["console", "file"],
    "+data.made_up": {"a": 1},
}


@pytest.mark.parametrize("version", LAUNCHABLE)
def test_it_composes_over_the_defaults_of_every_release(version, tmp_path):
    (tmp_path / "config.yaml").write_text(config_yaml(CALIBRATED, {}))
    exported = compose(version, config_dir=tmp_path, name="config")
    words = [f"{k}={v}" for k, v in CALIBRATED.items() if "." in k and not k.startswith("+")]
    words = [word.replace("'", "").replace("True", "true") for word in words]
    direct = compose(version, *words, "+data.made_up={a: 1}")
    assert OmegaConf.to_container(exported) == OmegaConf.to_container(direct)


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_the_installed_verl_takes_it_by_config_path_and_name(tmp_path):
    (tmp_path / "config.yaml").write_text(config_yaml(CALIBRATED, {}))
    command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo", "--cfg", "job"]
    command += ["--config-path", str(tmp_path), "--config-name", "config"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    config = yaml.safe_load(result.stdout)
    assert config["algorithm"]["kl_ctrl"]["kl_coef"] == 1e-06
    assert config["actor_rollout_ref"]["actor"]["strategy"] == "fsdp2"
    assert config["data"]["made_up"] == {"a": 1}


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.1"])
def test_a_choice_of_files_goes_into_the_defaults_list(version, tmp_path):
    text = config_yaml({"model_engine": "veomni", "data.train_batch_size": 8}, {})
    (tmp_path / "config.yaml").write_text(text)
    exported = compose(version, config_dir=tmp_path, name="config")
    assert exported.model_engine == "veomni"
    assert exported.actor_rollout_ref.actor.strategy == "veomni"
    assert exported.data.train_batch_size == 8


def test_every_value_shows_its_origin_and_the_header_stands_on_top():
    text = config_yaml(
        {"algorithm.kl_ctrl.kl_coef": 0.003, "+data.x": 1},
        {"algorithm.kl_ctrl.kl_coef": "trial 14\nof the search", "data.x": "kltune.yaml"},
        ["kltune 1.0", "two\nlines"],
    )
    assert text.startswith("# kltune 1.0\n# two\n# lines\ndefaults:\n")
    assert "    kl_coef: 0.003  # trial 14 of the search\n" in text
    assert "  x: 1  # kltune.yaml\n" in text


def test_a_secret_becomes_a_reference_to_the_environment():
    key = "+ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY"
    text = config_yaml(
        {key: "k3y", "+trainer.db": "pg://u:pa55@h/x", "+a": [{"hf_token": "t0k"}]},
        {key: "HF_TOKEN=t0k"},
        ["WANDB_API_KEY=k3y"],
    )
    assert not any(secret in text for secret in ("k3y", "pa55", "t0k"))
    assert '"${oc.env:WANDB_API_KEY}"' in text
    assert '"${oc.env:HF_TOKEN}"' in text


def test_a_deletion_is_left_to_the_command_line():
    assert "# Add to the command line: ~data.x" in config_yaml({"~data.x": None}, {})


@pytest.mark.parametrize(
    "overrides", [{"data.x": 1, "data.x.y": 2}, {"data.x.y": 2, "data.x": 1}], ids=str
)
def test_a_value_and_a_key_below_it_exclude_each_other(overrides):
    with pytest.raises(SettingsError, match="keep one"):
        config_yaml(overrides, {})


# "$" would begin an interpolation, as it does on verl's command line.
_texts = st.text(st.characters(exclude_characters="$\x00", exclude_categories=["Cs"]))
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(_values, _texts)
@example("1e-6", "")
@example("0x10", "a # b: c")
@example("12:30:45", "")
@example("- a\n# b", "")
@example("\x85\u2028\ufeff", "\u2028x: 1")
@example("yes", "\r")
@example(None, "\x1b#")
def test_any_value_comes_back_as_it_was(value, origin):
    text = config_yaml({"trainer.x": value}, {"trainer.x": origin})
    assert OmegaConf.to_container(OmegaConf.create(text))["trainer"] == {"x": value}
