"""The variables of a script while it is read, each with what is known of its value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kltune.verl.script.launch import Parameter, Word
from kltune.verl.script.text import FromEnvironment, Text, Unknown

#: Set by every login shell; anything else of the caller's environment is asked for.
_EVERYWHERE = ("HOME", "PWD", "USER")

Value = Text | list[Word]


@dataclass(slots=True)
class Scope:
    """Variables, exported names, functions' arguments.

    Attributes:
        variables: text, or the words of an array; None once it was unset.
        arguments: ``$1``, ``$2``, …; None for those of the script itself, which are not known.
        parameters: shared by all scopes of one script: which defaults were taken.
    """

    variables: dict[str, Value | None] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    arguments: list[Word] | None = None
    directory: Text = ()
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def copy(self) -> Scope:
        """Return a scope whose changes do not reach this one."""
        return Scope(
            dict(self.variables),
            set(self.exported),
            self.arguments,
            self.directory,
            self.parameters,
        )

    def text(self, name: str) -> Text | None:
        """Return the value of a variable, or None if the script does not set it."""
        if name in self.variables:
            value = self.variables[name]
            if isinstance(value, list):
                return value[0].text if value else ()
            return value
        if name == "PWD" and self.directory:
            return self.directory
        if name in _EVERYWHERE:
            return (FromEnvironment(name),)
        if name.isdigit() and self.arguments is not None:
            index = int(name) - 1
            return self.arguments[index].text if 0 <= index < len(self.arguments) else None
        return None

    def words(self, name: str) -> list[Word] | None:
        """Return the elements of an array, of ``@`` or of a plain variable; None if not set."""
        if name in ("@", "*"):
            return self.arguments
        value = self.variables.get(name)
        if value is None or isinstance(value, list):
            return value
        return [Word(value, 0)]

    def exports(self) -> dict[str, Text]:
        """Return the exported variables that have a value."""
        found = {name: self.text(name) for name in sorted(self.exported)}
        return {name: text for name, text in found.items() if text is not None}

    def merge(self, branches: Iterable[Scope], condition: Unknown) -> None:
        """Take over what the branches of an unknown condition agree on.

        A variable that they do not agree on becomes unknown; its value depends on the condition.
        """
        branches = list(branches)
        names = set().union(*(branch.variables for branch in branches))
        for name in names:
            values = [branch.variables.get(name, self.variables.get(name)) for branch in branches]
            if all(value == values[0] for value in values[1:]):
                self.variables[name] = values[0]
            else:
                unknown = Unknown(f"${name}", condition.line, condition.why)
                array = any(isinstance(value, list) for value in values)
                self.variables[name] = [Word((unknown,), condition.line)] if array else (unknown,)
        self.exported.update(*(branch.exported for branch in branches))


def shell_environment(given: Mapping[str, str]) -> dict[str, Value | None]:
    """Return the variables that the user answered with, as the script's own."""
    return {name: (value,) for name, value in given.items()}
