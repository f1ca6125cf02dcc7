"""Decoding against transformers' own ``generate`` and against plain forward passes."""

from __future__ import annotations

from collections import Counter

import pytest

from kltune.verl_cpu.generation import Sampling, draw, generate, support

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EOS = 1
PROMPTS = [[5, 6, 7], [9], [8, 4, 3, 2, 10, 11], [12, 5], [7, 7, 7, 7]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=EOS,
        initializer_range=0.5,  # sharp enough that greedy decoding says something
    )
    return transformers.LlamaForCausalLM(config).eval()


def decode(model, prompts=PROMPTS, limits=None, sampling=None, seed=0, eos=(EOS,)):
    limits = limits or [12] * len(prompts)
    noise = torch.rand((len(prompts), max(limits)), generator=torch.Generator().manual_seed(seed))
    return generate(model, prompts, limits, sampling or Sampling(), eos=eos, noise=noise)


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_greedy_decoding_equals_transformers(model, prompt):
    batched = decode(model, sampling=Sampling(temperature=0))[PROMPTS.index(prompt)]
    ids = torch.tensor([prompt])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12
    )
    assert batched.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7), Sampling(0), Sampling(1.3, 0.8, 5)]
)
def test_log_probs_equal_a_plain_forward_pass(model, sampling):
    for prompt, completion in zip(PROMPTS, decode(model, sampling=sampling), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion.token_ids])).logits[0]
        scaled = (logits / (sampling.temperature or 1)).log_softmax(-1)
        steps = range(len(completion.token_ids))
        expected = [scaled[len(prompt) - 1 + t, completion.token_ids[t]].item() for t in steps]
        assert completion.log_probs == pytest.approx(expected, abs=1e-5)


def test_a_row_does_not_depend_on_its_neighbours(model):
    noise = torch.rand((len(PROMPTS), 12), generator=torch.Generator().manual_seed(5))
    together = generate(model, PROMPTS, [12] * 5, Sampling(), eos=[EOS], noise=noise)
    for row, prompt in enumerate(PROMPTS):
        alone = generate(model, [prompt], [12], Sampling(), eos=[EOS], noise=noise[row : row + 1])[
            0
        ]
        assert alone.token_ids == together[row].token_ids
        assert alone.log_probs == pytest.approx(together[row].log_probs, abs=1e-5)


def test_a_response_ends_with_its_end_token_or_at_its_own_limit(model):
    limits = [1, 4, 12, 30, 2]
    for seed in range(20):
        for completion, limit in zip(decode(model, limits=limits, seed=seed), limits, strict=True):
            assert EOS not in completion.token_ids[:-1]
            assert completion.stopped == (completion.token_ids[-1] == EOS)
            assert completion.stopped or len(completion.token_ids) == limit
            assert len(completion.log_probs) == len(completion.token_ids) <= limit


def test_without_an_end_token_every_response_has_full_length(model):
    lengths = [len(c.token_ids) for c in decode(model, limits=[3, 7, 5, 1, 2], eos=())]
    assert lengths == [3, 7, 5, 1, 2]


def test_finished_rows_leave_the_batch(model):
    sizes = []
    hook = model.model.register_forward_pre_hook(
        lambda _module, _args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    decode(model, limits=[1, 2, 2, 5, 9], eos=())
    hook.remove()
    assert sizes == [5, 4, 2, 2, 2, 1, 1, 1, 1]


def test_the_same_noise_gives_the_same_tokens_and_other_noise_others(model):
    assert decode(model, seed=1) == decode(model, seed=1)
    assert decode(model, seed=1) != decode(model, seed=2)


def warped(log_probs, *, top_k=0, top_p=1.0):
    processors = transformers.LogitsProcessorList()
    if top_k:
        processors.append(transformers.TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(transformers.TopPLogitsWarper(top_p))
    return processors(None, log_probs.clone())


@pytest.mark.parametrize("top_k", [0, 1, 3, 40])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.01])
def test_top_k_and_top_p_keep_the_tokens_that_transformers_keeps(top_k, top_p):
    torch.manual_seed(0)
    log_probs = (torch.randn(50, 32) * 2).log_softmax(-1)
    kept = support(log_probs, Sampling(top_k=top_k, top_p=top_p)).isfinite()
    assert torch.equal(kept, warped(log_probs, top_k=top_k, top_p=top_p).isfinite())


def test_drawing_follows_the_distribution_and_never_leaves_the_support():
    probs = torch.tensor([0.5, 0.3, 0.0, 0.15, 0.05])
    noise = (torch.arange(10_000) + 0.5) / 10_000
    rows = probs.log().expand(10_000, -1)
    counts = Counter(draw(rows, Sampling(), noise).tolist())
    assert counts == {0: 5000, 1: 3000, 3: 1500, 4: 500}
    counts = Counter(draw(rows, Sampling(top_k=2), noise).tolist())
    assert counts == {0: 6250, 1: 3750}


def test_noise_at_the_upper_end_draws_no_impossible_token():
    log_probs = torch.tensor([[0.7, 0.3, 0.0, 0.0]]).log()
    largest = torch.tensor([1.0 - 2**-24], dtype=torch.float32)
    assert draw(log_probs, Sampling(), largest).tolist() == [1]
    assert draw(log_probs, Sampling(), torch.zeros(1)).tolist() == [0]


def test_sampling_is_read_from_verls_parameters():
    params = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "max_tokens": 5,
    }
    assert Sampling.from_verl(params) == Sampling(0.6, 0.9, 20)
    with pytest.raises(ValueError, match=r"repetition_penalty=1\.2"):
        Sampling.from_verl({**params, "repetition_penalty": 1.2})
    with pytest.raises(ValueError, match=r"min_p=0\.1"):
        Sampling.from_verl({**params, "min_p": 0.1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1}, "temperature: must be >= 0, got -1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p: must be in"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_impossible_sampling_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**arguments)


def test_a_prompt_without_tokens_and_a_limit_below_one_are_refused(model):
    with pytest.raises(ValueError, match="must have a token"):
        decode(model, prompts=[[5], []])
    with pytest.raises(ValueError, match="at least 1"):
        decode(model, prompts=[[5], [6]], limits=[3, 0])
