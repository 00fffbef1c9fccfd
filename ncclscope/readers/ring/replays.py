"""Expand a communicator's records into calls, where one record may be a CUDA graph replay.

Only the requested calls are expanded: a ring with a million replays has more calls than fit in
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ncclscope.model import Call, State
from ncclscope.model.device import DeviceProgress
from ncclscope.model.graphs import Graph, Replay
from ncclscope.readers.ring.calls import decode, decode_member, short_sites
from ncclscope.readers.ring.device import known_states, with_states
from ncclscope.readers.ring.distinct import Distinct, distinct_records
from ncclscope.ring import layout
from ncclscope.ring.graph_tables import Listed
from ncclscope.ring.image import Records, chosen
from ncclscope.ring.reader import RingFile


class Expansion:
    """Calls ``start`` to ``stop - 1`` of a communicator.

    Args:
        ring: The ring.
        comm: The communicator's number in the ring.
        key: The communicator's key.
        records: Records of these calls, without a gap, `[records]`.
        start: Sequence number of the first call.
        stop: Sequence number after the last call.
        device: The communicator's progress on the GPU.
    """

    def __init__(
        self,
        ring: RingFile,
        comm: int,
        key: str,
        records: Records,
        start: int,
        stop: int,
        device: DeviceProgress | None = None,
    ) -> None:
        self._ring = ring
        self._device = device
        self._key = key
        self._table = ring.graphs.table(comm)
        self._rows = self._table.rows(records)
        self._records = records
        self._count = max(stop - start, 0)
        spans = self._table.spans(records)
        if len(records):
            # The range may begin or end in the middle of a replay.
            skipped = start - (int(records["seq"][0]) - int(spans[0]) + 1)
            self._which = np.repeat(np.arange(len(records)), spans)[skipped:][: self._count]
            begins = np.cumsum(spans) - spans
            self._inside = np.arange(skipped, skipped + self._count) - begins[self._which]
        else:
            self._which = self._inside = np.empty(0, np.int64)

    @cached_property
    def _replayed(self) -> NDArray[np.int64]:
        """Indices, among the requested calls, of those that are part of a replay."""
        return np.flatnonzero(self._rows[self._which] >= 0)

    @cached_property
    def _flat(self) -> NDArray[np.int64]:
        """Index in the graph table of each replayed call, `[replayed]`."""
        which = self._which[self._replayed]
        return self._table.starts[self._rows[which]] + self._inside[self._replayed]

    @cached_property
    def _single(self) -> NDArray[np.int64]:
        """Indices, among the requested calls, of those with their own record."""
        return np.flatnonzero(self._rows[self._which] < 0)

    def signatures(self, own: Sequence[int]) -> list[int]:
        """Return the signature of each call.

        Args:
            own: Signature of each record, `[records]`; used for calls with their own record.
        """
        found = np.array(own, np.uint64)[self._which]
        found[self._replayed] = self._table.signatures[self._flat]
        listed: list[int] = found.tolist()
        return listed

    def sites(self) -> list[str | None]:
        """Return the call site of each call."""
        numbers = self._records["site"][self._which].astype(np.int64)
        calls, places = np.unique(self._table.calls[self._flat], return_inverse=True)
        sites = [int(self._ring.graphs.record(call)["site"][0]) for call in calls.tolist()]
        numbers[self._replayed] = np.array(sites, np.int64)[places] if sites else 0
        return short_sites(self._ring, numbers)

    def positions(self) -> list[int]:
        """Return the position of each call in the rank's stream."""
        listed: list[int] = self._positions().tolist()
        return listed

    def threads(self) -> list[int]:
        """Return the thread that posted each call; 0 where it is not known."""
        threads: list[int] = (self._records["flags"] >> layout.THREAD_SHIFT)[self._which].tolist()
        return threads

    def _positions(self) -> NDArray[np.int64]:
        begins = self._records["begin"].astype(np.int64) - 1
        if len(self._table.lags):
            begins = begins - np.where(self._rows >= 0, self._table.lags[self._rows], 0)
        positions: NDArray[np.int64] = begins[self._which] * self._ring.scale
        positions[self._replayed] += self._table.places[self._flat]
        return positions

    def calls(self, own: Sequence[int]) -> list[Call]:
        """Return the calls.

        Args:
            own: Signature of each record, `[records]`.
        """
        found: list[Call | None] = [None] * self._count
        wanted = self._which[self._single]
        singles = decode(
            self._ring,
            with_states(self._device, chosen_at(self._records, wanted)),
            self._key,
            [own[place] for place in wanted.tolist()],
        )
        for place, call in zip(self._single.tolist(), singles, strict=True):
            found[place] = call
        for place, call in self._members():
            found[place] = call
        return [call for call in found if call is not None]

    def _members(self) -> Iterator[tuple[int, Call]]:
        """Yield each replayed call with its index among the requested calls."""
        if not len(self._replayed):
            return
        records, table = self._records, self._table
        which = self._which[self._replayed]
        rows = self._rows[which]
        seqs = self._seqs()[self._replayed]
        columns = {
            "seq": seqs,
            "position": self._positions()[self._replayed],
            "time_ns": records["time"][which],
            "graph": records["graph"][which],
            "signature": table.signatures[self._flat],
        }
        others = (
            known_states(self._device, seqs.astype(np.uint64), records["state"][which]),
            records["numel"][which],
            table.places[self._flat] + 1,
            table.lengths[rows],
            table.groups[self._flat],
            table.calls[self._flat],
        )
        known: dict[int, Call] = {}
        same = zip(*(column.tolist() for column in columns.values()), strict=True)
        rest = zip(*(column.tolist() for column in others), strict=True)
        for at, fields, other in zip(self._replayed.tolist(), same, rest, strict=True):
            state, number, place, length, group, call = other
            template = known.get(call)
            if template is None:
                template = known[call] = decode_member(self._ring, call, self._key)
            found = replace(
                template,
                state=State(min(state, State.COMPLETED)),
                group=group or None,
                replay=Replay(number, place, length),
                **dict(zip(columns, fields, strict=True)),
            )
            yield at, found

    def _seqs(self) -> NDArray[np.int64]:
        spans = self._table.spans(self._records)
        firsts = self._records["seq"].astype(np.int64) - spans + 1
        found: NDArray[np.int64] = firsts[self._which] + self._inside
        return found

    def distinct(self) -> Distinct:
        """Group the calls into kinds."""
        records = chosen_at(self._records, self._which[self._single])
        records = with_states(self._device, records)
        single = distinct_records(records, lambda some: decode(self._ring, some, self._key))
        calls, places = np.unique(self._table.calls[self._flat], return_inverse=True)
        which = np.empty(self._count, np.int64)
        which[self._single] = single.which
        which[self._replayed] = places + len(single.kinds)
        firsts = [int(np.flatnonzero(places == place)[0]) for place in range(len(calls))]
        members = dict(self._members_at(firsts))
        kinds = [*single.kinds, *(members[first] for first in firsts)]
        return Distinct(kinds, which, self._positions())

    def _members_at(self, places: Sequence[int]) -> Iterator[tuple[int, Call]]:
        for place in places:
            at = int(self._replayed[place])
            one = self._cut(at)
            for _, call in one._members():
                yield place, call

    def _cut(self, at: int) -> Expansion:
        """Return an expansion of the single call at index `at`."""
        which = int(self._which[at])
        record = self._records[which : which + 1]
        seq = int(self._seqs()[at])
        comm = int(record["comm"][0])
        return Expansion(self._ring, comm, self._key, record, seq, seq + 1, self._device)


def chosen_at(records: Records, places: NDArray[np.int64]) -> Records:
    """Return the records at some indices, in order; there may be none."""
    if len(places) == len(records):
        return records
    is_chosen = np.zeros(len(records), np.bool_)
    is_chosen[places] = True
    return chosen(records, is_chosen)


class RingGraphs(Mapping[int, Graph]):
    """The CUDA graphs of a ring by number, read on demand.

    Args:
        ring: The ring.
        names: Keys of its communicators by number.
    """

    def __init__(self, ring: RingFile, names: Mapping[int, str]) -> None:
        self._ring = ring
        self._names = names

    @property
    def _listed(self) -> Mapping[int, Listed]:
        return self._ring.graphs.graphs if self._ring.scale > 1 else {}

    def __getitem__(self, number: int) -> Graph:
        graph, tables = self._listed[number], self._ring.graphs
        return Graph(number, tables.length(graph), tables.digests(self._names, graph))

    def __iter__(self) -> Iterator[int]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __bool__(self) -> bool:
        return self._ring.scale > 1  # without reading them
