import os
import shutil
import time

import pytest
import yaml
from omegaconf import OmegaConf

from kltune.errors import SettingsError
from kltune.verl.compose import value_at
from kltune.verl.defaults import default_config, installed_defaults, offline_config
from kltune.verl.installation import Installation
from kltune.verl.releases import release_of

from .wheels import LAUNCHABLE, VERSIONS, compose, package


def leaves(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize("version", VERSIONS)
def test_known_defaults_are_those_of_the_wheel(version):
    own = OmegaConf.to_container(compose(version))
    known = dict(leaves(default_config(release_of(version))))
    assert known == {path: value_at(own, path, "not there") for path in known}


@pytest.mark.parametrize("version", VERSIONS)
def test_overrides_reach_what_refers_to_them_as_in_verl(version):
    overrides = {
        "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.rollout.name": "vllm",
        "trainer.experiment_name": "x",
        "trainer.logger": ["console"],
    }
    words = [f"{key}={value}" for key, value in overrides.items()]
    own = compose(version, *[word.replace("'", "") for word in words])
    known = offline_config(overrides, release_of(version))
    for path, value in leaves(known):
        assert OmegaConf.select(own, path) == value, path


def test_a_reference_out_of_the_known_keys_stays_as_it_is():
    config = offline_config(
        {"trainer.project_name": "${oc.env:NO_SUCH_NAME}", "+a.b": ["${x.y}", 1]},
        release_of("0.9.1"),
    )
    assert config["trainer"]["project_name"] == "${oc.env:NO_SUCH_NAME}"
    assert config["a"]["b"] == ["${x.y}", 1]


@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
@pytest.mark.parametrize("version", LAUNCHABLE)
def test_the_installed_defaults_are_what_hydra_composes(version, name):
    verl = Installation(version, package(version))
    own = OmegaConf.to_container(compose(version, name=name))
    # A choice of files, which no override reaches as a value.
    own.pop("model_engine", None)
    found = OmegaConf.to_container(installed_defaults(verl, name))
    found.pop("model_engine", None)
    assert found == own


def test_an_edited_part_is_seen(tmp_path):
    shutil.copytree(package("0.9.1"), tmp_path / "verl")
    part = tmp_path / "verl" / "trainer" / "config" / "data" / "legacy_data.yaml"
    part.write_text(part.read_text().replace("train_batch_size: 1024", "train_batch_size: 7"))
    later = time.time() + 3600
    os.utime(part, (later, later))
    found = installed_defaults(Installation("0.9.1", tmp_path / "verl"))
    assert found.data.train_batch_size == 7


def test_a_configuration_that_is_not_there_is_named():
    with pytest.raises(SettingsError, match="no_such: verl"):
        installed_defaults(Installation("0.9.1", package("0.9.1")), "no_such")


def test_the_file_reads_as_plain_yaml(request):
    path = request.config.rootpath / "kltune" / "verl" / "defaults.yaml"
    assert all(isinstance(v, dict) for v in yaml.safe_load(path.read_text()).values())
