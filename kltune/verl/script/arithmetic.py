"""The shell's integer arithmetic, over a syntax tree."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: int(a / b),
    "%": lambda a, b: a - b * int(a / b),
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "&&": lambda a, b: int(bool(a and b)),
    "||": lambda a, b: int(bool(a or b)),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


def evaluate(node: Node, number: Callable[[Node], int | None]) -> int | None:
    """Return the value of an arithmetic expression, or None if it cannot be told.

    Args:
        node: the expression, without ``$((`` and ``))``.
        number: gives the value of a leaf: a number, a name, an expansion.
    """
    if node.type == "parenthesized_expression":
        return evaluate(node.named_children[0], number)
    if node.type == "unary_expression":
        value = evaluate(node.named_children[0], number)
        sign = {"-": -1, "+": 1}.get(node.children[0].type)
        return None if value is None or sign is None else sign * value
    if node.type == "binary_expression":
        left, right = (evaluate(node.children[i], number) for i in (0, 2))
        apply = _BINARY.get(node.children[1].type)
        if left is None or right is None or apply is None:
            return None
        if node.children[1].type in "/%" and right == 0:
            return None
        return apply(left, right)
    return number(node)
