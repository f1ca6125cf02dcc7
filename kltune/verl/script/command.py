"""Finds the verl training in a command line, and takes the command line apart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kltune.verl.script.launch import Launch, Note, Override, Word
from kltune.verl.script.text import Text, for_hydra, plain, shown, unknowns

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser

_INTERPRETER = re.compile(r"(?:.*/)?(?:python[\d.]*|pypy[\d.]*|torchrun)$")
_ENTRY = re.compile(r"(?:^|[./])main_(?:ppo|dapo)(?:_\w+)?(?:\.py)?$")
_OURS = re.compile(r"[+~]*(?:actor_rollout_ref|algorithm)[.@=]")
_KEY = re.compile(r"(?P<key>(?:\+{1,2}|~)?[A-Za-z_][\w./@-]*)(?:=|$)")
_HYDRA_VALUE = {"--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--package"}
_HYDRA_VALUE |= {"-p", "--info", "-i", "--cfg", "-c"}


def find_launch(
    argv: Sequence[Word], env: Mapping[str, Text], line: int, span: tuple[int, int] | None
) -> Launch | None:
    """Return the verl training that a command line starts, or None if it starts none."""
    known = [plain(word.text) for word in argv]
    for index, word in enumerate(known):
        module = word == "-m" and index + 1 < len(argv)
        if not module and not (word or "").endswith(".py"):
            continue
        last = index + 1 if module else index
        rest = argv[last + 1 :]
        entry = known[last]
        if entry is None or not (_ENTRY.search(entry) or any(_is_ours(w) for w in rest)):
            continue
        first = _interpreter(known, index)
        found = _Rest(rest)
        return Launch(
            line=line,
            wrapper=tuple(shown(w.text) for w in argv[:first]),
            command=tuple(w.text for w in argv[first : last + 1]),
            options=tuple(found.options),
            overrides=tuple(found.overrides),
            env={**env, **_runtime_env(known[:first])},
            takes_arguments=found.takes_arguments,
            faults=tuple(found.faults),
            span=span,
        )
    return None


def other_training(argv: Sequence[Word]) -> str | None:
    """Return the module of verl that a command line starts and that is no PPO training."""
    known = [plain(word.text) or "" for word in argv]
    for option, module in pairwise(known):
        if option == "-m" and re.match(r"(?:verl|recipe)\.", module):
            return module
    return None


def _is_ours(word: Word) -> bool:
    first = word.text[0] if word.text else ""
    return isinstance(first, str) and _OURS.match(first) is not None


def _interpreter(known: Sequence[str | None], index: int) -> int:
    for position in range(index - 1, -1, -1):
        if _INTERPRETER.match(known[position] or ""):
            return position
    return max(index - 1, 0)


class _Rest:
    """The words after the module, sorted into what they are for Hydra."""

    def __init__(self, words: Sequence[Word]):
        self.options: list[str] = []
        self.overrides: list[Override] = []
        self.faults: list[Note] = []
        self.takes_arguments = False
        pending = iter(words)
        for word in pending:
            text = shown(word.text)
            if text == "$@":
                self.takes_arguments = True
            elif text.startswith("-"):
                self.options.append(text)
                if text in _HYDRA_VALUE:
                    self.options.extend(shown(value.text) for value in [next(pending, word)])
            else:
                self._override(word)

    def _override(self, word: Word) -> None:
        first = word.text[0] if word.text else ""
        match = _KEY.match(first) if isinstance(first, str) else None
        if match is None or not (match[0].endswith("=") or match["key"].startswith("~")):
            said = shown(word.text)
            why = "is no override" if isinstance(first, str) else "may hold overrides"
            self.faults.append(Note(word.line, f"{said!r} {why}"))
            return
        value, unknown = None, unknowns(word.text)
        if not unknown and match[0].endswith("="):
            try:
                value = parse_hydra(for_hydra(word.text))
            except ValueError as error:
                self.faults.append(Note(word.line, str(error)))
                return
        self.overrides.append(Override(match["key"], value, word, unknown))


def parse_hydra(word: str) -> Any:
    """Return the value of an override, read by Hydra's own grammar.

    Raises:
        ValueError: Hydra cannot read the word, or would start several runs from it.
    """
    from hydra.errors import HydraException

    try:
        override = _parser().parse_override(word)
    except HydraException as error:
        raise ValueError(f"{word!r}: Hydra cannot read it: {_first_line(error)}") from error
    if override.is_sweep_override():
        raise ValueError(f"{word!r}: Hydra would sweep over these values; quote the list: [...]")
    return override.value()


@cache
def _parser() -> OverridesParser:
    # Hydra takes a fifth of a second to import.
    from hydra.core.override_parser.overrides_parser import OverridesParser as Parser

    return Parser.create()


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _runtime_env(wrapper: Sequence[str | None]) -> dict[str, Text]:
    """Return the environment that ``ray job submit --runtime-env-json`` sets."""
    for position, word in enumerate(wrapper):
        option, _, value = (word or "").partition("=")
        if option == "--runtime-env-json":
            text = value or (wrapper[position + 1] if position + 1 < len(wrapper) else "") or ""
            try:
                variables = json.loads(text).get("env_vars", {})
            except (ValueError, AttributeError):
                return {}
            return {str(name): (str(value),) for name, value in variables.items()}
    return {}
