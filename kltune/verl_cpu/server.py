"""One rollout replica: generation, agent loops and rule-based rewards in one process.

verl gives each of the three its own Ray actors and sends every prompt through all of them. On a
CPU each further process costs seconds of imports and each message about a millisecond, more than
the tiny models that train here need for the arithmetic.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from kltune.verl_cpu.generation import Completion, Sampling, generate

# Seconds without a new request after which a batch is taken to be complete.
_QUIET_S = 0.01
# Warns for each prompt that verl has no special handling of the model's chat template.
_CHATTY = "verl.utils.tokenizer.continuous_token_wiring"


@dataclass(frozen=True, slots=True)
class _Request:
    prompt: tuple[int, ...]
    limit: int
    sampling: Sampling
    result: asyncio.Future[TokenOutput]


class RolloutServer:
    """Ray actor that answers verl's generation requests and runs verl's agent loops.

    Args:
        config: verl's rollout configuration.
        model_config: verl's model configuration.
        replica_rank: number of this replica, from 0.
    """

    def __init__(self, config: Any, model_config: Any, replica_rank: int):
        from transformers import AutoModelForCausalLM

        model_config = omega_conf_to_dataclass(model_config)
        self._config = config
        self._rank = replica_rank
        self._model = AutoModelForCausalLM.from_pretrained(
            model_config.local_path,
            config=model_config.hf_config,
            dtype=PrecisionType.to_dtype(config.dtype),
            trust_remote_code=model_config.trust_remote_code,
        ).eval()
        self._eos = _eos_ids(model_config)
        self._step = 0
        self._copies: Counter[tuple[int, ...]] = Counter()
        self._waiting: list[_Request] = []
        self._decoder: asyncio.Task[None] | None = None
        self._failure: str | None = None
        self._loops: Any = None

    async def load_weights(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        """Take the policy of a step over.

        Raises:
            RuntimeError: a weight is missing or has no place in the model.
        """
        missing, unexpected = self._model.load_state_dict(weights, strict=False)
        missing = [name for name in missing if name not in _tied(self._model)]
        if missing or unexpected:
            raise RuntimeError(f"weights of step {step}: {missing=}, {unexpected=}")
        self._step = step or 0
        self._copies.clear()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,  # noqa: ARG002
        **media: Any,
    ) -> TokenOutput:
        """Return the response to one prompt; requests that arrive together are decoded together.

        Raises:
            ValueError: images or other media, an unknown sampling parameter, or no room for a
                response.
        """
        try:
            request = self._request(prompt_ids, sampling_params, media)
        except ValueError:
            self._failure = traceback.format_exc()
            raise
        self._waiting.append(request)
        if self._decoder is None:
            self._decoder = asyncio.create_task(self._decode_waiting())
        return await request.result

    def _request(
        self, prompt: Sequence[int], params: dict[str, Any], media: dict[str, Any]
    ) -> _Request:
        if given := sorted(name for name, value in media.items() if value is not None):
            raise ValueError(f"the CPU rollout is for text alone, got {', '.join(given)}")
        limit = self._limit(len(prompt), params)
        if not prompt or limit < 1:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens leaves room for {limit}: it must have a token, "
                "and rollout.max_model_len must exceed it"
            )
        return _Request(
            prompt=tuple(prompt),
            limit=limit,
            sampling=Sampling.from_verl(params),
            result=asyncio.get_running_loop().create_future(),
        )

    def _limit(self, prompt_length: int, params: dict[str, Any]) -> int:
        room: list[int] = [self._config.response_length]
        if self._config.max_model_len:
            room.append(self._config.max_model_len - prompt_length)
        room += [params[name] for name in ("max_tokens", "max_new_tokens") if params.get(name)]
        return min(room)

    async def _decode_waiting(self) -> None:
        while self._waiting:
            seen = 0
            while seen < len(self._waiting):
                seen = len(self._waiting)
                await asyncio.sleep(_QUIET_S)
            sampling = self._waiting[0].sampling
            batch = [r for r in self._waiting if r.sampling == sampling]
            batch = batch[: self._config.max_num_seqs]
            taken = set(map(id, batch))
            self._waiting = [r for r in self._waiting if id(r) not in taken]
            try:
                outputs = await asyncio.to_thread(self._complete, batch)
            except Exception as error:
                self._failure = traceback.format_exc()
                for request in batch:
                    request.result.set_exception(error)
            else:
                for request, output in zip(batch, outputs, strict=True):
                    request.result.set_result(output)
        self._decoder = None

    def _complete(self, batch: list[_Request]) -> list[TokenOutput]:
        completions = generate(
            self._model,
            [request.prompt for request in batch],
            [request.limit for request in batch],
            batch[0].sampling,
            eos=() if self._config.ignore_eos else self._eos,
            noise=torch.stack([self._noise(request) for request in batch]),
        )
        return [self._output(completion) for completion in completions]

    def _noise(self, request: _Request) -> torch.Tensor:
        """Uniform numbers that depend on seed, step, prompt and how often it was asked for.

        So a run can be repeated although requests reach the server in any order.
        """
        copy = self._copies[request.prompt]
        self._copies[request.prompt] += 1
        entropy = [self._config.seed, self._rank, self._step, copy, *request.prompt]
        draws = np.random.default_rng(entropy).random(self._config.response_length)
        return torch.from_numpy(draws)

    def _output(self, completion: Completion) -> TokenOutput:
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs,
            stop_reason="completed" if completion.stopped else "length",
            num_preempted=0,
            extra_fields={"global_steps": self._step},
        )

    async def failure(self) -> str | None:
        """Return the traceback of the last request that failed, None where none did."""
        return self._failure

    async def serve_agent_loops(self, config: Any, teacher: Any, rewards: Any) -> None:
        """Get ready for :meth:`generate_sequences`.

        Args:
            config: verl's whole configuration.
            teacher: verl's client of teacher models, or None.
            rewards: handles of verl's reward actors; empty to compute rewards here, None for a
                reward that the trainer computes later.
        """
        # The class under @ray.remote: here it lives inside another actor.
        logging.getLogger(_CHATTY).setLevel(logging.ERROR)
        worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
        if rewards is not None and not rewards:
            rewards = [_Local(RewardLoopWorker(config))]
        self._loops = worker(config, _LocalClient(config, _Local(self)), teacher, rewards)

    async def generate_sequences(self, batch: Any) -> None:
        """Start verl's agent loops for a batch; their results go to the TransferQueue."""
        await self._loops.generate_sequences(batch)

    async def wake_up(self) -> None:
        pass

    async def sleep(self) -> None:
        pass

    async def start_profile(self, **_: Any) -> None:
        """Profile nothing: verl asks every server, and this one communicates with no other."""

    async def stop_profile(self) -> None:
        pass


class _Local:
    """The ``.method.remote()`` face of an actor handle, for an object of this process."""

    def __init__(self, target: Any):
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._target, name))


class _LocalClient(LLMServerClient):
    """verl's client of the rollout servers, without the actor that balances load among them."""

    def __init__(self, config: Any, server: _Local):
        super().__init__(config)
        self._server = server

    async def _acquire_server(self, request_id: str, **_: Any) -> tuple[str, Any]:
        return request_id, self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass


def _eos_ids(model_config: Any) -> set[int]:
    ids: set[int] = set()
    for source in (model_config.generation_config, model_config.hf_config):
        eos = getattr(source, "eos_token_id", None)
        if eos is not None:
            ids |= {eos} if isinstance(eos, int) else set(eos)
    return ids


def _tied(model: Any) -> set[str]:
    return set(getattr(model, "all_tied_weights_keys", None) or ())
