"""What must never be written down: passwords, API keys and tokens, found by name and by shape.

Used on everything that leaves kltune: logs, plans, exports, the journal and the report. Rather
one value too many is hidden than one too few; a reference such as ``$HF_TOKEN`` is no secret and
stays, since a script without it would no longer run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

#: Stands where a secret was. One plain word in a shell, YAML, JSON and Hydra.
REDACTED = "REDACTED"

_ALWAYS = {"apikey", "credential", "credentials", "passphrase", "passwd", "password", "pwd"}
_ALWAYS |= {"secret", "secrets"}
_KEY_OF = {"access", "account", "api", "auth", "encryption", "license", "private", "signing"}
# Vocabulary entries and token counts are the everyday "token" of this field.
_TOKEN_OF = {"begin", "bos", "cls", "end", "eos", "image", "mask", "max", "min", "new", "next"}
_TOKEN_OF |= {"num", "pad", "per", "sep", "special", "start", "stop", "think", "tool", "unk"}
_TOKEN_OF |= {"video", "vision"}

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def is_secret_name(name: str) -> bool:
    """Tell whether a variable or configuration key of this name holds a secret.

    >>> [is_secret_name(n) for n in ("WANDB_API_KEY", "trainer.hf_token", "DB_PASSWORD")]
    [True, True, True]
    >>> [is_secret_name(n) for n in ("data.prompt_key", "ppo_max_token_len", "eos_token")]
    [False, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name.rpartition(".")[2])]
    if _ALWAYS.intersection(words):
        return True
    if any(word == "key" and before in _KEY_OF for before, word in pairwise(words)):
        return True
    return words[-1:] == ["token"] and _TOKEN_OF.isdisjoint(words[-2:-1])


# A password in a URL; the user name stays, it says whom to ask. Databases take a password with a
# slash as it is; what looks like a port and a path is none.
_URL_PASSWORD = re.compile(
    r"(?P<head>\b[A-Za-z][\w+.-]*://[^\s/:@'\"]*:)(?P<secret>(?!\d{1,5}/)[^\s'\"]+)(?=@)"
)
_SHAPES = re.compile(
    r"""\b(?:
        hf_[A-Za-z0-9]{16,}                                   # Hugging Face
      | sk-[A-Za-z0-9_-]{16,}                                 # OpenAI and those who copied it
      | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,}       # GitHub
      | glpat-[\w-]{16,}                                      # GitLab
      | (?:AKIA|ASIA)[0-9A-Z]{16}                             # AWS
      | AIza[\w-]{30,}                                        # Google
      | xox[abeoprs]-[\w-]{10,}                               # Slack
      | wandb_v\d_\w{16,}                                     # Weights & Biases
      | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                       # JSON web token
    )""",
    re.VERBOSE,
)
_PEM = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_BEARER = re.compile(r"(?P<head>\b(?:Bearer|Basic)\s+)(?P<secret>[\w.~+/=-]{8,})")
_LOGIN = re.compile(
    r"(?P<head>\b(?:wandb|swanlab)\s+login\s+(?:-\S+\s+)*)(?P<secret>(?![-$'\"])[\w-]{8,})"
)

# What comes before a value: NAME=, NAME:, "NAME": or \"NAME\": (JSON in a string), the shell's
# ${NAME:-, and --name with a blank.
_NAME = re.compile(
    r"""(?<![\w$.-])
        (?:(?P<name>-{0,2}[A-Za-z_][\w.-]*)\\?["']?\s*(?::[-=]|[=:](?![?+=]))
          |(?P<flag>--[A-Za-z][\w-]*)(?=\s))[ \t]*""",
    re.VERBOSE,
)
# A shell word glued from quoted and bare pieces; JSON and Hydra values are such words too.
_WORD = re.compile(
    r"""(?: \\"(?:[^"\\]|\\[^"])*\\" | "(?:[^"\\]|\\.)*" | '[^']*' | \\.
          | (?!,[\s"'\\]|,$) [^\s"'\\;&|})\]] )+""",
    re.VERBOSE | re.DOTALL,
)
# YAML's plain text may hold blanks: it runs to the end of the line or to a comment.
_YAML_KEY = re.compile(r"(?:^|\n)[ \t-]*[\w.-]+:[ \t]+$")
_YAML_TEXT = re.compile(r"[^\s\"'{\[](?:[^\n#]|(?<!\s)#)*")
_NO_SECRET = re.compile(r"\$|(?:null|none|true|false|~|)$", re.IGNORECASE)


def redact(text: str) -> str:
    """Return the text with every secret in it replaced by ``REDACTED``.

    Found are passwords in URLs, ``NAME=value``, ``name: value`` and ``--name value`` of a
    secret's name, bearer tokens, private keys, and the well-known token shapes.
    """
    text = _PEM.sub(rf"\1 {REDACTED} \2", text)
    for pattern in (_URL_PASSWORD, _BEARER, _LOGIN):
        text = pattern.sub(rf"\g<head>{REDACTED}", text)
    return _SHAPES.sub(REDACTED, _redact_named(text))


def redact_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with secrets hidden, by the name of the key and inside the text."""
    return {name: _redact_value(name, value) for name, value in values.items()}


def variable_of(name: str) -> str:
    """Return the environment variable that a secret's value should come from."""
    return re.sub(r"[^A-Z0-9]", "_", name.lstrip("+~").rpartition(".")[2].upper())


def without_secrets(name: str, value: Any) -> Any:
    """Return a value for verl's configuration: a secret becomes a reference to the environment."""
    if isinstance(value, Mapping):
        return {inner: without_secrets(str(inner), item) for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(name, item) for item in value]
    if not isinstance(value, str):
        return value
    if is_secret_name(name) and not _NO_SECRET.match(value):
        return f"${{oc.env:{variable_of(name)}}}"
    return redact(value)


def _redact_value(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return redact_values(value)
    if isinstance(value, (list, tuple)):
        return [_redact_value(name, item) for item in value]
    if not isinstance(value, str):
        return value
    if is_secret_name(name) and not _NO_SECRET.match(value):
        return REDACTED
    return redact(value)


def _redact_named(text: str) -> str:
    kept: list[str] = []
    position = 0
    while name := _NAME.search(text, position):
        kept.append(text[position : name.end()])
        position = name.end()
        if not is_secret_name(name["name"] or name["flag"]):
            continue
        line_start = text.rfind("\n", 0, name.start()) + 1
        in_yaml = _YAML_KEY.match(text[line_start:position])
        value = (in_yaml and _YAML_TEXT.match(text, position)) or _WORD.match(text, position)
        if value is None or _NO_SECRET.match(value[0].replace("\\", "").strip("\"' ")):
            continue
        quotes = len(value[0]) - len(value[0].lstrip("\\\"'"))
        kept.append(value[0][:quotes] + REDACTED + value[0][:quotes])
        position = value.end()
    return "".join(kept) + text[position:]
