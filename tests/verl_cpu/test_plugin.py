"""The plugin does nothing for people who did not ask for the CPU, and says so when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("verl")

# Everything that the plugin could touch: registries, hooked functions, the import system.
INVENTORY = """
import json, sys
import verl
from importlib import import_module
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

def named(path):
    module, _, names = path.partition(":")
    thing = import_module(module)
    for name in names.split("."):
        thing = getattr(thing, name)
    where = getattr(thing, "__module__", "")
    return f"{where}.{getattr(thing, '__qualname__', repr(type(thing)))}"

print(json.dumps({
    "platforms": PlatformRegistry.registered_names(),
    "rollouts": sorted(map(str, _ROLLOUT_REGISTRY.items())),
    "replicas": sorted(RolloutReplicaRegistry._registry),
    "functions": {path: named(path) for path in [
        "tensordict:TensorDict.to",
        "verl.utils.distributed:initialize_global_process_group_ray",
        "verl.utils.fsdp_utils:CPUOffloadPolicy",
        "verl.utils.model:load_valuehead_model",
        "verl.workers.rollout.router:get_router_handle",
        "verl.experimental.reward_loop.reward_loop:RewardLoopManager._init_reward_loop_workers",
        "verl.experimental.agent_loop.agent_loop:hydra.utils.instantiate",
        "verl.trainer.constants_ppo:get_ppo_ray_runtime_env",
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ._init_agent_loop_workers",
        "verl.trainer.ppo.v1.agent_loop_tq:list_of_dict_to_tensordict",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.__init__",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sync_metadata_from_transfer_queue",
    ]},
    "finders": [type(finder).__module__ for finder in sys.meta_path],
    "ours": sorted(name for name in sys.modules if name.startswith("kltune")),
}))
"""


def python(code, **environ):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "KLTUNE_"))}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environ}, capture_output=True, text=True
    )


def inventory(**environ):
    ended = python(INVENTORY, **environ)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_verl_of_a_gpu_user_is_untouched():
    without = inventory(VERL_USE_EXTERNAL_PLUGINS="none")
    with_plugin = inventory()
    loaded = with_plugin.pop("ours")
    assert without.pop("ours") == []
    assert loaded == ["kltune", "kltune.verl_cpu", "kltune.verl_cpu.plugin"]
    assert with_plugin == without


def test_the_same_inventory_sees_the_plugin_where_it_was_asked_for():
    plain, cpu = inventory(), inventory(VERL_PLATFORM="cpu", KLTUNE_FORK_WORKERS="0")
    assert "cpu" in cpu["platforms"]
    assert "hf" in cpu["replicas"]
    assert "kltune.verl_cpu.hooks" in cpu["finders"]
    changed = {
        path for path in plain["functions"] if plain["functions"][path] != cpu["functions"][path]
    }
    assert changed >= {
        "verl.utils.fsdp_utils:CPUOffloadPolicy",
        "verl.utils.model:load_valuehead_model",
    }


def test_the_plugin_itself_imports_nothing_heavy():
    ended = python(
        "import sys, kltune.verl_cpu.plugin;"
        "print([name for name in ('torch', 'ray', 'verl') if name in sys.modules])"
    )
    assert ended.stdout.strip() == "[]"


def test_a_plugin_that_cannot_load_ends_the_process_with_the_reason():
    code = (
        "import sys, types; sys.modules['kltune.verl_cpu.hooks'] = types.ModuleType('broken');"
        "import verl; print('went on')"
    )
    ended = python(code, VERL_PLATFORM="cpu")
    assert ended.returncode == 1
    assert "went on" not in ended.stdout
    assert "VERL_PLATFORM=cpu: the CPU platform did not load" in ended.stderr
    assert "Traceback" in ended.stderr


def test_a_verl_that_it_does_not_know_is_refused():
    code = (
        "import importlib.metadata, verl; verl.__version__ = '1.0.0';"
        "import os; os.environ['VERL_PLATFORM'] = 'cpu';"
        "import importlib, kltune.verl_cpu.plugin as p; importlib.reload(p)"
    )
    ended = python(code)
    assert ended.returncode == 1
    assert "written for verl 0.9.*, found 1.0.0" in ended.stderr
