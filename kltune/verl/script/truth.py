"""Whether a condition of a shell script holds, as far as its text tells."""

from __future__ import annotations

import fnmatch
from enum import Enum
from typing import TYPE_CHECKING

from kltune.verl.script.arithmetic import evaluate
from kltune.verl.script.text import plain

if TYPE_CHECKING:
    from tree_sitter import Node

    from kltune.verl.script.expansion import Expander


class Truth(Enum):
    """True, false, or to be seen only while the script runs."""

    TRUE = True
    FALSE = False
    UNKNOWN = None


_COMPARE = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def truth(node: Node, expand: Expander) -> Truth:
    """Return whether the condition holds; files and commands cannot be told."""
    match node.type:
        case "negated_command":
            return _not(truth(node.named_children[-1], expand))
        case "test_command" | "parenthesized_expression":
            inner = node.named_children
            return truth(inner[0], expand) if len(inner) == 1 else Truth.UNKNOWN
        case "compound_statement" if node.children[0].type == "((":
            value = evaluate(node.named_children[0], expand.number)
            return Truth.UNKNOWN if value is None else Truth(value != 0)
        case "compound_statement" | "subshell" if len(node.named_children) == 1:
            return truth(node.named_children[0], expand)
        case "list":
            left, right = (
                truth(node.named_children[0], expand),
                truth(node.named_children[-1], expand),
            )
            return _both(left, right, any(child.type == "&&" for child in node.children))
        case "unary_expression":
            return _unary(node, expand)
        case "binary_expression":
            return _binary(node, expand)
        case "command":
            word = expand.written(node)
            return {"true": Truth.TRUE, ":": Truth.TRUE, "false": Truth.FALSE}.get(
                word, Truth.UNKNOWN
            )
        case "word" | "string" | "expansion" | "simple_expansion" | "concatenation" | "number":
            text = plain(expand.text(node))
            return Truth.UNKNOWN if text is None else Truth(text != "")
    return Truth.UNKNOWN


def _not(value: Truth) -> Truth:
    return value if value is Truth.UNKNOWN else Truth(not value.value)


def _both(left: Truth, right: Truth, conjunction: bool) -> Truth:
    decisive = Truth(not conjunction)
    if decisive in (left, right):
        return decisive
    return Truth.UNKNOWN if Truth.UNKNOWN in (left, right) else Truth(conjunction)


def _unary(node: Node, expand: Expander) -> Truth:
    operation = expand.written(node.children[0])
    if operation == "!":
        return _not(truth(node.named_children[-1], expand))
    operand = node.named_children[-1]
    if operation not in ("-z", "-n", "-v"):
        return Truth.UNKNOWN
    if operation == "-v":
        return Truth(expand.scope.text(expand.written(operand)) is not None)
    text = plain(expand.text(operand))
    if text is None:
        return Truth.UNKNOWN
    return Truth((text == "") == (operation == "-z"))


def _binary(node: Node, expand: Expander) -> Truth:
    operation = expand.written(node.children[1])
    if operation in ("&&", "||", "-a", "-o"):
        left, right = truth(node.children[0], expand), truth(node.children[2], expand)
        return _both(left, right, operation in ("&&", "-a"))
    left_text, right_text = (plain(expand.text(node.children[i])) for i in (0, 2))
    if left_text is None or right_text is None:
        return Truth.UNKNOWN
    if operation in ("=", "==", "!="):
        quoted = node.children[2].type in ("string", "raw_string")
        same = left_text == right_text if quoted else fnmatch.fnmatchcase(left_text, right_text)
        return Truth(same == (operation != "!="))
    if operation in _COMPARE:
        try:
            return Truth(_COMPARE[operation](int(left_text), int(right_text)))
        except ValueError:
            return Truth.UNKNOWN
    return Truth.UNKNOWN
