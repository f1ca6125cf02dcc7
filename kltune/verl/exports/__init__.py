"""The calibrated configuration in the forms that people launch verl with."""

from kltune.verl.exports.config import config_yaml
from kltune.verl.exports.scripts import (
    Training,
    bash_script,
    overrides_text,
    ray_job,
    sbatch_script,
)

__all__ = [
    "Training",
    "bash_script",
    "config_yaml",
    "overrides_text",
    "ray_job",
    "sbatch_script",
]
