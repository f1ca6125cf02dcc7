"""Checks of sampling, models and the rollout engine."""

from __future__ import annotations

from collections.abc import Iterator

from kltune.verl.keys import Key
from kltune.verl.lint.finding import Level, LintFinding
from kltune.verl.lint.subject import MODEL, ROLLOUT, Subject

_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def sampling_truncated(s: Subject) -> Iterator[LintFinding]:
    """`top_p` or `top_k` cut the distribution: the log probs of training are not the sampler's."""
    top_p, top_k = s.number(f"{ROLLOUT}.top_p"), s.count(f"{ROLLOUT}.top_k")
    fix: dict[str, int] = {}
    if top_p is not None and top_p != 1:
        fix[f"{ROLLOUT}.top_p"] = 1
    if top_k not in (None, -1, 0):
        fix[f"{ROLLOUT}.top_k"] = -1
    if fix:
        yield LintFinding(
            "sampling-truncated",
            Level.WARNING,
            f"responses are drawn with top_p={top_p}, top_k={top_k}, and training computes log "
            "probs of the whole distribution: importance ratios and KL are of another policy "
            "than the one that answered (negative k1 is the usual sign)",
            {f"{ROLLOUT}.top_p": top_p, f"{ROLLOUT}.top_k": top_k},
            fix=fix,
        )


def temperature_range(s: Subject) -> Iterator[LintFinding]:
    """The sampling temperature is 0, or not 1, which scales every log prob and KL."""
    key = f"{ROLLOUT}.temperature"
    value = s.number(key)
    if value is None or value == 1:
        return
    level, why = Level.INFO, (
        "log probs, KL and entropy are those of the tempered distribution, and compare with no "
        "run at another temperature"
    )  # fmt: skip
    if value <= 0:
        level, why = (
            Level.ERROR,
            "greedy responses leave nothing to learn from, and log probs divide by it",
        )
    elif s.release.numbers < (0, 7, 0):
        level = Level.WARNING
        why += "; this verl compares them with untempered log probs of the rollout engine"
    yield LintFinding(
        "temperature-range", level, f"{key}={value:g}: {why}", {key: value}, fix={key: 1.0}
    )


def greedy_validation_repeats(s: Subject) -> Iterator[LintFinding]:
    """Several validation answers per prompt, but drawn greedily: all are equal."""
    key = f"{ROLLOUT}.val_kwargs"
    count = s.count(f"{key}.n")
    if count and count > 1 and not s.value(f"{key}.do_sample"):
        yield LintFinding(
            "greedy-validation-repeats",
            Level.WARNING,
            f"val_kwargs.n={count} answers are drawn with do_sample=False: {count} equal answers "
            "at the cost of all",
            {f"{key}.n": count, f"{key}.do_sample": False},
            fix={f"{key}.do_sample": True, f"{key}.temperature": 1.0},
        )


def rollout_mode_sync(s: Subject) -> Iterator[LintFinding]:
    """`rollout.mode=sync` raises from verl 0.7 on."""
    key = f"{ROLLOUT}.mode"
    if s.value(key) == "sync" and not s.release.sync_rollout:
        yield LintFinding(
            "rollout-mode-sync",
            Level.ERROR,
            f"rollout.mode=sync was taken out of verl 0.7; {s.release.version} raises",
            {key: "sync"},
            drop=tuple(s.given(key)),
            safe=True,
        )


def rollout_engine_missing(s: Subject) -> Iterator[LintFinding]:
    """`rollout.name` is mandatory from verl 0.6 on."""
    key = f"{ROLLOUT}.name"
    if s.value(key) in (None, "???"):
        yield LintFinding(
            "rollout-engine-missing",
            Level.ERROR,
            f"{key} has no default in verl {s.release.version}",
            {key: None},
            fix={key: "vllm"},
        )


def model_missing(s: Subject) -> Iterator[LintFinding]:
    """A model path is left at verl's default, which points into the home directory."""
    wanted = {Key.MODEL_PATH: True, Key.CRITIC_MODEL_PATH: s.critic}
    for key, used in wanted.items():
        path = s.release.path(key) or ""
        if used and not s.given(path):
            # As the user wrote it, references to the environment unresolved.
            own = next(iter(s.given(f"{MODEL}.path").values()), None)
            actor = own if key is Key.CRITIC_MODEL_PATH else None
            yield LintFinding(
                "model-missing",
                Level.ERROR,
                f"{path} is verl's default {s.value(path)!r}, a directory of its authors"
                + ("; it does not follow the actor's" if actor else ""),
                {path: s.value(path)},
                fix={path: actor} if actor else {},
            )


def rollout_log_probs_off(s: Subject) -> Iterator[LintFinding]:
    """The rollout engine's log probs are not computed: its mismatch with training is unseen."""
    path = s.release.path(Key.ROLLOUT_LOG_PROBS)
    if path and s.value(path) is False:
        yield LintFinding(
            "rollout-log-probs-off",
            Level.INFO,
            "without the rollout engine's log probs nobody sees whether it and the training "
            "disagree, and such a mismatch is easily taken for KL",
            {path: False},
            fix={path: True},
            safe=True,
        )


def transfer_queue_waits(s: Subject) -> Iterator[LintFinding]:
    """TransferQueue's storage units take all CPUs that Ray has: the run waits for ever."""
    cpus_key = s.release.path(Key.RAY_CPUS) or ""
    units, cpus = s.count(_UNITS), s.count(cpus_key)
    used = s.at(Key.USE_V1_TRAINER) or s.value("transfer_queue.enable")
    if used and units and cpus and units >= cpus:
        yield LintFinding(
            "transfer-queue-waits",
            Level.ERROR,
            f"TransferQueue's {units} storage units claim one Ray CPU each, and Ray is given "
            f"{cpus}: nothing is left for the trainer, which waits for ever without a message",
            {_UNITS: units, cpus_key: cpus},
            fix={_UNITS: 1},
            safe=True,
        )


CHECKS = (
    sampling_truncated,
    temperature_range,
    greedy_validation_repeats,
    rollout_mode_sync,
    rollout_engine_missing,
    model_missing,
    rollout_log_probs_off,
    transfer_queue_waits,
)
