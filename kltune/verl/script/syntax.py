"""The syntax tree of a bash script."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

# The grammar lets `# remark` run to the end of the line; for the shell it ends at the backquote.
_REMARK = re.compile(rb"`[ \t]*#[^`\n]*`")


def parse(text: str) -> tuple[bytes, Node]:
    """Return the bytes that the tree's positions count, and its root."""
    from tree_sitter import Language, Parser
    from tree_sitter_bash import language

    source = _REMARK.sub(lambda match: b" " * len(match[0]), text.encode())
    return source, Parser(Language(language())).parse(source).root_node
