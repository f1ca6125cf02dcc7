"""From kltune's KL settings to verl's overrides and back, and the command line of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kltune.domain.kl import KlSettings, Placement
from kltune.verl.compose import value_at
from kltune.verl.keys import Key
from kltune.verl.overrides import bare
from kltune.verl.releases import Release

#: Variables of every attempt. Ray folds equal lines of several workers into one unless told not
#: to, which eats metric lines; Python must not buffer what a reader waits for. The driver attaches
#: to no Ray cluster that happens to be up: its environment would not reach the workers. And a Ray
#: that is told to end while it starts would drain for 30 s, which is longer than anybody waits.
ATTEMPT_ENV = {
    "RAY_DEDUP_LOGS": "0",
    "PYTHONUNBUFFERED": "1",
    "RAY_ADDRESS": "local",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}

#: What kltune's trials must control themselves, so that a user's override would not hold.
CONTROLLED = (
    Key.TOTAL_EPOCHS,
    Key.TOTAL_STEPS,
    Key.TEST_FREQ,
    Key.VAL_BEFORE_TRAIN,
    Key.SAVE_FREQ,
    Key.CHECKPOINT_DIR,
    Key.RESUME_MODE,
    Key.RESUME_PATH,
    Key.PROJECT,
    Key.EXPERIMENT,
    Key.NODES,
    Key.GPUS_PER_NODE,
    Key.HYDRA_RUN_DIR,
)


def kl_settings(config: Mapping[str, Any], release: Release) -> KlSettings:
    """Return the KL settings that a composed configuration trains with.

    With both penalties off the coefficient is 0: such a run is measured like one whose penalty
    in the reward is multiplied by nothing. A coefficient of 0 in the reward beside a penalty in
    the loss only measures, so the loss is what acts. The clip range stays the user's own, whose
    two sides may differ.
    """

    def at(key: Key) -> Any:
        path = release.path(key)
        return value_at(config, path) if path else None

    in_loss = bool(at(Key.USE_KL_LOSS))
    in_reward = bool(at(Key.USE_KL_IN_REWARD)) if release.reward_kl_switch else not in_loss
    if in_reward and not (in_loss and float(at(Key.KL_COEF)) == 0):
        adaptive = at(Key.KL_CONTROLLER) == "adaptive"
        return KlSettings(
            kl_coef=float(at(Key.KL_COEF)),
            target_kl=_number(at(Key.TARGET_KL)) if adaptive else None,
            horizon=_number(at(Key.HORIZON)) if adaptive else None,
            estimator=at(Key.KL_PENALTY),
        )
    if in_loss:
        return KlSettings(
            kl_coef=float(at(Key.KL_LOSS_COEF)),
            estimator=at(Key.KL_LOSS_TYPE),
            placement=Placement.LOSS,
        )
    return KlSettings(kl_coef=0.0, estimator="low_var_kl")


def kl_overrides(settings: KlSettings, release: Release) -> dict[str, Any]:
    """Return the overrides that make verl train with these KL settings.

    With the penalty in the loss, a coefficient of 0 in the reward is added: it changes no reward
    and makes verl log the one reference KL whose formula is the same in all releases.
    """
    wanted: dict[Key, Any] = {}
    reward_coefficient = settings.kl_coef if settings.placement is Placement.REWARD else 0.0
    wanted[Key.USE_KL_IN_REWARD] = True
    wanted[Key.KL_CONTROLLER] = "adaptive" if settings.adaptive else "fixed"
    wanted[Key.KL_COEF] = reward_coefficient
    if settings.placement is Placement.REWARD:
        # A user's second penalty in the loss stays; without any penalty there must be none.
        wanted[Key.USE_KL_LOSS] = False if settings.kl_coef == 0 else None
        wanted[Key.TARGET_KL] = settings.target_kl
        wanted[Key.HORIZON] = _whole(settings.horizon)
        wanted[Key.KL_PENALTY] = settings.estimator
    else:
        wanted[Key.USE_KL_LOSS] = True
        wanted[Key.KL_LOSS_COEF] = settings.kl_coef
        wanted[Key.KL_LOSS_TYPE] = settings.estimator
        wanted[Key.KL_PENALTY] = "low_var_kl"
    # verl reads the two sides; ``clip_ratio`` alone stands for them only where they are null.
    for key in (Key.CLIP_RATIO, Key.CLIP_RATIO_LOW, Key.CLIP_RATIO_HIGH):
        wanted[key] = settings.clip_ratio
    return _overrides({k: v for k, v in wanted.items() if v is not None}, release)


#: Why a trial sets what it sets, for whoever compares it with the user's own configuration.
REASONS: dict[Key, str] = {
    **dict.fromkeys((Key.TOTAL_EPOCHS, Key.TOTAL_STEPS), "the length of a trial"),
    **dict.fromkeys((Key.TEST_FREQ, Key.VAL_BEFORE_TRAIN), "a trial is scored at its end"),
    **dict.fromkeys((Key.SAVE_FREQ, Key.CHECKPOINT_DIR), "attempts share no checkpoint"),
    **dict.fromkeys((Key.RESUME_MODE, Key.RESUME_PATH), "no attempt continues another run"),
    **dict.fromkeys((Key.PROJECT, Key.EXPERIMENT), "a name of its own for every attempt"),
    **dict.fromkeys((Key.NODES, Key.GPUS_PER_NODE), "the size of the cluster"),
    **dict.fromkeys(
        (Key.DATA_SEED, Key.ACTOR_SEED, Key.CRITIC_SEED, Key.ROLLOUT_SEED),
        "trials are compared at equal seeds, and confirmed on others",
    ),
    Key.LOGGER: "kltune reads the metrics file and the console",
    Key.HYDRA_RUN_DIR: "trials that start in one second must not collide",
    Key.USE_KL_IN_REWARD: "the reference KL is logged only with it",
    **dict.fromkeys(
        (Key.KL_CONTROLLER, Key.KL_COEF, Key.TARGET_KL, Key.HORIZON, Key.KL_PENALTY),
        "the point of the search, spelled out",
    ),
    **dict.fromkeys(
        (Key.USE_KL_LOSS, Key.KL_LOSS_COEF, Key.KL_LOSS_TYPE),
        "the penalty in the loss, spelled out",
    ),
}


def reasons(release: Release) -> dict[str, str]:
    """Return ``REASONS`` by verl's key of this release."""
    return {path: why for key, why in REASONS.items() if (path := release.path(key)) is not None}


