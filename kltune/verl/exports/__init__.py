"""The calibrated configuration in the forms that people launch verl with."""

from kltune.verl.exports.config import config_yaml

__all__ = ["config_yaml"]
