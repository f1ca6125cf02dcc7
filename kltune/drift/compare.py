"""What differs between two data sets, row by row, and how their make-up has moved.

Rows are compared by content, so neither order nor numbering matters. Of the rows that are not in
both, those with the same identity count as changed, the others as removed or added.

The share of changed data is that of the rows of the larger data set that the other one does not
have. Shifts are distances between distributions, shares of rows as well: total variation for
sources, Kolmogorov-Smirnov for lengths. None of them can be larger than the share of changed data;
they say whether a change of many rows is one that matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from kltune.drift.fingerprint import Fingerprint, Lengths, Taken, fingerprint, hashes

if TYPE_CHECKING:
    from kltune.drift.fingerprint import Hashes

_CHUNK = 1 << 20

#: Two-sided 95 % point of the normal distribution.
_Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Shift:
    """How one property has moved: mean before and after, and the distance, a share of rows."""

    before: float
    after: float
    distance: float


@dataclass(frozen=True, slots=True)
class Drift:
    """What differs between two data sets.

    Attributes:
        rows_before, rows_after: their rows.
        unchanged: rows in both.
        added, removed: rows in one of them only; with ``changed`` None, changed rows are in both.
        changed: rows with the same identity and another content; None where a sample cannot tell.
        share: of the rows of the larger one that are not in the other.
        margin: half of the 95 % interval of ``share``; None where every row was compared.
        prompt_length, answer_length: mean characters.
        sources: share of rows before and after, by ``data_source``.
        source_mix: distance between the two.
        renumbered: rows stand under other numbers than before, so that none counts as changed.
    """

    rows_before: int
    rows_after: int
    unchanged: int
    added: int
    removed: int
    changed: int | None
    share: float
    margin: float | None
    prompt_length: Shift
    answer_length: Shift
    sources: Mapping[str, tuple[float, float]]
    source_mix: float
    renumbered: bool = False


def compare_files(old: Sequence[Path], new: Sequence[Path], prompt_key: str = "prompt") -> Drift:
    """Compare two data sets row by row; needs 16 bytes of memory a row.

    Raises:
        SettingsError, LaunchError: see ``fingerprint``.
    """
    before, after = Taken(), Taken()
    old_rows = _all(old, before, prompt_key)
    new_rows = _all(new, after, prompt_key)
    return _exact(old_rows, new_rows, before.fingerprint(), after.fingerprint())


def compare_remembered(
    stored: Fingerprint, old: Sequence[Path], new: Sequence[Path], prompt_key: str = "prompt"
) -> Drift:
    """Compare with a data set that was fingerprinted earlier.

    Row by row where its files are still what they were, else by the fingerprint.

    Raises:
        SettingsError, LaunchError: see ``fingerprint``.
    """
    if not stored.complete and old and all(path.exists() for path in old):
        before, after = Taken(), Taken()
        old_rows = _all(old, before, prompt_key)
        found = before.fingerprint()
        if found.digest == stored.digest:
            return _exact(old_rows, _all(new, after, prompt_key), found, after.fingerprint())
    return compare(stored, fingerprint(new, prompt_key))


def compare(before: Fingerprint, after: Fingerprint) -> Drift:
    """Compare two fingerprints: exactly where both hold every row, else by their samples."""
    if before.complete and after.complete:
        return _exact(before.sample(), after.sample(), before, after)
    old, _ = before.sample()
    new, _ = after.sample()
    # Below the smaller of the two largest hashes both samples hold every row that there is.
    ends = [s[-1] for s, f in ((old, before), (new, after)) if not f.complete]
    old, new = old[old < min(ends)], new[new < min(ends)]
    both = int(_matched(old, new).sum())
    larger = max(len(old), len(new))
    share = (larger - both) / larger if larger else 0.0
    unchanged = round((1.0 - share) * max(before.rows, after.rows))
    unchanged = min(unchanged, before.rows, after.rows)
    error = math.sqrt(share * (1.0 - share) / larger) if larger else math.nan
    # No difference among n rows bounds its share by 3 / n (the rule of three).
    margin = max(_Z95 * error, 3.0 / larger) if larger else math.nan
    return _drift(before, after, unchanged, None, share, margin)


def _all(paths: Sequence[Path], taken: Taken, prompt_key: str) -> tuple[Hashes, Hashes]:
    """Return the hashes of all rows, ascending by content."""
    import numpy

    contents, identities = [], []
    for content, identity in hashes(paths, taken, prompt_key):
        contents.append(content)
        identities.append(identity)
    if not contents:
        return numpy.empty(0, numpy.uint64), numpy.empty(0, numpy.uint64)
    whole = numpy.concatenate(contents)
    contents.clear()
    order = numpy.argsort(whole)
    whole = whole[order]
    named = numpy.concatenate(identities)
    identities.clear()
    return whole, named[order]


def _exact(
    old: tuple[Hashes, Hashes],
    new: tuple[Hashes, Hashes],
    before: Fingerprint,
    after: Fingerprint,
) -> Drift:
    import numpy

    kept_old, kept_new = _matched(old[0], new[0]), _matched(new[0], old[0])
    unchanged = int(kept_old.sum())
    places = numpy.sort(old[1][kept_old]), numpy.sort(new[1][kept_new])
    renumbered = unchanged > 0 and int(_matched(*places).sum()) < unchanged / 2
    changed = 0
    if not renumbered:
        rest = numpy.sort(old[1][~kept_old]), numpy.sort(new[1][~kept_new])
        changed = int(_matched(*rest).sum())
    larger = max(before.rows, after.rows)
    share = (larger - unchanged) / larger if larger else 0.0
    return _drift(before, after, unchanged, changed, share, None, renumbered)


def _matched(rows: Hashes, others: Hashes) -> Hashes:
    """Return which of ``rows`` find a partner in ``others``, each of which serves once.

    Both are ascending. Worked through in chunks, so that little memory is needed besides them.
    """
    import numpy

    found = numpy.zeros(len(rows), dtype=bool)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        rank = numpy.arange(start, start + len(part)) - numpy.searchsorted(rows, part, "left")
        first = numpy.searchsorted(others, part, "left")
        found[start : start + len(part)] = rank < numpy.searchsorted(others, part, "right") - first
    return found


def _drift(
    before: Fingerprint,
    after: Fingerprint,
    unchanged: int,
    changed: int | None,
    share: float,
    margin: float | None,
    renumbered: bool = False,
) -> Drift:
    names = list({**before.sources, **after.sources})
    sources = {
        name: (
            before.sources.get(name, 0) / max(1, before.rows),
            after.sources.get(name, 0) / max(1, after.rows),
        )
        for name in names
    }
    return Drift(
        rows_before=before.rows,
        rows_after=after.rows,
        unchanged=unchanged,
        added=after.rows - unchanged - (changed or 0),
        removed=before.rows - unchanged - (changed or 0),
        changed=changed,
        share=share,
        margin=margin,
        prompt_length=_shift(before.prompt_length, after.prompt_length),
        answer_length=_shift(before.answer_length, after.answer_length),
        sources=sources,
        source_mix=sum(abs(a - b) for a, b in sources.values()) / 2,
        renumbered=renumbered,
    )


def _shift(before: Lengths, after: Lengths) -> Shift:
    counts = max(1, sum(before.histogram)), max(1, sum(after.histogram))
    gaps = (
        abs(a / counts[0] - b / counts[1])
        for a, b in zip(accumulate(before.histogram), accumulate(after.histogram), strict=True)
    )
    return Shift(before.total / counts[0], after.total / counts[1], max(gaps))
