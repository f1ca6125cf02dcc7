"""Checks of batch sizes, ranks and parallelism: what verl checks, and what it finds too late."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.lint.subject import ACTOR, MODEL, REF, ROLLOUT, Subject

_MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
_ROWS = "data.train_batch_size x rollout.n"


def rows_per_rank(s: Subject) -> Iterator[LintFinding]:
    """Rows of a step are not a multiple of the GPUs."""
    if s.rows and s.ranks and s.rows % s.ranks and not _dynamic(s):
        yield LintFinding(
            "rows-per-rank",
            Level.ERROR,
            f"{s.rows} rows per step ({_ROWS}) do not divide over {s.ranks} GPUs; verl asserts it",
            _sizes(s),
            fix={"data.train_batch_size": _next_multiple(s)},
        )


def mini_batch_too_large(s: Subject) -> Iterator[LintFinding]:
    """The mini batch is larger than the batch."""
    batch, mini = s.count("data.train_batch_size"), s.count(f"{ACTOR}.ppo_mini_batch_size")
    if batch and mini and batch < mini:
        given = bool(s.given(f"{ACTOR}.ppo_mini_batch_size"))
        yield LintFinding(
            "mini-batch-too-large",
            Level.ERROR,
            f"ppo_mini_batch_size={mini}{'' if given else ' (the default)'} is larger than "
            f"train_batch_size={batch}; both count prompts",
            {f"{ACTOR}.ppo_mini_batch_size": mini, "data.train_batch_size": batch},
            fix={f"{ACTOR}.ppo_mini_batch_size": batch},
        )


def mini_batch_uneven(s: Subject) -> Iterator[LintFinding]:
    """The batch is not a multiple of the mini batch: the last update of a step is smaller."""
    batch, mini = s.count("data.train_batch_size"), s.count(f"{ACTOR}.ppo_mini_batch_size")
    if batch and mini and mini <= batch and batch % mini:
        yield LintFinding(
            "mini-batch-uneven",
            Level.WARNING,
            f"train_batch_size={batch} is no multiple of ppo_mini_batch_size={mini}: one update "
            f"of each step sees only {batch % mini} prompts (0.9's trainer pads instead, and the "
            "padding dilutes the KL that the controller sees)",
            {f"{ACTOR}.ppo_mini_batch_size": mini, "data.train_batch_size": batch},
        )


def micro_batch_missing(s: Subject) -> Iterator[LintFinding]:
    """A micro batch size that verl needs is not set, or set in two ways."""
    wanted = [(ACTOR, "ppo_micro_batch_size", f"{ACTOR}.use_dynamic_bsz", True)]
    wanted += [(ROLLOUT, "log_prob_micro_batch_size", f"{ROLLOUT}.log_prob_use_dynamic_bsz", True)]
    wanted += [(REF, "log_prob_micro_batch_size", f"{REF}.log_prob_use_dynamic_bsz", s.reference)]
    wanted += [("critic", "ppo_micro_batch_size", "critic.use_dynamic_bsz", s.critic)]
    for role, name, dynamic, used in wanted:
        old, new = s.value(f"{role}.{name}"), s.value(f"{role}.{name}_per_gpu")
        # The critic's new key follows its old one from 0.5 on.
        both = bool(old and new and s.given(f"{role}.{name}_per_gpu"))
        if not used or s.value(dynamic) or ((old or new) and not both):
            continue
        yield LintFinding(
            "micro-batch-missing",
            Level.ERROR,
            f"{role}.{name} and {name}_per_gpu are both set; verl wants one"
            if both
            else f"{role}.{name}_per_gpu is not set and {dynamic} is off",
            {f"{role}.{name}": old, f"{role}.{name}_per_gpu": new},
            fix={} if both else {f"{role}.{name}_per_gpu": s.count(_MICRO) or 8},
            drop=(f"{role}.{name}",) if both else (),
        )


def mini_batch_split(s: Subject) -> Iterator[LintFinding]:
    """The rows of a mini batch do not divide over ranks and micro batches."""
    roles = [(ACTOR, f"{ACTOR}.ppo_mini_batch_size")]
    if s.critic:
        roles.append(("critic", "critic.ppo_mini_batch_size"))
    for role, key in roles:
        mini, micro = s.count(key), s.count(f"{role}.ppo_micro_batch_size_per_gpu")
        ranks, dynamic = s.data_parallel, s.value(f"{role}.use_dynamic_bsz")
        if not mini or not ranks or not s.fsdp:
            continue
        rows = mini * (s.count(f"{ROLLOUT}.n") or 1)
        per_rank, rest = divmod(rows, ranks)
        uneven = rest and s.release.rows_must_fit_micro_batch
        if per_rank == 0 or uneven:
            problem = f"do not divide over {ranks} ranks"
        elif micro and not dynamic and per_rank % micro:
            problem = f"are {per_rank} on each of {ranks} ranks, no multiple of {micro}"
        else:
            continue
        yield LintFinding(
            "mini-batch-split",
            Level.ERROR,
            f"the {rows} rows of {key}={mini} {problem}; only the workers check it, after the "
            "model is loaded",
            {key: mini, f"{role}.ppo_micro_batch_size_per_gpu": micro, "ranks": ranks},
        )


def log_prob_rows(s: Subject) -> Iterator[LintFinding]:
    """Rows per rank are no multiple of a log-prob micro batch: fails after the first rollout."""
    if not s.release.rows_must_fit_micro_batch or not s.rows or not s.data_parallel:
        return
    per_rank, rest = divmod(s.rows, s.data_parallel)
    for role, used in ((ROLLOUT, True), (REF, s.reference)):
        key = f"{role}.log_prob_micro_batch_size_per_gpu"
        micro = s.count(key)
        if not used or not micro or rest or s.value(f"{role}.log_prob_use_dynamic_bsz"):
            continue
        if per_rank % micro:
            yield LintFinding(
                "log-prob-rows",
                Level.ERROR,
                f"{per_rank} rows per rank are no multiple of {key}={micro}: an assertion in the "
                "workers after the first rollout, which verl's own validation does not see",
                {key: micro, "rows per rank": per_rank},
                fix={key: _divisor(per_rank, micro)},
            )


def log_prob_micro_differs(s: Subject) -> Iterator[LintFinding]:
    """The log-prob micro batch differs from the training one: KL is not 0 where it should be."""
    micro = s.count(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    if not micro or s.value(f"{ACTOR}.use_dynamic_bsz"):
        return
    for role, used in ((ROLLOUT, True), (REF, s.reference)):
        key = f"{role}.log_prob_micro_batch_size_per_gpu"
        other = s.count(key)
        if used and other and other != micro:
            yield LintFinding(
                "log-prob-micro-differs",
                Level.INFO,
                f"{key}={other} differs from the actor's {micro}: batch shapes change the "
                "kernels' rounding, so the KL of an unchanged policy is small and not 0 "
                "(verl#6280). Keep both fixed while comparing trials",
                {key: other, f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro},
            )
            return


def tensor_parallel(s: Subject) -> Iterator[LintFinding]:
    """The rollout's tensor parallel size does not divide the GPUs."""
    key = f"{ROLLOUT}.tensor_model_parallel_size"
    size, ranks = s.count(key), s.ranks
    if size and ranks and ranks % size:
        given = "" if s.given(key) else " (the default)"
        yield LintFinding(
            "tensor-parallel",
            Level.ERROR,
            f"tensor_model_parallel_size={size}{given} does not divide {ranks} GPUs",
            {key: size, "trainer.nnodes x n_gpus_per_node": ranks},
            fix={key: _divisor(ranks, min(size, ranks))},
        )


