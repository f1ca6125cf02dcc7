"""Reads a launch script without running anything: an interpreter of bash that only looks.

What a condition, a command or the caller decides stays unknown; a variable that all branches of
such a condition agree on is known all the same, and a branch that exits does not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kltune.verl.script.command import find_launch, other_training
from kltune.verl.script.expansion import Expander
from kltune.verl.script.launch import Launch, LaunchScript, Note, Word
from kltune.verl.script.scope import Scope, shell_environment
from kltune.verl.script.syntax import parse
from kltune.verl.script.text import Text, Unknown, join, plain, shown
from kltune.verl.script.truth import Truth, truth

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOP_LIMIT = 64
_DEPTH_LIMIT = 20
# Commands that name a training without starting one.
_TALKERS = {"echo", "printf", "cat", "grep", "pgrep", "pkill", "ps", "log"}
_OVERRIDE = re.compile(r"\+{0,2}[a-z_]+\.[\w.]+=")


def read_script(text: str, given: Mapping[str, str] | None = None, path: str = "") -> LaunchScript:
    """Return what a bash launch script starts. Nothing is executed.

    Args:
        text: the script.
        given: answers for variables that the script leaves open, by name.
        path: where the script lies, for scripts that look for files beside themselves.
    """
    reader = _Reader(path, Scope(variables=shell_environment(given or {})))
    reader.read(text)
    sbatch = re.findall(r"^#SBATCH\s+(.*?)\s*$", text, re.MULTILINE)
    return LaunchScript(
        text,
        tuple(reader.launches),
        tuple(reader.scope.parameters.values()),
        tuple(dict.fromkeys(reader.notes)),
        tuple(sbatch),
    )


class _Exit(Exception):  # noqa: N818 (no error: the flow of the script that is read)
    """The script ends here, or a function returns."""


class _Reader:
    def __init__(self, path: str, scope: Scope):
        self.path = path
        self.scope = scope
        self.launches: list[Launch] = []
        self.notes: list[Note] = []
        self._functions: dict[str, tuple[Expander, Node]] = {}
        self._context: list[str] = []
        self._depth = 0
        self._expand = Expander(b"", scope)

    # -- scripts -------------------------------------------------------------------------------

    def read(self, text: str, line: int = 0) -> None:
        """Read a script, or one inside a script whose words all count as on ``line``."""
        source, root = parse(text)
        outer, self._expand = self._expand, Expander(source, self.scope, self.path, line)
        self._depth += 1
        try:
            if self._depth <= _DEPTH_LIMIT:
                if root.has_error:
                    self._note(_first_error(root), "could not be read as bash from here on")
                self._run_all(root.children)
        except _Exit:
            pass
        finally:
            self._depth -= 1
            self._expand = outer

    def _note(self, node: Node, text: str) -> None:
        self.notes.append(Note(self._expand.line(node), text))

    # -- statements ----------------------------------------------------------------------------

    def _run_all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._run(node)

    def _run(self, node: Node) -> None:
        match node.type:
            case "command":
                self._command(node)
            case "variable_assignment":
                self._assign(node)
            case "declaration_command":
                self._declare(node)
            case "unset_command":
                for child in node.named_children:
                    self.scope.variables[self._expand.written(child)] = None
            case "redirected_statement":
                self._redirected(node)
            case "list":
                self._list(node)
            case "if_statement":
                self._if(node)
            case "case_statement":
                self._case(node)
            case "for_statement":
                self._for(node)
            case "while_statement":
                self._while(node)
            case "c_style_for_statement":
                for name in re.findall(r"\b([A-Za-z_]\w*)\s*=", self._expand.written(node)[:80]):
                    self.scope.variables[name] = self._expand.unknown(node, "counts a loop")
                self._run_all(node.named_children[-1:])
            case "function_definition":
                name = self._expand.written(node.child_by_field_name("name") or node)
                body = node.child_by_field_name("body")
                if body is not None:
                    self._functions[name] = (self._expand, body)
            case "subshell":
                self._branch(node.named_children)
            case "test_command" | "comment":
                pass
            case _:
                self._run_all(node.named_children)

    def _assign(self, node: Node) -> None:
        target, value = node.named_children[0], node.child_by_field_name("value")
        name, _, index = self._expand.written(target).partition("[")
        if target.type == "subscript":
            words = list(self.scope.words(name) or [])
            number = index.rstrip("]")
            if number == str(len(words)) and value is not None:
                words.append(Word(self._expand.assigned(value), self._expand.line(node)))
            else:
                words = [Word(self._expand.unknown(target, "is set by index"), 0)]
            self.scope.variables[name] = words
        elif value is not None and value.type == "array":
            added = [
                w for c in value.named_children if c.type != "comment" for w in self._words(c)
            ]
            before = self.scope.words(name) or [] if self._appends(node) else []
            self.scope.variables[name] = [*before, *added]
        else:
            text: Text = self._expand.assigned(value) if value is not None else ()
            before_text = self.scope.text(name) or () if self._appends(node) else ()
            self.scope.variables[name] = join([before_text, text])

    def _appends(self, node: Node) -> bool:
        return any(child.type == "+=" for child in node.children)

    def _declare(self, node: Node) -> None:
        exports = self._expand.written(node).startswith(("export", "declare -x"))
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child)
                name = self._expand.written(child.named_children[0])
            else:
                name = self._expand.written(child)
            if exports and re.fullmatch(r"\w+", name):
                self.scope.exported.add(name)

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        heredocs = [child for child in node.children if child.type == "heredoc_redirect"]
        before = len(self.launches)
        if body is not None:
            self._run(body)
        for heredoc in heredocs:
            # `tee` and the like may stand behind the heredoc's start on the same line.
            self._run_all([c for c in heredoc.named_children if c.type in ("pipeline", "command")])
            text = "".join(
                self._expand.written(c) for c in heredoc.named_children if c.type == "heredoc_body"
            )
            if len(self.launches) == before and "verl" in text and "python" in text:
                self.read(text.replace("\\$", "$"), self._expand.line(heredoc))

    # -- conditions ----------------------------------------------------------------------------

    def _list(self, node: Node) -> None:
        left, right = node.named_children[0], node.named_children[-1]
        both = any(child.type == "&&" for child in node.children)
        holds = truth(left, self._expand)
        if left.type not in ("test_command", "negated_command"):
            self._run(left)
        if holds is Truth.UNKNOWN and left.type in ("test_command", "negated_command", "list"):
            self._branches(left, [[right], []])
        elif both == (holds is not Truth.FALSE):
            # A command whose outcome cannot be told is taken to succeed.
            self._run(right)

    def _if(self, node: Node) -> None:
        clauses: list[tuple[Node | None, list[Node]]] = []
        parts = [node, *(c for c in node.children if c.type in ("elif_clause", "else_clause"))]
        for part in parts:
            children = part.children
            then = next((i for i, c in enumerate(children) if c.type == "then"), 0)
            test = next((c for c in children[1:then] if c.is_named), None)
            body = [
                c for c in children[then + 1 :] if c.is_named and not c.type.endswith("clause")
            ]
            clauses.append((test, body))
        open_branches: list[list[Node]] = []
        question: Node | None = None
        for test, body in clauses:
            holds = Truth.TRUE if test is None else truth(test, self._expand)
            if holds is Truth.FALSE:
                continue
            open_branches.append(body)
            if holds is Truth.TRUE:
                break
            question = question or test
        else:
            open_branches.append([])
        if question is None:
            self._run_all(open_branches[0])
        else:
            self._branches(question, open_branches)

    def _case(self, node: Node) -> None:
        subject = self._expand.text(node.named_children[0])
        known = plain(subject)
        items = [child for child in node.named_children if child.type == "case_item"]
        bodies: list[list[Node]] = []
        for item in items:
            end = next(i for i, c in enumerate(item.children) if c.type == ")")
            patterns = [self._expand.written(c) for c in item.children[:end] if c.is_named]
            body = [c for c in item.children[end + 1 :] if c.is_named]
            if known is None:
                bodies.append(body)
            elif any(_matches(known, pattern) for pattern in patterns):
                self._run_all(body)
                return
        if known is None:
            if not any(self._expand.written(item).lstrip("( ").startswith("*)") for item in items):
                bodies.append([])
            self._branches(node.named_children[0], bodies)

    def _branches(self, question: Node, bodies: Sequence[Sequence[Node]]) -> None:
        """Follow each body by itself; keep what those agree on that do not exit."""
        asked = " ".join(self._expand.written(question).split())
        condition = Unknown(asked, self._expand.line(question), f"depends on {asked}")
        ends = [end for body in bodies if (end := self._branch(body, asked)) is not None]
        if not ends:
            raise _Exit
        if len(ends) == 1:
            self.scope.variables = ends[0].variables
            self.scope.exported = ends[0].exported
        else:
            self.scope.merge(ends, condition)

    def _branch(self, body: Sequence[Node], asked: str = "") -> Scope | None:
        """Return the scope at the end of a body, None if it exits; our own stays as it is."""
        outer, self.scope = self.scope, self.scope.copy()
        self._expand.scope = self.scope
        if asked:
            self._context.append(asked)
        try:
            self._run_all(body)
        except _Exit:
            return None
        else:
            return self.scope
        finally:
            if asked:
                self._context.pop()
            self.scope = self._expand.scope = outer

    # -- loops ---------------------------------------------------------------------------------

    def _for(self, node: Node) -> None:
        name = self._expand.written(node.named_children[0])
        body = next((c for c in node.named_children if c.type == "do_group"), None)
        words = [w for c in node.named_children[1:] if c is not body for w in self._words(c)]
        if body is None or not words or len(words) > _LOOP_LIMIT:
            return
        for word in words:
            self.scope.variables[name] = word.text
            self._context.append(f"{name}={shown(word.text)}")
            try:
                self._run_all(body.named_children)
            finally:
                self._context.pop()

    def _while(self, node: Node) -> None:
        # Without arguments a loop over them does not turn; of any other, one turn is looked at.
        asked = self._expand.written(node.children[1])
        body = node.child_by_field_name("body") or node.named_children[-1]
        if re.search(r"\$\{?(?:#|1)|getopts", asked):
            self._note(node, "arguments of the script are not looked at")
        else:
            self._branches(node.children[1], [body.named_children, []])

    # -- commands ------------------------------------------------------------------------------

    def _words(self, node: Node) -> list[Word]:
        if node.type == "command_name":
            return self._expand.words(node.children[0])
        return self._expand.words(node)

    def _command(self, node: Node) -> None:
        skipped = ("variable_assignment", "comment", "file_redirect", "herestring_redirect")
        parts = [child for child in node.named_children if child.type not in skipped]
        argv = [word for part in parts for word in self._words(part)]
        prefix = {
            self._expand.written(c.named_children[0]): self._value_of(c)
            for c in node.named_children
            if c.type == "variable_assignment"
        }
        if not argv:
            return
        name = plain(argv[0].text)
        if name in ("exit", "return"):
            raise _Exit
        if name == "cd" and len(argv) > 1:
            self.scope.directory = argv[1].text
        elif name in ("source", "."):
            file = shown(argv[1].text) if len(argv) > 1 else ""
            self._note(node, f"what {file} sets is not known")
        elif name in ("read", "mapfile", "readarray"):
            for word in argv[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", plain(word.text) or ""):
                    name = shown(word.text)
                    unknown = Unknown(f"${name}", word.line, "is read while the script runs")
                    self.scope.variables[name] = (unknown,)
        elif name in self._functions:
            self._call(name, argv[1:])
        elif name is not None and _OVERRIDE.match(name):
            keys = [shown(word.text).split("=")[0] for word in argv if "=" in shown(word.text)]
            self._note(node, f"never reaches verl, the command ended before it: {', '.join(keys)}")
        elif name not in _TALKERS and not self._launch(node, argv, prefix):
            self._nested(argv)
        if name == "exec" and len(argv) > 1:
            raise _Exit

    def _value_of(self, assignment: Node) -> Text:
        value = assignment.child_by_field_name("value")
        return self._expand.assigned(value) if value is not None else ()

    def _launch(self, node: Node, argv: list[Word], prefix: Mapping[str, Text]) -> bool:
        span = None if self._expand.nested else (node.start_byte, node.end_byte)
        env = {**self.scope.exports(), **prefix}
        launch = find_launch(argv, env, self._expand.line(node), span)
        if launch is None:
            if module := other_training(argv):
                self._note(node, f"{module} is no PPO training: there is no KL in it to calibrate")
            return False
        self.launches.append(
            replace(launch, directory=shown(self.scope.directory), context=tuple(self._context))
        )
        return True

    def _call(self, name: str, arguments: list[Word]) -> None:
        expand, body = self._functions[name]
        outer = self._expand, self.scope.arguments
        if self._depth >= _DEPTH_LIMIT:
            return
        self._depth += 1
        self._expand = expand
        self._expand.scope = self.scope
        self.scope.arguments = arguments
        try:
            self._run_all(body.named_children)
        except _Exit:
            pass
        finally:
            self._depth -= 1
            self._expand, self.scope.arguments = outer
            self._expand.scope = self.scope

    def _nested(self, argv: Sequence[Word]) -> None:
        """Read what another shell is given as text: ``bash -c``, ``sbatch --wrap``, ``eval``."""
        for position, word in enumerate(argv):
            text = re.sub(r"^--wrap=", "", shown(word.text))
            if not ("verl" in text and "python" in text and len(text.split()) > 1):
                continue
            before = len(self.launches)
            self.read(text, word.line or 1)
            outer = tuple(shown(w.text) for w in argv[:position])
            for index in range(before, len(self.launches)):
                launch = self.launches[index]
                self.launches[index] = replace(launch, wrapper=outer + launch.wrapper)


def _matches(value: str, pattern: str) -> bool:
    return fnmatchcase(value, pattern.strip("\"'"))


def _first_error(node: Node) -> Node:
    for child in node.children:
        if child.has_error or child.is_missing:
            return _first_error(child)
    return node
