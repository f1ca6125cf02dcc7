"""verl's two ends of the rollout ``name=hf``: launching a replica, sending weights to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

_SERVER = "kltune_rollout_"


class CpuReplica(RolloutReplica):
    """Launches one :class:`~kltune.verl_cpu.server.RolloutServer` beside the replica's ranks."""

    async def launch_servers(self) -> None:
        from kltune.verl_cpu.server import RolloutServer

        node = await self.workers[0].__ray_call__.remote(
            lambda _: ray.get_runtime_context().get_node_id()
        )
        name = f"{_SERVER}{self.replica_rank}"
        server = (
            ray.remote(RolloutServer)
            .options(
                name=name,
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        self.servers.append(server)
        self._server_handle = server
        self._server_address = name


class WeightSender(BaseRollout):
    """The rollout as the training workers see it: a place to send the policy's weights to."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any):
        super().__init__(config, model_config, device_mesh)
        ranks = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        self._replica, self._rank = divmod(int(os.environ["RANK"]), ranks)

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: Any = None,
        **_: Any,
    ) -> None:
        """Gather the weights on every rank and send them from the replica's first.

        Raises:
            NotImplementedError: the weights come as deltas or as a LoRA adapter.
        """
        if wire_format != "named_tensors" or peft_config is not None:
            raise NotImplementedError(
                "the CPU rollout takes whole weights: set model.lora.merge=true for LoRA, "
                f"got {wire_format=}, {peft_config=}"
            )
        # Every rank has to walk through all of them: each full tensor is a collective operation.
        if isinstance(weights, AsyncIterable):
            state = {name: tensor.detach().cpu() async for name, tensor in weights}
        else:
            state = {name: tensor.detach().cpu() for name, tensor in weights}
        if self._rank == 0:
            server = ray.get_actor(f"{_SERVER}{self._replica}")
            await server.load_weights.remote(state, global_steps)

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass


def raise_failure() -> None:
    """Raise what a rollout server failed with; return where none did.

    Raises:
        RuntimeError: a server could not generate; the text holds its traceback.
        ray.exceptions.RayActorError: a server is dead.
    """
    names = [name for name in ray.util.list_named_actors() if name.startswith(_SERVER)]
    for name, failure in zip(
        names, ray.get([ray.get_actor(n).failure.remote() for n in names]), strict=True
    ):
        if failure:
            raise RuntimeError(f"generation failed in {name}:\n{failure}")
