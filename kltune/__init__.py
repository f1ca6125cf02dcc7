"""kltune calibrates the KL settings of a verl PPO/GRPO training with real trials."""

__version__ = "0.1.0"
