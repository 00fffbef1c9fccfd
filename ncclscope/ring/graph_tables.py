"""Read the calls of a ring's CUDA graphs, and the calls that a replay's record covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclscope.model.signature import BASE, BASE_INVERSE, MASK, replayed
from ncclscope.ring import entries, layout
from ncclscope.ring.image import RECORD_DTYPE, Records, RingImage

_HEAD = 8 + 8 + 8 + 8
"""Bytes of a record before the fields of FIXED."""
_COMM = 24
"""Offset of the communicator in FIXED."""
_ITEM = np.dtype([("call", "<u4"), ("group", "<u2"), ("zero", "<u2")])
_powers: dict[int, tuple[NDArray[np.uint64], NDArray[np.uint64]]] = {}
"""Powers of BASE and of its inverse, by number of calls."""
_POWERS_KEPT = 256
_CALL_SIZE = layout.FIXED.size + layout.GRAPH_SIGNATURE.size


@dataclass(frozen=True)
class Listed:
    """One graph.

    Attributes:
        number: The graph's number in its process.
        calls: Index of its list of calls.
    """

    number: int
    calls: int


class CallTable(NamedTuple):
    """The calls of all graphs on one communicator, as concatenated lists.

    Attributes:
        graphs: Numbers of the graphs with calls on it, ascending, `[graphs]`.
        counts: Number of calls of each graph on it, `[graphs]`.
        starts: Index of each graph's first call in the columns of calls, `[graphs]`.
        lags: Number of records that a replay writes before the one of this communicator,
            `[graphs]`.
        lengths: Number of calls of each graph on all communicators, `[graphs]`.
        calls: Index of each call among the ring's graph calls, `[calls]`.
        places: Index of each call in its graph, from 0, `[calls]`.
        groups: NCCL group of each call; 0 outside a group, `[calls]`.
        signatures: Signature of each call, `[calls]`.
        hashes: Running hash of the graph's calls on this communicator up to each call, `[calls]`.
    """

    graphs: NDArray[np.int64]
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]
    lags: NDArray[np.int64]
    lengths: NDArray[np.int64]
    calls: NDArray[np.int64]
    places: NDArray[np.int64]
    groups: NDArray[np.int64]
    signatures: NDArray[np.uint64]
    hashes: NDArray[np.uint64]

    def rows(self, records: Records) -> NDArray[np.int64]:
        """Return the row of the graph that each record replays, `[records]`; -1 for other calls.

        A replay of an unknown graph, as in a damaged file, counts as one call.
        """
        rows = np.full(len(records), -1, np.int64)
        if len(self.graphs):
            wanted = records["graph"].astype(np.int64)
            found = np.minimum(np.searchsorted(self.graphs, wanted), len(self.graphs) - 1)
            is_one = records["fixed"] & layout.FIXED_REPLAY != 0
            is_one &= self.graphs[found] == wanted
            rows[is_one] = found[is_one]
        return rows

    def spans(self, records: Records) -> NDArray[np.int64]:
        """Return the number of calls that each record covers, `[records]`."""
        rows = self.rows(records)
        return np.where(rows >= 0, self.counts[rows], 1) if len(self.counts) else np.abs(rows)

    def inside(self, row: int, after: int, count: int) -> int:
        """Return the running hash after the first calls of a replay.

        Args:
            row: The graph's row in this table.
            after: Running hash after all calls of the replay.
            count: Number of its calls to include.
        """
        start, size = int(self.starts[row]), int(self.counts[row])
        whole = int(self.hashes[start + size - 1])
        before = (after - whole) * pow(BASE_INVERSE, size, 1 << 64) & MASK
        if not count:
            return before
        passed = int(self.hashes[start + count - 1])
        return (before * pow(BASE, count, 1 << 64) + passed) & MASK


_NONE, _NO_HASHES = np.empty(0, np.int64), np.empty(0, np.uint64)
_EMPTY = CallTable(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NO_HASHES, _NO_HASHES)


class GraphTables:
    """The graphs section of a ring; created by :func:`read_graphs`.

    Args:
        data: The used bytes of the section; reading stops at the first damaged entry.
        spare: The same bytes of its copy.
        checked: Whether the ring is of version 3.
    """

    def __init__(self, data: bytes, spare: bytes = b"", *, checked: bool = True) -> None:
        self._fixed: list[bytes] = []
        self._signatures: list[int] = []
        self._sizes: list[tuple[int, ...] | None] = []
        self._lists: list[NDArray[np.void]] = []
        self._tables: dict[int, CallTable] = {}
        self._used: dict[int, list[int]] = {}
        """Communicators in each list of calls, by its index."""
        self.graphs: dict[int, Listed] = {}
        """Graphs by number."""
        self.is_damaged = False
        for kind, entry, is_whole, *_ in entries.read(data, spare, checked=checked):
            if not is_whole or not self._take(kind, entry):
                self.is_damaged = True
                break

    def _take(self, kind: int, data: bytes) -> bool:
        if kind == layout.GRAPH_CALL and len(data) >= _CALL_SIZE and len(data) % 8 == 0:
            (signature,) = layout.GRAPH_SIGNATURE.unpack_from(data, layout.FIXED.size)
            sizes = tuple(np.frombuffer(data[_CALL_SIZE:], "<i8").tolist())
            self._fixed.append(data[: layout.FIXED.size])
            self._signatures.append(signature and replayed(signature))
            self._sizes.append(sizes or None)
        elif kind == layout.GRAPH_LIST and data and len(data) % _ITEM.itemsize == 0:
            items = np.frombuffer(data, _ITEM)
            if items["call"].min() < 1 or items["call"].max() > len(self._fixed):
                return False
            self._lists.append(items)
        elif kind == layout.GRAPH and len(data) == layout.GRAPH_HEAD.size:
            number, place = layout.GRAPH_HEAD.unpack(data)
            if not 0 < place <= len(self._lists):
                return False
            self.graphs[number] = Listed(number, place - 1)
        else:
            return False
        return True

    @cached_property
    def _comms(self) -> NDArray[np.int64]:
        """The communicator of each call, `[calls]`; 0 for sends and receives."""
        comms = [
            int.from_bytes(fixed[_COMM : _COMM + 2], "little") if signature else 0
            for fixed, signature in zip(self._fixed, self._signatures, strict=True)
        ]
        return np.array(comms, np.int64)

    def comms(self, graph: Listed) -> list[int]:
        """Return the communicators of a graph's collectives, in the order of their first calls."""
        found = self._used.get(graph.calls)
        if found is None:
            comms = self._comms[self._lists[graph.calls]["call"].astype(np.int64) - 1]
            found = self._used[graph.calls] = list(dict.fromkeys(comms[comms > 0].tolist()))
        return found

    def length(self, graph: Listed) -> int:
        """Return the number of calls of a graph, including sends and receives."""
        return len(self._lists[graph.calls])

    def table(self, comm: int) -> CallTable:
        """Return the calls of all graphs on one communicator."""
        if comm not in self._tables:
            self._tables[comm] = self._make_table(comm)
        return self._tables[comm]

    def _make_table(self, comm: int) -> CallTable:
        flat: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        hashes: list[NDArray[np.uint64]] = []
        signed = np.array(self._signatures, np.uint64)
        made = 0
        starts: dict[int, tuple[int, int]] = {}
        rows = []
        for graph in sorted(self.graphs.values(), key=lambda graph: graph.number):
            if graph.calls not in starts:
                items = self._lists[graph.calls]
                calls = items["call"].astype(np.int64) - 1
                places = np.flatnonzero(self._comms[calls] == comm)
                starts[graph.calls] = made, len(places)
                flat.append((calls[places], places, items["group"].astype(np.int64)[places]))
                hashes.append(_running(signed[calls[places]]))
                made += len(places)
            start, count = starts[graph.calls]
            if count:
                lag = self.comms(graph).index(comm)
                rows.append((graph.number, count, start, lag, self.length(graph)))
        if not rows:
            return _EMPTY
        graphs, counts, begins, lags, lengths = np.array(rows, np.int64).T.copy()
        calls, places, groups = (np.concatenate(column) for column in zip(*flat, strict=True))
        return CallTable(
            graphs=graphs,
            counts=counts,
            starts=begins,
            lags=lags,
            lengths=lengths,
            calls=calls,
            places=places,
            groups=groups,
            signatures=signed[calls],
            hashes=np.concatenate(hashes),
        )

    def record(self, call: int) -> Records:
        """Return a call as a record with only its parameters set."""
        data = bytearray(layout.RECORD.size)
        data[_HEAD : _HEAD + layout.FIXED.size] = self._fixed[call]
        record: Records = np.frombuffer(bytes(data), RECORD_DTYPE)
        return record

    def sizes(self, call: int) -> tuple[int, ...] | None:
        """Return a call's sizes list."""
        return self._sizes[call]

    def signature(self, call: int) -> int:
        """Return the signature of a replayed call; 0 for a send or receive."""
        return self._signatures[call]

    def digests(self, names: Mapping[int, str], graph: Listed) -> dict[str, tuple[int, int]]:
        """Return a graph's number of calls and running hash, by communicator key.

        Args:
            names: Keys of the communicators by their number in the ring.
            graph: The graph.
        """
        found = {}
        for comm in self.comms(graph):
            table = self.table(comm)
            row = int(np.searchsorted(table.graphs, graph.number))
            end = int(table.starts[row] + table.counts[row]) - 1
            if comm in names:
                found[names[comm]] = int(table.counts[row]), int(table.hashes[end])
        return found


def read_graphs(image: RingImage) -> GraphTables:
    """Return the graphs of a ring; ranks with equal graphs share one cached result."""
    geometry = image.geometry
    copies = image.read_copies(geometry.graphs, geometry.graphs_size, image.graphs_used)
    tables = _tables_of(*copies, geometry.checked)
    if tables.is_damaged:
        image.damage.add("graphs")
    return tables


@lru_cache(maxsize=32)
def _tables_of(data: bytes, spare: bytes, checked: bool) -> GraphTables:
    return GraphTables(data, spare, checked=checked)


def _running(signatures: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the running hash after each call, from zero, modulo 2 ** 64, `[calls]`."""
    size = len(signatures)
    if size not in _powers:
        if len(_powers) >= _POWERS_KEPT:
            _powers.clear()
        _powers[size] = _row(BASE, size), _row(BASE_INVERSE, size)
    powers, inverses = _powers[size]
    hashes: NDArray[np.uint64] = np.cumsum(signatures * inverses, dtype=np.uint64) * powers
    return hashes


def _row(base: int, size: int) -> NDArray[np.uint64]:
    return np.cumprod(np.full(size, base, np.uint64), dtype=np.uint64)
