import pytest

from kltune.errors import SettingsError
from kltune.verl.keys import Key
from kltune.verl.profiler import is_profiler, profiler_overrides, profiler_tool
from kltune.verl.releases import release_of

from .wheels import compose

NEWEST = release_of("0.9.1")


def config(**values):
    return {"global_profiler": values}


def test_torch_unless_the_user_has_named_nsys():
    assert profiler_tool(config(tool=None), NEWEST) == "torch"
    assert profiler_tool(config(tool="nsys"), NEWEST) == "nsys"
    assert profiler_tool(config(tool="nsys"), release_of("0.6.1")) == "nsys"


def test_a_profiler_without_collective_operations_is_refused():
    with pytest.raises(SettingsError, match="torch or nsys, got torch_memory"):
        profiler_tool(config(tool="torch_memory"), NEWEST)


@pytest.mark.parametrize("version", ["0.5.0", "0.6.1"])
def test_an_old_verl_is_refused(version):
    with pytest.raises(SettingsError, match=f"needs verl 0.7 or newer, this is {version}"):
        profiler_tool(config(tool=None), release_of(version))


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.1"])
def test_verl_takes_the_overrides_and_hands_them_on(version):
    overrides = profiler_overrides(config(), release_of(version), 3, [0, 1])
    found = compose(version, *(f"{k}={v}" for k, v in overrides.items()))
    assert found.global_profiler.steps == [3]
    for role in (found.actor_rollout_ref.actor.profiler, found.critic.profiler):
        assert (role.tool, role.enable, role.ranks) == ("torch", True, [0, 1])
    assert not found.actor_rollout_ref.rollout.profiler.enable


def test_overrides_of_the_profiler_are_told_from_others():
    assert is_profiler("global_profiler.tool")
    assert is_profiler("+actor_rollout_ref.actor.profiler.enable")
    assert not is_profiler("actor_rollout_ref.actor.ppo_mini_batch_size")


def test_ranks_that_the_user_named_stay():
    named = {"actor_rollout_ref": {"actor": {"profiler": {"ranks": [5]}}}}
    overrides = profiler_overrides({**config(), **named}, NEWEST, 3, [0, 1])
    assert NEWEST.key(Key.ACTOR_PROFILER_RANKS) not in overrides
    assert overrides[NEWEST.key(Key.CRITIC_PROFILER_RANKS)] == [0, 1]
