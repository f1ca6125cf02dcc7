"""``config.yaml``: overrides as a primary configuration of Hydra, laid over verl's own defaults.

    python3 -m verl.trainer.main_ppo --config-path DIR --config-name config

trains with it as it is: the defaults come from the installed verl through Hydra's search path, so
that one file serves every release that knows its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kltune.errors import SettingsError
from kltune.verl.overrides import bare
from kltune.verl.secrets import redact, without_secrets
from kltune.verl.yaml_text import scalar

#: Where verl keeps its configuration; Hydra finds it without knowing where verl is installed.
SEARCH_PATH = "pkg://verl.trainer.config"

# A tree of override values; a leaf is (value, origin).
_Tree = dict[str, Any]


def config_yaml(
    overrides: Mapping[str, Any],
    origins: Mapping[str, str],
    header: Sequence[str] = (),
    *,
    base: str = "ppo_trainer",
) -> str:
    """Return the text of a ``config.yaml`` that verl trains with.

    Secrets become references to environment variables. A ``~key`` cannot be said in a file; the
    header then tells what to add to the command line.

    Args:
        overrides: value by override key, with Hydra's prefixes where they are needed.
        origins: where a value came from, by the same key; shown beside it.
        header: lines of the comment at the top.
        base: name of verl's own configuration that this one is laid over.

    Raises:
        SettingsError: one key is given a value and another one below it, too.
    """
    tree: _Tree = {"hydra": {"searchpath": ([SEARCH_PATH], "")}}
    groups: list[str] = []
    deleted: list[str] = []
    for key, value in overrides.items():
        origin = origins.get(key) or origins.get(bare(key)) or ""
        if key.startswith("~"):
            deleted.append(key)
        elif _is_group(key):
            choice = "" if key.startswith("+") else "override "
            groups.append(f"  - {choice}{bare(key)}: {scalar(value)}{_comment(origin)}")
        else:
            _plant(tree, bare(key), value, origin)
    if deleted:
        header = [*header, f"Add to the command line: {' '.join(deleted)}"]
    top = [f"#{_comment(line)[3:]}" for text in header for line in text.splitlines() or [""]]
    defaults = ["defaults:", f"  - {scalar(base)}", "  - _self_", *groups]
    return "\n".join([*top, *defaults, *_lines(tree, "")]) + "\n"


def _is_group(key: str) -> bool:
    # Hydra's defaults list chooses files; model_engine is verl's one group at the top (0.7.1 on).
    return "@" in key or "/" in key or bare(key) == "model_engine"


def _plant(tree: _Tree, key: str, value: Any, origin: str) -> None:
    *parents, name = key.split(".")
    node = tree
    for parent in parents:
        node = node.setdefault(parent, {})
        if isinstance(node, tuple):
            raise SettingsError(f"{key}: {parent} already has the value {node[0]!r}; keep one")
    if isinstance(value, Mapping) and value:
        for inner, item in value.items():
            _plant(tree, f"{key}.{inner}", item, origin)
        return
    if isinstance(node.get(name), dict):
        raise SettingsError(f"{key}: got {value!r}, and keys below it have values; keep one")
    node[name] = (without_secrets(name, value), origin)


def _lines(tree: _Tree, indent: str) -> Iterator[str]:
    for name, node in tree.items():
        if isinstance(node, tuple):
            value, origin = node
            yield f"{indent}{scalar(name)}: {scalar(value)}{_comment(origin)}"
        else:
            yield f"{indent}{scalar(name)}:"
            yield from _lines(node, indent + "  ")


def _comment(origin: str) -> str:
    # YAML allows no control characters, not even in a comment.
    printable = "".join(c if c.isprintable() else " " for c in redact(origin))
    words = " ".join(printable.split())
    return f"  # {words}" if words else ""
