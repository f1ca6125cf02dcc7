"""Settings: a preset, ``kltune.yaml`` and the command line, laid over each other.

Every value keeps its origin, so that a report or an export can say where it came from.
"""

from kltune.settings.files import FIRST_PRESET, preset_names, presets_dir
from kltune.settings.layers import load
from kltune.settings.provenance import Settings, differences
from kltune.settings.sections import Cluster, Content

__all__ = [
    "FIRST_PRESET",
    "Cluster",
    "Content",
    "Settings",
    "differences",
    "load",
    "preset_names",
    "presets_dir",
]
