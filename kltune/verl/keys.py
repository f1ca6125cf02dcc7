"""Where each setting stands in verl's configuration, and since which release.

"verl renamed a key" is answered here and nowhere else. A leading ``+`` marks a key that verl
reads although its YAML does not list it: Hydra takes such a key only with the ``+``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Key(Enum):
    """A setting of verl that kltune reads or writes; the value is its newest override key."""

    # KL penalty in the reward. Before 0.4 it was on exactly when the KL loss was off.
    USE_KL_IN_REWARD = "algorithm.use_kl_in_reward"
    KL_PENALTY = "algorithm.kl_penalty"
    KL_CONTROLLER = "algorithm.kl_ctrl.type"
    KL_COEF = "algorithm.kl_ctrl.kl_coef"
    TARGET_KL = "algorithm.kl_ctrl.target_kl"
    HORIZON = "algorithm.kl_ctrl.horizon"
    # KL term in the actor's loss.
    USE_KL_LOSS = "actor_rollout_ref.actor.use_kl_loss"
    KL_LOSS_COEF = "actor_rollout_ref.actor.kl_loss_coef"
    KL_LOSS_TYPE = "actor_rollout_ref.actor.kl_loss_type"
    # Policy loss.
    CLIP_RATIO = "actor_rollout_ref.actor.clip_ratio"
    CLIP_RATIO_LOW = "actor_rollout_ref.actor.clip_ratio_low"
    CLIP_RATIO_HIGH = "actor_rollout_ref.actor.clip_ratio_high"
    CLIP_RATIO_C = "actor_rollout_ref.actor.clip_ratio_c"
    LOSS_AGG_MODE = "actor_rollout_ref.actor.loss_agg_mode"
    ADV_ESTIMATOR = "algorithm.adv_estimator"
    # Model, data, batch.
    MODEL_PATH = "actor_rollout_ref.model.path"
    CRITIC_MODEL_PATH = "critic.model.path"
    TRAIN_FILES = "data.train_files"
    VAL_FILES = "data.val_files"
    PROMPT_KEY = "data.prompt_key"
    TRAIN_BATCH_SIZE = "data.train_batch_size"
    MAX_PROMPT_LENGTH = "data.max_prompt_length"
    MAX_RESPONSE_LENGTH = "data.max_response_length"
    ROLLOUTS_PER_PROMPT = "actor_rollout_ref.rollout.n"
    MINI_BATCH_SIZE = "actor_rollout_ref.actor.ppo_mini_batch_size"
    MICRO_BATCH_SIZE = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    MAX_TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    CRITIC_MINI_BATCH_SIZE = "critic.ppo_mini_batch_size"
    CRITIC_MICRO_BATCH_SIZE = "critic.ppo_micro_batch_size_per_gpu"
    REF_LOG_PROB_MICRO_BATCH_SIZE = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
    ROLLOUT_LOG_PROB_MICRO_BATCH_SIZE = (
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    )
    REMOVE_PADDING = "actor_rollout_ref.model.use_remove_padding"
    DYNAMIC_BATCH_SIZE = "actor_rollout_ref.actor.use_dynamic_bsz"
    # Parallelism and hardware.
    STRATEGY = "actor_rollout_ref.actor.strategy"
    CRITIC_STRATEGY = "critic.strategy"
    OFFLOAD_POLICY = "actor_rollout_ref.actor.fsdp_config.offload_policy"
    TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    NODES = "trainer.nnodes"
    GPUS_PER_NODE = "trainer.n_gpus_per_node"
    DEVICE = "trainer.device"
    RAY_CPUS = "ray_kwargs.ray_init.num_cpus"
    RAY_GPUS = "+ray_kwargs.ray_init.num_gpus"
    # The driver's environment does not reach a Ray cluster that is already up; this does.
    RAY_ENV = "+ray_kwargs.ray_init.runtime_env.env_vars"
    ROLLOUT_ENGINE = "actor_rollout_ref.rollout.name"
    ROLLOUT_LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs"
    TRANSFER_QUEUE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    USE_V1_TRAINER = "trainer.use_v1"
    # Length of the run, validation, checkpoints.
    TOTAL_EPOCHS = "trainer.total_epochs"
    TOTAL_STEPS = "trainer.total_training_steps"
    TEST_FREQ = "trainer.test_freq"
    VAL_BEFORE_TRAIN = "trainer.val_before_train"
    VAL_ONLY = "trainer.val_only"
    VAL_SAMPLES = "actor_rollout_ref.rollout.val_kwargs.n"
    VAL_DO_SAMPLE = "actor_rollout_ref.rollout.val_kwargs.do_sample"
    VAL_TEMPERATURE = "actor_rollout_ref.rollout.val_kwargs.temperature"
    VALIDATION_DUMP = "trainer.validation_data_dir"
    SAVE_FREQ = "trainer.save_freq"
    CHECKPOINT_DIR = "trainer.default_local_dir"
    CHECKPOINTS_KEPT = "trainer.max_actor_ckpt_to_keep"
    CRITIC_CHECKPOINTS_KEPT = "trainer.max_critic_ckpt_to_keep"
    RESUME_MODE = "trainer.resume_mode"
    RESUME_PATH = "trainer.resume_from_path"
    # Names, loggers, seeds, profiler, reward.
    PROJECT = "trainer.project_name"
    EXPERIMENT = "trainer.experiment_name"
    LOGGER = "trainer.logger"
    DATA_SEED = "data.seed"
    ACTOR_SEED = "actor_rollout_ref.actor.data_loader_seed"
    CRITIC_SEED = "critic.data_loader_seed"
    ROLLOUT_SEED = "actor_rollout_ref.rollout.seed"
    PROFILER_TOOL = "global_profiler.tool"
    PROFILER_STEPS = "global_profiler.steps"
    PROFILER_DIR = "global_profiler.save_path"
    PROFILER_RELOCATE = "global_profiler.relocate_results"
    ACTOR_PROFILER = "actor_rollout_ref.actor.profiler.enable"
    ACTOR_PROFILER_RANKS = "actor_rollout_ref.actor.profiler.ranks"
    ROLLOUT_PROFILER = "actor_rollout_ref.rollout.profiler.enable"
    CRITIC_PROFILER = "critic.profiler.enable"
    CRITIC_PROFILER_RANKS = "critic.profiler.ranks"
    REWARD_PATH = "reward.custom_reward_function.path"
    REWARD_NAME = "reward.custom_reward_function.name"
    REWARD_SOURCES = "+reward.custom_reward_function.reward_kwargs.sources"
    REWARD_NOTES = "+reward.custom_reward_function.reward_kwargs.notes"
    REWARD_MANAGER = "reward.reward_manager.name"
    HYDRA_RUN_DIR = "hydra.run.dir"


#: The release that brought the key under its newest name; 0.3 had the others.
SINCE: Mapping[Key, str] = {
    Key.USE_KL_IN_REWARD: "0.4",
    Key.TARGET_KL: "0.4",
    Key.HORIZON: "0.4",
    Key.CLIP_RATIO_LOW: "0.4",
    Key.CLIP_RATIO_HIGH: "0.4",
    Key.CLIP_RATIO_C: "0.4",
    Key.LOSS_AGG_MODE: "0.4",
    Key.OFFLOAD_POLICY: "0.4",
    Key.DEVICE: "0.4",
    Key.RAY_CPUS: "0.6",
    Key.RAY_GPUS: "0.6",
    Key.RAY_ENV: "0.6",
    Key.ROLLOUT_LOG_PROBS: "0.4.1",
    Key.TRANSFER_QUEUE_UNITS: "0.8",
    Key.USE_V1_TRAINER: "0.9",
    Key.VAL_BEFORE_TRAIN: "0.4",
    Key.VAL_ONLY: "0.4.1",
    Key.VALIDATION_DUMP: "0.4",
    Key.DATA_SEED: "0.6.1",
    Key.ACTOR_SEED: "0.7",
    Key.CRITIC_SEED: "0.7",
    Key.ROLLOUT_SEED: "0.9",
    Key.PROFILER_TOOL: "0.6",
    Key.PROFILER_STEPS: "0.6",
    Key.PROFILER_DIR: "0.6",
    Key.PROFILER_RELOCATE: "0.9.1",
    Key.ACTOR_PROFILER: "0.6",
    Key.ACTOR_PROFILER_RANKS: "0.6",
    Key.ROLLOUT_PROFILER: "0.6",
    Key.CRITIC_PROFILER: "0.6",
    Key.CRITIC_PROFILER_RANKS: "0.4.1",
    Key.REWARD_PATH: "0.7.1",
    Key.REWARD_NAME: "0.7.1",
    Key.REWARD_SOURCES: "0.7.1",
    # What a reward function is told of the policy that gave the answer came with the V1 trainer.
    Key.REWARD_NOTES: "0.9",
    Key.REWARD_MANAGER: "0.7.1",
}

#: What a key was called before that, by the first release that called it so.
BEFORE: Mapping[Key, Mapping[str, str]] = {
    Key.TARGET_KL: {"0.3": "+algorithm.kl_ctrl.target_kl"},
    Key.HORIZON: {"0.3": "+algorithm.kl_ctrl.horizon"},
    Key.RAY_CPUS: {"0.4": "ray_init.num_cpus"},
    Key.VAL_BEFORE_TRAIN: {"0.3": "+trainer.val_before_train"},
    Key.VAL_ONLY: {"0.3": "+trainer.val_only"},
    Key.DATA_SEED: {"0.3": "+data.seed"},
    Key.PROFILER_STEPS: {"0.4.1": "trainer.profile_steps"},
    Key.ACTOR_PROFILER_RANKS: {
        "0.4.1": "actor_rollout_ref.actor.profiler.ranks",
        "0.5": "+actor_rollout_ref.actor.profiler.ranks",
    },
    Key.REWARD_PATH: {"0.3": "custom_reward_function.path"},
    Key.REWARD_NAME: {"0.3": "custom_reward_function.name"},
    Key.REWARD_SOURCES: {"0.4": "+custom_reward_function.reward_kwargs.sources"},
    Key.REWARD_MANAGER: {"0.3": "reward_model.reward_manager"},
}
