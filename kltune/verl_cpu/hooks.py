"""What verl 0.9 needs changed to train on a CPU, one function per change, each with its reason.

A change is made when its module has been imported: importing them all up front would cost every
process of a run seconds. Line numbers are those of verl 0.9.1.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

# Seconds between two looks of the trainer at what the rollout has finished.
_POLL_S = 0.02


def _plain_gloo(module: ModuleType) -> None:
    """verl/utils/distributed.py:97 names one backend for the CPU and one for the device.

    On a CPU both are ``cpu:gloo``, and torch refuses the pair.
    """
    original = module.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "gloo")

    _replace(module, "initialize_global_process_group_ray", initialize)


def _no_offload(module: ModuleType) -> None:
    """workers/engine/fsdp/transformer_impl.py:462 offloads the reference model to pinned memory.

    Pinning needs an accelerator, and the model is on the CPU already.
    """
    _replace(module, "CPUOffloadPolicy", lambda pin_memory=True: None)  # noqa: ARG005


def _critic_attention(module: ModuleType) -> None:
    """verl/utils/model.py:649 loads the critic with flash attention whatever the config says."""

    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            trust_remote_code=trust_remote_code,
        )

    _replace(module, "load_valuehead_model", load)


def _rollout_class(module: ModuleType) -> None:
    """workers/rollout/base.py:88 lists the rollouts a training worker can have."""
    module._ROLLOUT_REGISTRY["hf", "async"] = "kltune.verl_cpu.rollout.WeightSender"


def _replica_class(module: ModuleType) -> None:
    """workers/rollout/replica.py:320 lists the replicas that can be launched."""

    def load() -> Any:
        from kltune.verl_cpu.rollout import CpuReplica

        return CpuReplica

    module.RolloutReplicaRegistry.register("hf", load)


def _no_balancer(module: ModuleType) -> None:
    """workers/rollout/router.py:397 starts an actor that each request asks for a server.

    A server runs its own agent loops here, so nobody asks; the manager below needs the servers.
    """
    _replace(module, "get_router_handle", lambda servers, **_: servers)


def _no_reward_actors(module: ModuleType) -> None:
    """experimental/reward_loop/reward_loop.py:324 starts actors that apply the reward function.

    A rule is applied where the response was generated; only a reward model keeps its actors.
    """
    original = module.RewardLoopManager._init_reward_loop_workers

    @functools.wraps(original)
    def start(manager: Any) -> None:
        if manager.config.reward.reward_model.enable:
            original(manager)
        else:
            manager.reward_loop_workers = []

    _replace(module.RewardLoopManager, "_init_reward_loop_workers", start)


def _loops_in_servers(module: ModuleType) -> None:
    """experimental/agent_loop/agent_loop.py:1206 starts actors that run the agent loops."""

    async def start(manager: Any) -> None:
        servers = list(manager.llm_client._load_balancer.values())
        for server in servers:
            await server.serve_agent_loops.remote(
                manager.config, manager.teacher_client, manager.reward_loop_worker_handles
            )
        manager.agent_loop_workers = servers

    _replace(module.AgentLoopManagerTQ, "_init_agent_loop_workers", start)


def _one_message(module: ModuleType) -> None:
    """trainer/ppo/v1/agent_loop_tq.py:133,199 writes each prompt's results on their own."""
    from kltune.verl_cpu.courier import Courier

    _replace(module, "tq", Courier(module.tq, module.list_of_dict_to_tensordict))
    _replace(module, "list_of_dict_to_tensordict", lambda rows: rows)  # packed by the courier


def _plain_instantiate(module: ModuleType) -> None:
    """experimental/agent_loop/agent_loop.py:632 has hydra build an agent loop for each prompt.

    It merges configurations for 2 ms to find the class and call it.
    """
    hydra = module.hydra

    def instantiate(config: Any, **kwargs: Any) -> Any:
        if list(config) != ["_target_"]:
            return hydra.utils.instantiate(config, **kwargs)
        return hydra.utils.get_class(config["_target_"])(**kwargs)

    _replace(module, "hydra", SimpleNamespace(utils=SimpleNamespace(instantiate=instantiate)))


def _nothing_to_move(module: ModuleType) -> None:
    """workers/engine/fsdp/transformer_impl.py:1552 moves each micro-batch to the device.

    Where everything is there already, tensordict still rebuilds the batch, its hundreds of
    non-tensor values one by one: a quarter of a step.
    """
    original = module.TensorDict.to

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args == ("cpu",) and not kwargs and str(self.device or "cpu") == "cpu":
            return self
        return original(self, *args, **kwargs)

    _replace(module.TensorDict, "to", to)


def _watch_rollout(module: ModuleType) -> None:
    """trainer/ppo/v1/replay_buffer.py:144 looks every 2.0 s, longer than a whole step here.

    And it goes on with padding in place of responses that could not be generated (``failure``
    counts as sampleable, :340): a broken rollout has to end the run, with its reason.
    """
    buffer = module.ReplayBuffer
    construct, look = buffer.__init__, buffer._sync_metadata_from_transfer_queue

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **{"poll_interval": _POLL_S, **kwargs})

    @functools.wraps(look)
    def sync(self: Any) -> None:
        look(self)
        if any(self.failure_keys.values()):
            from kltune.verl_cpu.rollout import raise_failure

            raise_failure()

    _replace(buffer, "__init__", init)
    _replace(buffer, "_sync_metadata_from_transfer_queue", sync)


def _forked_workers(module: ModuleType) -> None:
    """trainer/main_ppo.py:62 starts Ray, whose workers import for seconds each: see the nursery.

    Only the driver imports this module, early; it asks for the runtime environment last before it
    starts Ray, and not where Ray is up already.
    """
    from kltune.verl_cpu import nursery

    original, address = module.get_ppo_ray_runtime_env, nursery.start()

    @functools.wraps(original)
    def runtime_env(config: Any = None) -> Any:
        joins = os.environ.get("RAY_ADDRESS", "local") != "local" or (
            config is not None and config.ray_kwargs.ray_init.get("address")
        )
        if address and not joins:
            nursery.employ(address)
        return original(config)

    _replace(module, "get_ppo_ray_runtime_env", runtime_env)


def _each(*hooks: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def apply(module: ModuleType) -> None:
        for hook in hooks:
            hook(module)

    return apply


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "tensordict": _nothing_to_move,
    "verl.utils.distributed": _plain_gloo,
    "verl.utils.fsdp_utils": _no_offload,
    "verl.utils.model": _critic_attention,
    "verl.workers.rollout.base": _rollout_class,
    "verl.workers.rollout.replica": _replica_class,
    "verl.workers.rollout.router": _no_balancer,
    "verl.experimental.reward_loop.reward_loop": _no_reward_actors,
    "verl.trainer.constants_ppo": _forked_workers,
    "verl.experimental.agent_loop.agent_loop": _plain_instantiate,
    "verl.trainer.ppo.v1.agent_loop_tq": _each(_loops_in_servers, _one_message),
    "verl.trainer.ppo.v1.replay_buffer": _watch_rollout,
}


def _replace(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name}: not the verl that this hook was made for")
    setattr(owner, name, value)


class _HookOnImport(importlib.abc.MetaPathFinder):
    """Finds modules of :data:`HOOKS` as usual, and has each changed once its code has run."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        hook = HOOKS.get(fullname)
        spec = hook and importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if not hook or not spec or not spec.loader:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Apply each hook to its module: now where it is imported already, else when it will be."""
    for name, hook in HOOKS.items():
        if name in sys.modules:
            hook(sys.modules[name])
    sys.meta_path.insert(0, _HookOnImport())
