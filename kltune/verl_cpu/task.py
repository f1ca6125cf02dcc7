"""Makes the task that real verl learns on a CPU: a small language model and word problems for it.

    python -m kltune.verl_cpu.task presets/cpu-tiny

The problems have GSM8K's format and verl's own GSM8K scorer grades them. The model is warmed up on
worked solutions of which some are wrong on purpose: where something is given away, the solver adds
more often than it subtracts. So the model starts with the skill and a bad habit. Reinforcement can
turn the habit round at a small distance from the starting policy, and loses the skill when it
drifts far: the coefficient of the KL penalty decides which of the two happens.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

WARM_UP_STEPS = 700
_BATCH = 64
_LEARNING_RATE = 4e-3
_TRAIN, _TEST = 2048, 256
_LOSSES_SHARE = 0.6  # share of problems in which something is given away
_RIGHT = 0.42  # share of those that the warm-up solves by subtracting

_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo")
_THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "stones")
_GAINS = ("buys", "finds", "gets")
_LOSSES = ("gives", "loses", "sells")

_SPECIAL = ("<pad>", "<eos>", "<unk>", "<user>", "<assistant>")
_ANSWER = "\n#### "  # one token, with the blank that GSM8K's scorer looks for
_PIECES = rf"{_ANSWER}|<[a-z]+>| ?[A-Za-z]+|[\s\S]"
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<eos>"
    "{% else %}<user>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem: somebody has ``first`` things and gains or loses ``second`` of them."""

    name: str
    thing: str
    verb: str
    first: int
    second: int

    @property
    def gains(self) -> bool:
        return self.verb in _GAINS

    @property
    def question(self) -> str:
        return (
            f"{self.name} has {self.first} {self.thing} and {self.verb} {self.second}."
            " How many now?"
        )

    @property
    def result(self) -> int:
        return self.first + (self.second if self.gains else -self.second)

    def solution(self, *, adds: bool) -> str:
        """Return working and answer in GSM8K's form, right where ``adds`` fits the problem."""
        sign, answer = ("+", self.first + self.second) if adds else ("-", self.first - self.second)
        return f"{self.first}{sign}{self.second}={answer}{_ANSWER}{answer}"


def problem(rng: random.Random) -> Problem:
    """Draw a problem with two digits and one, and a result between 1 and 38."""
    verb = rng.choice(_LOSSES if rng.random() < _LOSSES_SHARE else _GAINS)
    return Problem(
        rng.choice(_NAMES), rng.choice(_THINGS), verb, rng.randint(10, 29), rng.randint(2, 9)
    )


def problems(count: int, rng: random.Random, exclude: Iterable[Problem] = ()) -> list[Problem]:
    """Draw different problems, none of them in ``exclude``."""
    excluded = set(exclude)
    drawn: dict[Problem, None] = {}
    while len(drawn) < count:
        candidate = problem(rng)
        if candidate not in excluded:
            drawn[candidate] = None
    return list(drawn)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words and single digits that decodes to the exact text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [f" {word}" for word in (*_THINGS, *_GAINS, *_LOSSES, "has", "and", "How", "many")]
    pieces = (*_SPECIAL, _ANSWER, *"0123456789+-=.? \n", *_NAMES, *words, " now")
    numbered = {piece: number for number, piece in enumerate(pieces)}
    core = Tokenizer(models.WordLevel(numbered, unk_token="<unk>"))  # noqa: S106
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template=_CHAT_TEMPLATE,
        model_max_length=64,
    )


def new_model(vocabulary: int) -> LlamaForCausalLM:
    """Return an untrained model of 0.19 million parameters.

    Llama, since transformers would give a Qwen2 model its own tokenizer class, whatever is saved.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=96,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            pad_token_id=_SPECIAL.index("<pad>"),
            bos_token_id=None,
            eos_token_id=_SPECIAL.index("<eos>"),
        )
    )


def warm_up(
    model: LlamaForCausalLM, tokens: PreTrainedTokenizerFast, steps: int, rng: random.Random
) -> None:
    """Teach the model to work problems out, with the bad habit of the module's text."""
    import torch
    from rich.progress import track

    optimizer = torch.optim.AdamW(model.parameters(), _LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    for _ in track(range(steps), description="warming the model up"):
        questions, answers = [], []
        for _ in range(_BATCH):
            drawn = problem(rng)
            adds = drawn.gains or rng.random() >= _RIGHT
            questions.append(f"<user>{drawn.question}<assistant>")
            answers.append(f"{drawn.solution(adds=adds)}<eos>")
        texts = [question + answer for question, answer in zip(questions, answers, strict=True)]
        batch = tokens(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        for row, question in enumerate(questions):
            labels[row, : len(tokens(question).input_ids)] = -100
        model(**batch, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def write_problems(path: Path, drawn: list[Problem], split: str) -> None:
    """Write problems as the parquet file that verl reads."""
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": item.question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(item.result)},
            "extra_info": {
                "split": split,
                "index": index,
                "question": item.question,
                "answer": item.solution(adds=item.gains),
            },
        }
        for index, item in enumerate(drawn)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def make(directory: Path, steps: int = WARM_UP_STEPS) -> None:
    """Write ``model/``, ``train.parquet`` and ``test.parquet``; the same files each time.

    Args:
        directory: made where it is missing.
        steps: optimizer steps of the warm-up, 64 problems each.
    """
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    test = problems(_TEST, _rng("test"))
    write_problems(directory / "test.parquet", test, "test")
    train = problems(_TRAIN, _rng("train"), exclude=test)
    write_problems(directory / "train.parquet", train, "train")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums come out the same on every machine only in one order
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            tokens = tokenizer()
            model = new_model(len(tokens))
            warm_up(model, tokens, steps, _rng("warm-up"))
    finally:
        torch.set_num_threads(threads)
    model.half().save_pretrained(directory / "model")
    tokens.save_pretrained(directory / "model")


def _rng(purpose: str) -> random.Random:
    return random.Random(purpose)  # noqa: S311 - to repeat, not to keep a secret


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the model and the data of cpu-tiny.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=WARM_UP_STEPS, help="of the warm-up")
    arguments = parser.parse_args()
    make(arguments.directory, arguments.steps)


if __name__ == "__main__":
    main()