@dataclass(frozen=True, slots=True)
class RunControl:
    """What kltune decides about an attempt, whatever the user's configuration says.

    Attributes:
        steps: training steps to make in all, resumed ones included.
        seed: seed of data order, mini-batches and sampling.
        nodes, gpus_per_node: size of the job.
        experiment: name in verl's loggers, unique to the attempt.
        checkpoints: directory of its checkpoints.
        hydra: directory of Hydra's own files.
        test_freq: steps between validations; the last step is always validated.
        validate_first: whether to validate before training.
        save_freq: steps between checkpoints; -1 for none.
        resume_from: checkpoint to continue from (a ``global_step_N`` directory).
        validation_dump: directory for every answer of every validation; None keeps none.
        traces: directory of the profiler; None leaves it to the user.
        reward_notes: directory in which kltune's reward function notes what each source gave; None
            where it is not used.
        metrics_file: whether verl writes its metrics into a file, too.
    """

    steps: int
    seed: int
    nodes: int
    gpus_per_node: int
    experiment: str
    checkpoints: Path
    hydra: Path
    test_freq: int
    validate_first: bool
    save_freq: int = -1
    resume_from: Path | None = None
    validation_dump: Path | None = None
    traces: Path | None = None
    reward_notes: Path | None = None
    metrics_file: bool = True


