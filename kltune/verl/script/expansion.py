"""The words that the shell makes of a node of the syntax tree, with what is not known left so."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from kltune.verl.script.arithmetic import evaluate
from kltune.verl.script.launch import Parameter, Word
from kltune.verl.script.scope import Scope
from kltune.verl.script.syntax import parse
from kltune.verl.script.text import FromEnvironment, Text, Unknown, join, plain
from kltune.verl.script.words import (
    Fields,
    ansi,
    braces,
    has_unknown,
    output_of,
    trimmed,
    unescape,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_NAMES = {"variable_name", "special_variable_name", "subscript"}


class Expander:
    """Expands words under a scope.

    Args:
        source: the script, as the tree's positions count it.
        scope: the variables; ``${X:=default}`` sets one.
        path: where the script lies, for ``$0``; empty if that is not known.
    """

    def __init__(self, source: bytes, scope: Scope, path: str = "", line: int = 0):
        self.source = source
        self.scope = scope
        self.path = path
        self.nested = line > 0  # a script within a script: its words have no place of their own
        self._line = line

    def written(self, node: Node) -> str:
        """Return the node as it stands in the script."""
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def line(self, node: Node) -> int:
        """Return the node's line, counted from 1."""
        return self._line or node.start_point[0] + 1

    def unknown(self, node: Node, why: str) -> Text:
        """Return the node as a piece that cannot be told."""
        return (Unknown(self.written(node).strip(), self.line(node), why),)

    # -- words ---------------------------------------------------------------------------------

    def words(self, node: Node) -> list[Word]:
        """Return the words that an argument becomes: none, one, or several."""
        array = self._whole_array(node)
        if array is not None:
            return array
        fields = Fields()
        for text, quoted in self._pieces(node):
            fields.add(text, split=not quoted)
        texts = [part for text in fields.texts for part in braces(text, node)]
        alone = len(texts) == 1 and not self.nested
        span = (node.start_byte, node.end_byte) if alone else None
        return [Word(text, self.line(node), span) for text in texts]

    def _whole_array(self, node: Node) -> list[Word] | None:
        inner = node
        if node.type == "string" and len(node.named_children) == 1:
            inner = node.named_children[0]
            if self.written(node)[1:-1] != self.written(inner):
                return None
        whole = r"\$(?:([@*])|\{(?:([@*])(?::\d+)?|(\w+)\[[@*]\])\})"
        match = re.fullmatch(whole, self.written(inner))
        if match is None:
            return None
        name = match[1] or match[2] or match[3]
        found = self.scope.words(name)
        if found is not None:
            return list(found)
        if name in "@*":
            return [Word((Unknown("$@", self.line(node), "the script's own arguments"),), 0)]
        return [Word(self.unknown(inner, "is not set in the script"), self.line(node))]

    def _pieces(self, node: Node) -> list[tuple[Text, bool]]:
        if node.type == "concatenation":
            return [piece for child in node.children for piece in self._pieces(child)]
        if node.type in ("simple_expansion", "expansion", "command_substitution"):
            return [(self.text(node), False)]
        return [(self.text(node), True)]

    # -- text ----------------------------------------------------------------------------------

    def text(self, node: Node, quoted: bool = False) -> Text:
        """Return the text of a node, not split into words (as an assignment takes it)."""
        match node.type:
            case "string" | "translated_string":
                return self._string(node)
            case "raw_string":
                return (self.written(node)[1:-1],)
            case "ansi_c_string":
                return (ansi(self.written(node)[2:-1]),)
            case "concatenation":
                return join(self.text(child, quoted) for child in node.children)
            case "command_name" | "variable_assignment":
                return join(self.text(child, quoted) for child in node.children)
            case "simple_expansion":
                return self._variable(node)
            case "expansion":
                return self._parameter(node, quoted)
            case "arithmetic_expansion":
                return self._arithmetic(node)
            case "command_substitution":
                return self._substitution(node)
            case "process_substitution":
                return self.unknown(node, "is the output of a command")
            case _:
                return (unescape(self.written(node), quoted),)

    def assigned(self, node: Node) -> Text:
        """Return the text that an assignment gives to its variable; ``~/`` is HOME there."""
        text = self.text(node)
        if node.type in ("word", "concatenation") and self.written(node).startswith("~/"):
            return join([(FromEnvironment("HOME"),), (str(text[0])[1:],), text[1:]])
        return text

    def _string(self, node: Node) -> Text:
        texts: list[Text] = []
        position = node.start_byte + 1
        for child in node.children[1:-1]:
            texts.append((unescape(self._between(position, child.start_byte), True),))
            texts.append(self.text(child, quoted=True))
            position = child.end_byte
        texts.append((unescape(self._between(position, node.end_byte - 1), True),))
        return join(texts)

    def _between(self, start: int, end: int) -> str:
        return self.source[start:end].decode("utf-8", "replace")

    def _variable(self, node: Node) -> Text:
        # The grammar counts blanks before a $ inside quotes to the expansion.
        written = self.written(node)
        blanks = written[: len(written) - len(written.lstrip())]
        return join([(blanks,), self._value(written.lstrip()[1:], node)])

    def _value(self, name: str, node: Node) -> Text:
        if name in ("@", "*"):
            words = self.scope.words(name)
            if words is not None:
                return join([w.text if i == 0 else (" ", *w.text) for i, w in enumerate(words)])
            return self.unknown(node, "are the script's own arguments")
        if name in ("0", "BASH_SOURCE") and self.path:
            return (self.path,)
        found = self.scope.text(name)
        if found is not None:
            return found
        if name.isdigit():
            return self.unknown(node, f"is argument {name} of the script")
        if not name[:1].isalpha() and name[:1] != "_":
            return self.unknown(node, "is known only while the script runs")
        return self.unknown(node, "is not set in the script")

    def _parameter(self, node: Node, quoted: bool) -> Text:
        children = node.children[1:-1]
        if not children or children[0].type not in _NAMES:
            return self._special(node)
        name_node, rest = children[0], children[1:]
        name = self.written(name_node)
        if not rest:
            return self._element(name, node)
        operation, operands = rest[0].type, rest[1:]
        value = self.scope.text(name)
        if operation in (":-", "-", ":=", "=", ":?", "?", ":+", "+"):
            unset = value is None or (operation[0] == ":" and plain(value) == "")
            start = rest[0].end_byte
            return self._default(node, name, operation, value, unset, operands, start, quoted)
        if value is None:
            return self.unknown(node, "is not set in the script")
        return self._edited(node, value, operation, operands)

    def _default(
        self,
        node: Node,
        name: str,
        operation: str,
        value: Text | None,
        unset: bool,
        operands: list[Node],
        start: int,
        quoted: bool,
    ) -> Text:
        if operation in (":+", "+"):
            return () if unset else self._operand(operands, start, node, quoted)
        if not unset:
            return value or ()
        if operation in (":?", "?"):
            return self.unknown(node, "is not set in the script")
        default = self._operand(operands, start, node, quoted)
        shown = plain(default)
        if value is None and shown is not None:
            self.scope.parameters.setdefault(name, Parameter(name, shown, self.line(node)))
        if operation in (":=", "="):
            self.scope.variables[name] = default
        return default

    def _operand(self, operands: list[Node], start: int, node: Node, quoted: bool) -> Text:
        texts: list[Text] = []
        for child in operands:
            texts.append((self._between(start, child.start_byte),))
            texts.append(self.text(child, quoted))
            start = child.end_byte
        texts.append((self._between(start, node.end_byte - 1),))
        return join(texts)

    def _element(self, name: str, node: Node) -> Text:
        match = re.fullmatch(r"(\w+)\[(.*)\]", name)
        if match is None:
            return self._value(name, node)
        if match[1] == "BASH_SOURCE" and self.path:
            return (self.path,)
        words = self.scope.words(match[1])
        if words is None:
            return self.unknown(node, "is not set in the script")
        if match[2] in ("@", "*"):
            return join([w.text if i == 0 else (" ", *w.text) for i, w in enumerate(words)])
        if match[2].isdigit() and int(match[2]) < len(words):
            return words[int(match[2])].text
        return self.unknown(node, "is an element that cannot be told")

    def _special(self, node: Node) -> Text:
        length = re.fullmatch(r"\$\{#(\w+)(\[[@*]\])?\}", self.written(node))
        if length and length[2]:
            words = self.scope.words(length[1])
            if words is not None and all(not has_unknown(w.text) for w in words):
                return (str(len(words)),)
        elif length and length[1]:
            value = plain(self.scope.text(length[1]) or ()) if self.scope.text(length[1]) else None
            if value is not None:
                return (str(len(value)),)
        return self.unknown(node, "cannot be told from the script alone")

    def _edited(self, node: Node, value: Text, operation: str, operands: list[Node]) -> Text:
        known = plain(value)
        arguments = [plain(self.text(operand)) for operand in operands if operand.is_named]
        first = (arguments[0] or "") if arguments else ""
        tail = value[-1] if value else ""
        if operation == "##" and first == "*/" and isinstance(tail, str) and "/" in tail:
            return (tail.rpartition("/")[2],)
        if known is None or any(argument is None for argument in arguments):
            return self.unknown(node, "cannot be told from the script alone")
        match operation:
            case "#" | "##" | "%" | "%%":
                return (trimmed(known, first, operation),)
            case "/" | "//" if not re.search(r"[*?\[]", first):
                second = (arguments[1] or "") if len(arguments) > 1 else ""
                return (known.replace(first, second, -1 if operation == "//" else 1),)
            case ":" if all(re.fullmatch(r"-?\d+", argument or "") for argument in arguments):
                offset = int(first)
                length = int(arguments[1] or 0) if len(arguments) > 1 else len(known)
                return (known[offset : offset + length],)
            case "^^":
                return (known.upper(),)
            case ",,":
                return (known.lower(),)
        return self.unknown(node, "cannot be told from the script alone")

    def _arithmetic(self, node: Node) -> Text:
        inner = node.named_children
        value = evaluate(inner[0], self.number) if len(inner) == 1 else None
        if value is None:
            return self.unknown(node, "is computed from what cannot be told")
        return (str(value),)

    def number(self, node: Node) -> int | None:
        """Return the integer that a number, a name or an expansion stands for, if it is one."""
        if node.type in ("variable_name", "word") and re.fullmatch(
            r"[A-Za-z_]\w*", self.written(node)
        ):
            text = self.scope.text(self.written(node))
        else:
            text = self.text(node)
        value = plain(text) if text is not None else None
        return int(value) if value is not None and re.fullmatch(r"\s*-?\d+\s*", value) else None

    def _substitution(self, node: Node) -> Text:
        # A comment in backquotes is how a remark stands between continued lines.
        inside = [child for child in node.named_children if child.type != "comment"]
        if not inside:
            return ()
        if len(inside) == 1 and inside[0].type == "command":
            argv = [word for child in inside[0].named_children for word in self._argument(child)]
            known = [plain(word.text) for word in argv]
            if None not in known:
                output = output_of([value or "" for value in known])
                if output is not None:
                    return (output,)
            if known[:1] == ["pwd"]:
                return self.scope.text("PWD") or ()
        written = self.written(node)
        if written.startswith("$((") and written.endswith("))"):
            # Within ${…:-…} the grammar takes arithmetic for a command.
            source, root = parse(f"x={written}")
            inner = Expander(source, self.scope, self.path, self.line(node))
            value = root.children[0].child_by_field_name("value")
            if value is not None and value.type == "arithmetic_expansion":
                return inner.text(value)
        path = self._changed_to(inside[0])
        if path is not None:
            return (path,)
        return self.unknown(node, "is the output of a command")

    def _changed_to(self, node: Node) -> str | None:
        """Return the directory of ``cd DIR && pwd``, the way to a script's own directory."""
        if node.type != "list" or self.written(node.named_children[-1]) != "pwd" or not self.path:
            return None
        command = node.named_children[0]
        if command.type == "redirected_statement":
            command = command.named_children[0]
        words = [word for child in command.named_children for word in self._argument(child)]
        known = [plain(word.text) for word in words if plain(word.text) != "--"]
        if len(known) == 2 and known[0] == "cd" and known[1] is not None:
            return posixpath.normpath(known[1])
        return None

    def _argument(self, node: Node) -> list[Word]:
        if node.type == "command_name":
            return self.words(node.children[0])
        return self.words(node)