def agent_workers(s: Subject) -> Iterator[LintFinding]:
    """Rows are no multiple of the agent loop's workers, which this verl splits evenly."""
    workers = s.count(f"{ROLLOUT}.agent.num_workers")
    if not s.release.equal_chunks or s.value(f"{ROLLOUT}.mode") != "async":
        return
    if workers and s.rows and s.rows % workers:
        yield LintFinding(
            "agent-workers",
            Level.ERROR,
            f"{s.rows} rows per step do not divide over rollout.agent.num_workers={workers}: "
            "'only support equal chunk', at the first rollout",
            {f"{ROLLOUT}.agent.num_workers": workers, "rows per step": s.rows},
            fix={f"{ROLLOUT}.agent.num_workers": _divisor(s.rows, workers)},
        )


def sequence_parallel_padding(s: Subject) -> Iterator[LintFinding]:
    """Ulysses sequence parallelism needs `use_remove_padding`."""
    key = f"{ACTOR}.ulysses_sequence_parallel_size"
    if (s.count(key) or 1) > 1 and not s.value(f"{MODEL}.use_remove_padding"):
        yield LintFinding(
            "sequence-parallel-padding",
            Level.ERROR,
            f"{key}={s.count(key)} needs {MODEL}.use_remove_padding=True; verl asserts it",
            {key: s.count(key), f"{MODEL}.use_remove_padding": False},
            fix={f"{MODEL}.use_remove_padding": True},
        )