def control_overrides(
    control: RunControl, loggers: Sequence[str], release: Release
) -> dict[str, Any]:
    """Return the overrides of an attempt's length, directories, seeds and loggers.

    Args:
        control: what kltune decided.
        loggers: loggers that the user asked for; console and, where one is wanted, the metrics
            file are added.
        release: the verl that runs it.
    """
    resume = {
        Key.RESUME_MODE: "disable" if control.resume_from is None else "resume_path",
        # verl reads the step from what follows the last slash.
        Key.RESUME_PATH: None if control.resume_from is None else str(control.resume_from),
    }
    own = ["console", *([release.metrics_logger] if control.metrics_file else [])]
    kept = [name for name in loggers if name not in ("console", release.metrics_logger)]
    wanted: dict[Key, Any] = {
        # Training ends without its last validation when the epochs run out first.
        Key.TOTAL_EPOCHS: 1_000_000,
        Key.TOTAL_STEPS: control.steps,
        Key.TEST_FREQ: control.test_freq,
        Key.VAL_BEFORE_TRAIN: control.validate_first,
        Key.SAVE_FREQ: control.save_freq,
        Key.CHECKPOINT_DIR: str(control.checkpoints),
        **resume,
        Key.PROJECT: "kltune",
        Key.EXPERIMENT: control.experiment,
        Key.NODES: control.nodes,
        Key.GPUS_PER_NODE: control.gpus_per_node,
        Key.LOGGER: [*own, *kept],
        Key.DATA_SEED: control.seed,
        Key.ACTOR_SEED: control.seed,
        Key.CRITIC_SEED: control.seed,
        Key.ROLLOUT_SEED: control.seed,
        Key.HYDRA_RUN_DIR: str(control.hydra),
    }
    if control.validation_dump is not None:
        wanted[Key.VALIDATION_DUMP] = str(control.validation_dump)
    if control.traces is not None:
        wanted[Key.PROFILER_DIR] = str(control.traces)
    if control.reward_notes is not None:
        wanted[Key.REWARD_NOTES] = str(control.reward_notes)
    return _overrides(wanted, release)


def without_size(overrides: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """Return the overrides without those that size a Ray cluster of the driver's own."""
    sizes = {release.path(key) for key in (Key.RAY_CPUS, Key.RAY_GPUS)}
    return {key: value for key, value in overrides.items() if bare(key) not in sizes}


def logged_to(
    config: Mapping[str, Any], overrides: Mapping[str, Any], release: Release
) -> list[str]:
    """Return the loggers that the user asked for.

    verl's own default includes wandb, which waits for a login; it is not taken for a wish.
    """
    path = release.path(Key.LOGGER) or ""
    if path not in {bare(key) for key in overrides}:
        return []
    loggers = value_at(config, path)
    return [loggers] if isinstance(loggers, str) else list(loggers or [])


def rows_per_step(config: Mapping[str, Any], release: Release) -> int:
    """Return the sequences of a training step: prompts times responses to each."""
    prompts = value_at(config, release.path(Key.TRAIN_BATCH_SIZE) or "")
    responses = value_at(config, release.path(Key.ROLLOUTS_PER_PROMPT) or "")
    return int(prompts) * int(responses or 1)


def held_fixed(config: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """Return what KL settings do not carry over without."""
    keys = {
        "model": Key.MODEL_PATH,
        "prompts per step": Key.TRAIN_BATCH_SIZE,
        "responses per prompt": Key.ROLLOUTS_PER_PROMPT,
        "mini batch (prompts)": Key.MINI_BATCH_SIZE,
        "response length limit (tokens)": Key.MAX_RESPONSE_LENGTH,
        "loss aggregation": Key.LOSS_AGG_MODE,
        "advantage estimator": Key.ADV_ESTIMATOR,
    }
    found = {name: value_at(config, release.path(key) or "") for name, key in keys.items()}
    found["sequences per step"] = rows_per_step(config, release)
    found["actor learning rate"] = value_at(config, "actor_rollout_ref.actor.optim.lr")
    return {name: value for name, value in found.items() if value is not None}


def _overrides(wanted: Mapping[Key, Any], release: Release) -> dict[str, Any]:
    found = {}
    for key, value in wanted.items():
        name = release.key(key)
        if name is not None:
            found[name] = value
    return found


def _whole(value: float | None) -> float | int | None:
    """Return a whole number as an integer: verl declares the horizon as one."""
    return int(value) if value is not None and value.is_integer() else value


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
