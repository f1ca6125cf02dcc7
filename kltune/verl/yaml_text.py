"""One value as one line of YAML."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Quotes every string that YAML 1.1, YAML 1.2 or OmegaConf could read as something else."""


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"[A-Za-z_/][\w./-]*", text, re.ASCII)
    words = {"true", "false", "null", "none", "yes", "no", "on", "off", "y", "n", "inf", "nan"}
    style = None if plain and text.lower() not in words else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)


def scalar(value: Any) -> str:
    """Return a value as YAML on one line, which every reader takes for that value."""
    text: str = yaml.dump(
        list(value) if isinstance(value, tuple) else value,
        Dumper=_Dumper,
        default_flow_style=True,
        width=float("inf"),
        allow_unicode=True,
        sort_keys=False,
    )
    return text.removesuffix("...\n").strip("\n")
