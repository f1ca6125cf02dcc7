"""Checked settings, each value with its origin, and what of them decides a result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kltune.domain.outcome import Band
from kltune.settings.sections import Content
from kltune.verl.overrides import bare
from kltune.verl.profiler import is_profiler


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one command.

    Attributes:
        content: the checked values.
        origins: where a value came from, by dotted path (``verl.overrides`` is followed by the
            override's key without Hydra's prefix, in brackets).
    """

    content: Content
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def band(self) -> Band:
        """Wanted average reference KL, nats per token."""
        return Band(self.content.band.low, self.content.band.high)

    def origin(self, path: str) -> str:
        """Return where the value at a dotted path came from."""
        return self.origins.get(path, "kltune's default")

    def override_origin(self, key: str) -> str:
        """Return where a verl override came from."""
        return self.origin(f"verl.overrides[{bare(key)}]")

    def names(self, section: str) -> bool:
        """Whether the preset, the file or the command line says anything about a section."""
        return any(path.startswith(f"{section}.") for path in self.origins)

    def identity(self) -> dict[str, Any]:
        """Return what decides the result of a trial: a workspace holds one identity.

        Budgets are left out: a run may be continued with more trials. So is verl's profiler.
        """
        content = self.content.model_dump(mode="json")
        search, cluster = content["search"], dict(content["cluster"])
        del cluster["pending_minutes"], cluster["parallel"]
        return {
            "verl.command": content["verl"]["command"],
            "verl.overrides": {
                key: value
                for key, value in content["verl"]["overrides"].items()
                if not is_profiler(key)
            },
            "verl.env": content["verl"]["env"],
            "cluster": cluster,
            "band": content["band"],
            "search.steps": search["steps"],
            "search.epochs": search["epochs"],
            "search.seed": search["seed"],
            "search.storage": search["storage"],
            "search.study": search["study"],
            "search.space": search["space"],
            "watch": content["watch"],
        }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one sentence for every value in which two identities differ."""
    flat_old, flat_new = _flat(old), _flat(new)
    return [
        f"{key}: {json.dumps(flat_old.get(key))} there, {json.dumps(flat_new.get(key))} now"
        for key in sorted({*flat_old, *flat_new})
        if flat_old.get(key) != flat_new.get(key)
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found.update(_flat(item, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = item
    return found