def offload_policy_inert(s: Subject) -> Iterator[LintFinding]:
    """`offload_policy` is set, which only fsdp2 has."""
    key = f"{ACTOR}.fsdp_config.offload_policy"
    strategy = s.value(f"{ACTOR}.strategy")
    if s.value(key) and strategy != "fsdp2":
        yield LintFinding(
            "offload-policy-inert",
            Level.WARNING,
            f"offload_policy acts only with strategy=fsdp2, here it is {strategy}",
            {key: True, f"{ACTOR}.strategy": strategy},
            fix={f"{ACTOR}.strategy": "fsdp2"} if s.release.fsdp2 else {},
        )


def strategy_differs(s: Subject) -> Iterator[LintFinding]:
    """Actor and critic are trained with different strategies."""
    actor, critic = s.value(f"{ACTOR}.strategy"), s.value("critic.strategy")
    if s.critic and actor != critic and critic is not None:
        yield LintFinding(
            "strategy-differs",
            Level.WARNING,
            f"the actor is trained with {actor} and the critic with {critic}; critic.strategy "
            "does not follow the actor's",
            {f"{ACTOR}.strategy": actor, "critic.strategy": critic},
            fix={"critic.strategy": actor},
        )


def group_of_one(s: Subject) -> Iterator[LintFinding]:
    """A group-relative advantage with one response per prompt is always zero."""
    estimator, responses = s.value("algorithm.adv_estimator"), s.count(f"{ROLLOUT}.n")
    if estimator in ("grpo", "rloo", "opo", "gpg", "grpo_passk", "gdpo") and responses == 1:
        given = "" if s.given(f"{ROLLOUT}.n") else " (the default)"
        yield LintFinding(
            "group-of-one",
            Level.ERROR,
            f"adv_estimator={estimator} compares the responses to one prompt, and "
            f"rollout.n=1{given}: there is nothing to compare with",
            {"algorithm.adv_estimator": estimator, f"{ROLLOUT}.n": 1},
            fix={f"{ROLLOUT}.n": 8},
        )


def _divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number that is not above a limit."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return max(n for n in (*small, *(number // n for n in small)) if n <= limit)


def _dynamic(s: Subject) -> bool:
    # verl asserts it whatever use_dynamic_bsz says before 0.6.
    return bool(s.value(f"{ACTOR}.use_dynamic_bsz")) and s.release.numbers >= (0, 6, 0)


def _sizes(s: Subject) -> dict[str, int | None]:
    keys = ("data.train_batch_size", f"{ROLLOUT}.n", "trainer.nnodes", "trainer.n_gpus_per_node")
    return {key: s.count(key) for key in keys}


def _next_multiple(s: Subject) -> int:
    size, n = s.count("data.train_batch_size") or 1, s.count(f"{ROLLOUT}.n") or 1
    step = (s.ranks or 1) // math.gcd(n, s.ranks or 1)
    return -(-size // step) * step


CHECKS = (
    rows_per_rank,
    mini_batch_too_large,
    mini_batch_uneven,
    micro_batch_missing,
    mini_batch_split,
    log_prob_rows,
    log_prob_micro_differs,
    tensor_parallel,
    agent_workers,
    sequence_parallel_padding,
    offload_policy_inert,
    strategy_differs,
    group_of_one,
)
