"""Batched decoding with a transformers model: no Ray, no verl, no global random state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_p: draws only from the smallest set of tokens with at least this probability; 1 is off.
        top_k: draws only from this many most likely tokens; 0 and below are off.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature: must be >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: must be in (0, 1], got {self.top_p}")

    @classmethod
    def from_verl(cls, params: Mapping[str, Any]) -> Sampling:
        """Return what verl's sampling parameters ask for.

        Raises:
            ValueError: a parameter is set that this decoder does not know.
        """
        known = {"temperature", "top_p", "top_k"}
        neutral = {"repetition_penalty": 1.0}
        elsewhere = {"logprobs", "max_tokens", "max_new_tokens"}
        unknown = [
            f"{name}={value}"
            for name, value in params.items()
            if name not in known | elsewhere and neutral.get(name) != value
        ]
        if unknown:
            raise ValueError(f"the CPU rollout cannot sample with {', '.join(sorted(unknown))}")
        return cls(**{name: params[name] for name in known & params.keys()})


@dataclass(frozen=True, slots=True)
class Completion:
    """What was generated for one prompt.

    Attributes:
        token_ids: the response, its end-of-sequence token included.
        log_probs: log probability of each token in nats under softmax(logits / temperature) over
            the whole vocabulary, as verl's trainer computes it; top-p and top-k do not enter.
        stopped: whether it ended by itself, not at its limit.
    """

    token_ids: list[int]
    log_probs: list[float]
    stopped: bool


@torch.inference_mode()
def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    sampling: Sampling,
    *,
    eos: Collection[int],
    noise: torch.Tensor,
) -> list[Completion]:
    """Return one completion for each prompt.

    A row leaves the batch when it ends, so finished rows cost nothing. A row's tokens depend on
    its own prompt and noise, not on the rows beside it.

    Args:
        model: a transformers causal language model in eval mode.
        prompts: token ids, at least one each.
        limits: most tokens to generate, per prompt; at least 1.
        sampling: how tokens are drawn, the same for all rows.
        eos: token ids that end a response.
        noise: uniform in [0, 1), shape (prompts, max(limits)); token t of row i is drawn with
            ``noise[i, t]``.

    Raises:
        ValueError: an empty prompt or a limit below 1.
    """
    if not all(prompts) or min(limits) < 1:
        raise ValueError("every prompt must have a token and every limit be at least 1")
    width = max(map(len, prompts))
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)

    rows = torch.arange(len(prompts))
    last = torch.tensor(limits) - 1
    ends = torch.tensor(sorted(eos))
    tokens: list[list[int]] = [[] for _ in prompts]
    log_probs: list[list[float]] = [[] for _ in prompts]
    stopped = [False] * len(prompts)
    cache = None
    for t in range(max(limits)):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        scaled = output.logits[:, -1].float() / (sampling.temperature or 1.0)
        scores = scaled.log_softmax(-1)
        drawn = draw(scores, sampling, noise[rows, t])
        ended = torch.isin(drawn, ends)
        chosen = scores.gather(-1, drawn[:, None])[:, 0]
        for row, token, score, end in zip(
            rows.tolist(), drawn.tolist(), chosen.tolist(), ended.tolist(), strict=True
        ):
            tokens[row].append(token)
            log_probs[row].append(score)
            stopped[row] = end

        going = (~ended & (last[rows] > t)).nonzero()[:, 0]
        if not len(going):
            break
        if len(going) < len(rows):
            rows, drawn, mask, positions = rows[going], drawn[going], mask[going], positions[going]
            cache.batch_select_indices(going)
        ids = drawn[:, None]
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones((len(rows), 1))], dim=1)
    return [Completion(*completion) for completion in zip(tokens, log_probs, stopped, strict=True)]


def draw(log_probs: torch.Tensor, sampling: Sampling, noise: torch.Tensor) -> torch.Tensor:
    """Return one token id per row, shape (rows,).

    Args:
        log_probs: normalised, shape (rows, vocabulary).
        sampling: greedy, or which tokens may be drawn.
        noise: uniform in [0, 1), shape (rows,): where in the cumulative distribution to draw.
    """
    if sampling.temperature == 0:
        return log_probs.argmax(-1)
    # In float64 the product below stays under the total, so a token of probability 0 is never hit.
    cumulative = support(log_probs, sampling).double().exp().cumsum(-1)
    target = noise.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def support(log_probs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log probabilities with -inf where top-k, then top-p, forbid a token.

    Like transformers' and vLLM's: top-p looks at what top-k left, renormalised, and keeps a token
    while the mass of the more likely ones is below ``top_p``; the most likely one always stays.
    """
    if 0 < sampling.top_k < log_probs.shape[-1]:
        smallest = log_probs.topk(sampling.top_k).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = log_probs.sort(descending=True)
        probs = ordered.softmax(-1)
        dropped = probs.cumsum(-1) - probs >= sampling.top_p
        log_probs = log_probs.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    return log_probs
