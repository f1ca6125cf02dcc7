"""The fingerprint of a data set: what tells it from another one, in some 90 kB and without text.

It holds counts, histograms of lengths, the names of the sources, and of the rows the smallest
64-bit hashes (a bottom-k sample: the same rows are drawn from any other data set that has them,
whatever their order; Cohen and Kaplan 2007). Up to ``SAMPLE`` rows that is every row, and a
comparison is exact. Whoever already has a row can ask whether it was in; nobody gets a row back.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kltune.errors import LaunchError
from kltune.verl.datasets import Rows, read_rows

if TYPE_CHECKING:
    import numpy
    import pyarrow

    Hashes = numpy.ndarray[Any, numpy.dtype[numpy.uint64]]

#: Rows that a fingerprint remembers. The standard error of a share of 10 % is then 0.5 %.
SAMPLE = 4096

#: Sources that are told apart; a data set with one source a row must not put its text in here.
SOURCES = 50

#: A histogram has so many bins for each doubling of a length, up to 2^24 characters.
_BINS, _OCTAVES = 8, 24
_OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long something is in the rows: a total in characters, and a histogram."""

    total: int
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of a data set.

    Attributes:
        rows: their number.
        digest: of all rows together, the same for any order of them.
        contents: smallest content hashes, ascending, base64 of little-endian 64-bit integers.
        identities: identity hash of each of them.
        prompt_length, answer_length: characters.
        sources: rows by ``data_source``, the most frequent ones by name.
    """

    rows: int
    digest: str
    contents: str
    identities: str
    prompt_length: Lengths
    answer_length: Lengths
    sources: dict[str, int]

    @property
    def complete(self) -> bool:
        """Whether every row is in the sample."""
        return self.rows <= SAMPLE

    def sample(self) -> tuple[Hashes, Hashes]:
        """Return content and identity hashes, ascending by content."""
        import numpy

        def decoded(text: str) -> Hashes:
            return numpy.frombuffer(base64.b64decode(text), dtype="<u8").astype(numpy.uint64)

        return decoded(self.contents), decoded(self.identities)

    def describe(self) -> str:
        """Return the fingerprint in one line."""
        return f"{self.rows} rows, digest {self.digest}"


def fingerprint(paths: Sequence[Path], prompt_key: str = "prompt") -> Fingerprint:
    """Return the fingerprint of parquet files; memory does not grow with their rows.

    Raises:
        SettingsError: a file cannot be read or has other columns than verl's.
        LaunchError: a package that reads the files is missing.
    """
    taken = Taken()
    for _ in hashes(paths, taken, prompt_key):
        pass
    return taken.fingerprint()


def hashes(
    paths: Sequence[Path], taken: Taken, prompt_key: str = "prompt"
) -> Iterator[tuple[Hashes, Hashes]]:
    """Yield (content, identity) hashes of the rows, batch by batch, and take them in.

    Args:
        paths: parquet files.
        taken: is told of every batch.
        prompt_key: name of the prompt's column.
    """
    try:
        import numpy
        import pyarrow  # noqa: F401
        import xxhash
    except ImportError as error:
        raise LaunchError(
            f"reading training data needs {error.name}: pip install 'kltune[data]'"
        ) from None

    def hashed(texts: pyarrow.Array) -> Hashes:
        digest = xxhash.xxh3_64_intdigest
        found = (digest(text) for text in texts.to_numpy(zero_copy_only=False))
        return numpy.fromiter(found, numpy.uint64, len(texts))

    for rows in read_rows(paths, prompt_key):
        pair = hashed(rows.contents), hashed(rows.identities)
        taken.add(rows, *pair)
        yield pair


@dataclass(slots=True)
class Taken:
    """What has been taken in of a data set so far."""

    rows: int = 0
    total: int = 0
    mixed: int = 0
    contents: list[Hashes] = field(default_factory=list)
    identities: list[Hashes] = field(default_factory=list)
    kept: int = 0
    prompts: list[int] = field(default_factory=lambda: [0] * (1 + _BINS * _OCTAVES))
    answers: list[int] = field(default_factory=lambda: [0] * (1 + _BINS * _OCTAVES))
    prompt_characters: int = 0
    answer_characters: int = 0
    sources: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Rows, contents: Hashes, identities: Hashes) -> None:
        """Take in a batch."""
        import numpy

        self.rows += len(contents)
        # A sum and an exclusive or: neither depends on the order.
        self.total = (self.total + int(contents.sum(dtype=numpy.uint64))) % 2**64
        self.mixed ^= int(numpy.bitwise_xor.reduce(contents)) if len(contents) else 0
        self.contents.append(contents)
        self.identities.append(identities)
        self.kept += len(contents)
        if self.kept > 64 * SAMPLE:
            self._thin()
        self.prompt_characters += _count(self.prompts, rows.prompt_lengths)
        self.answer_characters += _count(self.answers, rows.answer_lengths)
        for item in rows.sources.value_counts().to_pylist():
            name = str(item["values"])
            if name not in self.sources and len(self.sources) >= SOURCES:
                name = _OTHERS
            self.sources[name] = self.sources.get(name, 0) + item["counts"]

    def _thin(self) -> None:
        """Keep the smallest hashes."""
        import numpy

        contents = numpy.concatenate(self.contents or [numpy.empty(0, numpy.uint64)])
        identities = numpy.concatenate(self.identities or [numpy.empty(0, numpy.uint64)])
        order = numpy.lexsort((identities, contents))[:SAMPLE]
        self.contents, self.identities = [contents[order]], [identities[order]]
        self.kept = len(order)

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of what was taken in."""
        self._thin()

        def encoded(found: Iterable[Hashes]) -> str:
            return base64.b64encode(b"".join(h.astype("<u8").tobytes() for h in found)).decode()

        return Fingerprint(
            rows=self.rows,
            digest=f"{self.total:016x}{self.mixed:016x}",
            contents=encoded(self.contents),
            identities=encoded(self.identities),
            prompt_length=Lengths(self.prompt_characters, tuple(self.prompts)),
            answer_length=Lengths(self.answer_characters, tuple(self.answers)),
            sources=dict(sorted(self.sources.items(), key=lambda item: -item[1])),
        )


def _count(histogram: list[int], lengths: pyarrow.Array) -> int:
    """Add lengths to a histogram and return their total."""
    import numpy

    found = lengths.to_numpy(zero_copy_only=False).astype(numpy.int64)
    bins = numpy.minimum(_BINS * numpy.log2(1.0 + found), len(histogram) - 1).astype(numpy.int64)
    for number, count in enumerate(numpy.bincount(bins)):
        histogram[number] += int(count)
    return int(found.sum())
