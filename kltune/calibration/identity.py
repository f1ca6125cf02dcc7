"""What a workspace was made with; results of different settings never mix."""

from __future__ import annotations

import uuid
from typing import Any

from kltune import __version__
from kltune.errors import SettingsError
from kltune.settings import Settings, differences
from kltune.verl.secrets import redact_values
from kltune.workspace import Workspace, read_json, write_json


def identify(workspace: Workspace, settings: Settings) -> str:
    """Return the workspace's id; make it on first use.

    Raises:
        SettingsError: the workspace was made with other settings, with every difference.
    """
    identity = redact_values(settings.identity())
    found = read_json(workspace.identity)
    if found is None:
        owner = uuid.uuid4().hex[:12]
        content = {"id": owner, "kltune": __version__, "made_with": identity}
        write_json(workspace.identity, content)
        return owner
    changed = differences(found["made_with"], identity)
    if changed:
        raise SettingsError(
            [
                f"{workspace.path}: was made with other settings; name another --workspace, or "
                "start over with --fresh",
                *changed,
            ]
        )
    return str(found["id"])


def shared_identity(settings: Settings) -> dict[str, Any]:
    """Return what those who share a study must have in common: all but where trials run."""
    identity: dict[str, Any] = redact_values(settings.identity())
    elsewhere = {"verl.env", "search.storage"}
    shared = {key: value for key, value in identity.items() if key not in elsewhere}
    shared["cluster"] = {key: identity["cluster"][key] for key in ("nodes", "gpus_per_node")}
    return shared
