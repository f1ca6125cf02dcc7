from importlib.util import find_spec

import pytest

from kltune.errors import SettingsError
from kltune.verl.compose import compose, value_at
from kltune.verl.installation import Installation, find_verl

pytestmark = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
BASE = {"actor_rollout_ref.rollout.name": "vllm"}


def faults_of(overrides, **more):
    with pytest.raises(SettingsError) as caught:
        compose({**BASE, **overrides}, find_verl(), **more)
    return caught.value.faults


def test_overrides_and_what_depends_on_them_are_resolved():
    config = compose({**BASE, "data.train_batch_size": 8, "+a.b": [1, "x y"]}, find_verl())
    assert value_at(config, "data.train_batch_size") == 8
    assert value_at(config, "+a.b") == [1, "x y"]
    assert value_at(config, "no.such.key", "nothing") == "nothing"


def test_every_unknown_key_is_named_with_its_neighbours():
    assert faults_of({"data.train_batch_sizee": 1, "zzz.yyy": 2, "+zzz.yyy": 3}) == (
        "data.train_batch_sizee: verl does not know this key; near: data.train_batch_size, "
        "data.val_batch_size",
        "zzz.yyy: verl does not know this key; to add a new key write +zzz.yyy",
    )


@pytest.mark.parametrize(
    "overrides",
    [
        {"data.train_batch_size": "${no.such}"},
        {"~data.no_such_key": None},
        {"data.train_batch_size": {"a b'": object()}},
        {"model_engine": "no_such_engine"},
        {"data": None},
        {"data@foo": 1},
    ],
)
def test_what_hydra_cannot_compose_is_a_fault_of_the_settings(overrides):
    assert faults_of(overrides)[0].startswith("verl's configuration does not compose: ")


def test_an_installation_without_its_configuration_is_named(tmp_path):
    with pytest.raises(SettingsError, match="does not compose"):
        compose(BASE, Installation("0.9.1", tmp_path))
