"""How much of a profiled time is collective communication, and what the protocol advises then."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

#: Protocol: from this share of communication on, the micro batch is lowered.
LIMIT = 0.20

#: Collective operations by what their kernels are called, in NCCL (``ncclDevKernel_AllReduce_…``,
#: ``ncclKernel_…`` before 2.19), RCCL (the same names) and gloo (``gloo:all_reduce``).
_FAMILIES = {
    "all-reduce": "allreduce",
    "all-gather": "allgather",
    "reduce-scatter": "reducescatter",
    "all-to-all": "alltoall",
    "broadcast": "broadcast",
    "send-receive": "send|recv",
    "scatter": "scatter",
    "gather": "gather",
    "reduce": "reduce",
    "barrier": "barrier",
}
_COLLECTIVE = re.compile(r"^(?:void )?(?:nccl|rccl|gloo:|mscclpp|.*cross_device_reduce)", re.I)

#: Intervals that are kept before overlapping ones are joined.
_KEPT = 1 << 16


def family(name: str) -> str | None:
    """Return the collective operation of a kernel, or None if it computes.

    >>> family("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'reduce-scatter'
    """
    if not _COLLECTIVE.match(name):
        return None
    plain = name.lower().replace("_", "")
    if "crossdevicereduce" in plain:  # the custom all-reduce of vLLM
        return "all-reduce"
    found = (f for f, pattern in _FAMILIES.items() if re.search(pattern, plain))
    return next(found, "other")


class Intervals:
    """Intervals of time; where they overlap, the time counts once. Memory: two numbers each."""

    def __init__(self) -> None:
        self._starts, self._ends = array("d"), array("d")
        self._limit = _KEPT

    def add(self, start: float, end: float) -> None:
        """Add one interval."""
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) > self._limit:
            self._join()
            self._limit = max(_KEPT, 2 * len(self._starts))

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Yield disjoint intervals in order."""
        self._join()
        return zip(self._starts, self._ends, strict=True)

    @property
    def length(self) -> float:
        """Time that the intervals cover."""
        return sum(end - start for start, end in self)

    def covered_by(self, *others: Intervals) -> float:
        """Return the time that these and the others cover together."""
        together = Intervals()
        for intervals in (self, *others):
            for start, end in intervals:
                together.add(start, end)
        return together.length

    def _join(self) -> None:
        starts, ends = array("d"), array("d")
        for start, end in sorted(zip(self._starts, self._ends, strict=True)):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        self._starts, self._ends = starts, ends


@dataclass(frozen=True, slots=True)
class RankShare:
    """Communication of one rank.

    Attributes:
        rank: as the trace names it.
        seconds: length of the profile; or, where only sums are known, of all kernels together.
        communication: seconds with a collective operation running, overlap counted once.
        exposed: seconds of those in which nothing was computed; None where the trace does not
            tell.
        families: seconds by collective operation; two that overlap count in both.
    """

    rank: str
    seconds: float
    communication: float
    exposed: float | None
    families: Mapping[str, float]

    @property
    def share(self) -> float:
        """Share of communication in the time, 0 to 1."""
        return self.communication / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class RankTrace:
    """Collects the events of one rank.

    Attributes:
        rank: as the trace names it.
    """

    rank: str
    _collectives: dict[str, Intervals] = field(default_factory=dict)
    _computing: Intervals = field(default_factory=Intervals)
    _first: float = float("inf")
    _last: float = float("-inf")

    def add(self, name: str, start: float, end: float) -> None:
        """Add one event, seconds."""
        self._first, self._last = min(self._first, start), max(self._last, end)
        collective = family(name)
        if collective is None:
            self._computing.add(start, end)
        else:
            self._collectives.setdefault(collective, Intervals()).add(start, end)

    def share(self, *, computing_is_known: bool = True) -> RankShare:
        """Return what the events come to.

        Args:
            computing_is_known: whether the events that are no collective operations are work of
                the device, and not of the host that waits for it.
        """
        found = list(self._collectives.values())
        communication = Intervals().covered_by(*found)
        exposed = None
        if computing_is_known:
            exposed = self._computing.covered_by(*found) - self._computing.length
        return RankShare(
            rank=self.rank,
            seconds=max(0.0, self._last - self._first),
            communication=communication,
            exposed=exposed,
            families={name: spans.length for name, spans in sorted(self._collectives.items())},
        )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Size that the advice speaks of.

    Attributes:
        key: verl's override key of it.
        size: rows or tokens that a GPU takes at a time.
        unit: which of the two.
        lower: the next smaller size that works; None where there is none.
    """

    key: str
    size: int
    unit: str
    lower: int | None

    @classmethod
    def of_rows(cls, key: str, rows: int, rows_per_update: int) -> MicroBatch:
        """Return one of a number of rows, which must divide the rows of an update on one GPU."""
        lower = (n for n in range(rows - 1, 0, -1) if rows_per_update % n == 0)
        return cls(key, rows, "rows", next(lower, None))

    @classmethod
    def of_tokens(cls, key: str, tokens: int, longest: int) -> MicroBatch:
        """Return one of as many rows as fit into a number of tokens: the longest row must."""
        lower = max(tokens // 2, longest)
        return cls(key, tokens, "tokens", lower if lower < tokens else None)


@dataclass(frozen=True, slots=True)
class Advice:
    """What the protocol says to the measured share.

    Attributes:
        text: one sentence with the numbers.
        overrides: verl overrides that carry it out; empty where there is nothing to change.
    """

    text: str
    overrides: Mapping[str, int]


def advise(shares: Iterable[RankShare], micro: MicroBatch | None = None) -> Advice:
    """Return the protocol's advice for the rank that communicates most.

    Args:
        shares: of all ranks; at least one.
        micro: micro batch of the run, where it is known.
    """
    worst = max(shares, key=lambda share: share.share)
    seen = f"rank {worst.rank} spends {worst.share:.1%} of its time in communication"
    if worst.share <= LIMIT:
        return Advice(f"{seen}; the protocol's limit is {LIMIT:.0%}, nothing is to be done", {})
    over = f"{seen}, over the protocol's limit of {LIMIT:.0%}"
    if micro is None:
        return Advice(f"{over}: lower the micro batch (name the run's configuration)", {})
    if micro.lower is None:
        return Advice(
            f"{over}, and the micro batch cannot be lower than {micro.size} {micro.unit}", {}
        )
    return Advice(
        f"{over}: lower the micro batch from {micro.size} to {micro.lower} {micro.unit}. Measure "
        "again: FSDP gathers the weights once a micro batch, so an update gathers them "
        f"{micro.size / micro.lower:.2g} times as often, and only a better overlap can win that "
        "back",
        {micro.key: micro.lower},
    )
