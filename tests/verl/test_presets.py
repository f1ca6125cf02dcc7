import pytest
import yaml
from omegaconf import OmegaConf

from kltune.launchers import LAUNCHERS
from kltune.settings import load, preset_names, presets_dir
from kltune.verl.lint import Level, lint
from kltune.verl.overrides import render
from kltune.verl.releases import release_of

from .wheels import LAUNCHABLE, compose

# The CPU preset needs a plugin of verl 0.9 and has tests of its own.
GPU_PRESETS = [name for name in preset_names() if name != "cpu-tiny"]


def content(name):
    return yaml.safe_load((presets_dir() / f"{name}.yaml").read_text())


def overrides_of(name):
    preset = content(name)
    size = {
        "trainer.nnodes": preset["cluster"]["nodes"],
        "trainer.n_gpus_per_node": preset["cluster"]["gpus_per_node"],
    }
    return {**preset["verl"]["overrides"], **size}


def test_there_is_a_preset_for_each_kind_of_user():
    assert set(GPU_PRESETS) >= {
        "dapo-7b-8gpu", "grpo-7b-8gpu", "gsm8k-0.5b-1gpu", "gsm8k-32b-8nodes", "gsm8k-7b-8gpu"
    }  # fmt: skip


@pytest.mark.parametrize("version", LAUNCHABLE)
@pytest.mark.parametrize("name", GPU_PRESETS)
def test_a_preset_composes_under_every_release_without_faults(name, version):
    overrides = overrides_of(name)
    schema = OmegaConf.to_container(compose(version))
    config = OmegaConf.to_container(compose(version, *render(overrides)), resolve=True)
    found = lint(config, overrides, release_of(version), schema=schema, script=False)
    # KL off is what the DAPO preset is for.
    assert [f for f in found if f.level is not Level.INFO] == []


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_says_what_it_needs_and_where_its_numbers_come_from(name):
    about = content(name)["about"]
    assert "\n" not in about["summary"]
    assert set(about["needs"]) == {"gpus", "memory_gb", "data"}
    assert len(about["sources"]) > 20


@pytest.mark.parametrize("name", GPU_PRESETS)
def test_a_preset_asks_for_the_gpus_that_its_cluster_has(name):
    preset = content(name)
    cluster = preset["cluster"]
    assert preset["about"]["needs"]["gpus"] == cluster["nodes"] * cluster["gpus_per_node"]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_loads(name):
    launcher = content(name)["cluster"]["launcher"]
    if launcher not in LAUNCHERS:
        pytest.skip(f"no launcher {launcher} yet")
    assert load(name).content.verl.overrides


def test_eight_nodes_have_the_values_of_the_protocol():
    overrides = overrides_of("gsm8k-32b-8nodes")
    assert overrides["algorithm.kl_ctrl.target_kl"] == 0.015
    assert overrides["actor_rollout_ref.actor.strategy"] == "fsdp2"
    assert overrides["critic.strategy"] == "fsdp2"
    assert overrides["actor_rollout_ref.actor.fsdp_config.offload_policy"] is True
    assert overrides["actor_rollout_ref.rollout.tensor_model_parallel_size"] == 4
    assert overrides["actor_rollout_ref.actor.clip_ratio_c"] == 3.0
