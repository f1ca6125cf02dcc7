"""verl's console line: ``step:12 - actor/kl_loss:0.001 - critic/score/mean:np.float64(0.5)``.

Pure text to numbers. What verl prints, and how logs maim it: three decimals (<= 0.4.1), numpy's
``np.float64(…)`` (numpy >= 2), booleans, ANSI colours and Ray prefixes, a progress bar glued in
front, lines cut in the middle of a number, metric names that hold colons and `` - ``.
"""

from __future__ import annotations

import re

_STEP = re.compile(r"(?<![\w/])step:(\d{1,15}) - ")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_BOOLEANS = {"True": 1.0, "False": 0.0}
_NUMPY = re.compile(r":np\.\w+\(")

#: Log collectors cut long lines at a multiple of this many characters (wandb's ``output.log``:
#: 4,096; container runtimes: 16,384), in the middle of a number where it falls so.
CUT_AT = 4096

#: Data sources are the user's text and stand in metric names; longer ones are prose.
_LONGEST_NAME = 300


def parse_step_line(line: str, *, complete: bool = True) -> tuple[int, dict[str, float]] | None:
    """Return (step, number by metric name) of a step line; None for every other line.

    Args:
        line: one line of text without its end.
        complete: False for a last line whose end was not written; its last field is not trusted,
            and neither is that of a line of the length at which log collectors cut.
    """
    found = _STEP.search(line)
    if found is None:
        return None
    whole = complete and len(line) % CUT_AT != 0
    text = line[found.end() :]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if text.endswith("]") or "[repeated" in text:
        text = _REPEATED.sub("", text)
    if (len(text) + found.end() - found.start()) % CUT_AT == 0:
        whole = False
    if not whole:
        text = text.rpartition(" - ")[0]
    numbers = _plain_fields(text)
    if numbers is None:
        numbers = _any_fields(text)
    # Prose can hold "step:1 - "; every metric of verl has a slash in its name.
    if not any("/" in name for name in numbers):
        return None
    return int(found[1]), numbers


def parse_number(text: str) -> float | None:
    """Return the number that ``text`` prints, as verl's versions and numpy print one, or None."""
    if text.startswith("np.") and text.endswith(")"):
        text = text.partition("(")[2][:-1]
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    try:
        return float(text)
    except ValueError:
        return None


def _plain_fields(text: str) -> dict[str, float] | None:
    """Return the fields of a line without oddities, many times as fast; None if it has any."""
    if ":np." in text:
        text = _NUMPY.sub(":", text).replace(") - ", " - ").removesuffix(")")
    parts = text.replace(" - ", ":").split(":")
    if len(parts) != 2 * (text.count(" - ") + 1):
        return None
    try:
        return dict(zip(parts[::2], map(float, parts[1::2]), strict=True))
    except ValueError:
        return None


def _any_fields(text: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    pending = ""
    for piece in text.split(" - "):
        field = f"{pending} - {piece}" if pending else piece
        pending = ""
        name, colon, printed = field.rpartition(":")
        value = parse_number(printed)
        if name and value is not None:
            numbers[name] = value
        elif (not colon or printed.startswith(" ")) and len(field) <= _LONGEST_NAME:
            # Not a field with text as its value, so perhaps the start of a name that holds " - ".
            pending = field
    return numbers
