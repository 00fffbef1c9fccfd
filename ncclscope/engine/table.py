"""The position of each rank: calls per communicator, and the distance to the majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ncclscope.engine.processes.judgement import SENDERS
from ncclscope.model import Call, Communicator, Rank, Run, State
from ncclscope.model.device import DeviceProgress
from ncclscope.model.unranked import Unranked


@dataclass(frozen=True)
class Cell:
    """One rank on one communicator.

    Attributes:
        comm: The communicator.
        calls: Calls made; in a window, calls kept.
        delta: Difference to the majority.
        last: The last collective that is kept.
        transfer: The last send or receive that is kept.
        device: How far the communicator is on the device; None where that was not counted.
    """

    comm: Communicator
    calls: int
    delta: int
    last: Call | None
    transfer: Call | None = None
    device: DeviceProgress | None = None

    @property
    def newest(self) -> Call | None:
        """The last call that is kept, of either kind."""
        calls = [call for call in (self.last, self.transfer) if call is not None]
        return max(calls, key=lambda call: call.position, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the cell in the terms of the JSON verdict."""
        last = self.last
        return {
            "calls": self.calls,
            "delta": self.delta,
            "last_op": last.op if last else None,
            "last_shape": list(last.shape) if last and last.shape is not None else None,
            "last_state": last.state.word if last else None,
            "last_redop": last.redop if last else None,
            "key": self.comm.key,
            **({} if self.transfer is None else {"last_transfer": self._transfer_dict()}),
            **({} if self.device is None else {"device": self.device.to_dict()}),
        }

    def _transfer_dict(self) -> dict[str, Any]:
        call = self.transfer
        assert call is not None
        return {
            "op": call.op,
            "peer": peer_of(call, self.comm),
            "shape": None if call.shape is None else list(call.shape),
            "state": call.state.word,
        }


@dataclass(frozen=True)
class Row:
    """One rank."""

    rank: Rank
    cells: dict[str, Cell]

    def to_dict(self) -> dict[str, Any]:
        """Return the row in the terms of the JSON verdict."""
        return {
            "rank": self.rank.rank,
            "host": self.rank.host,
            "pid": self.rank.pid,
            **({"has_rank": False} if isinstance(self.rank.rank, Unranked) else {}),
            "labels": dict(self.rank.labels),
            "lost": self.rank.lost,
            "window": self.rank.window,
            "comms": {label: cell.to_dict() for label, cell in self.cells.items()},
        }


def sender_of(call: Call, comm: Communicator) -> int | None:
    """Return the rank from which those that wait in a call receive; None where that is not one."""
    if call.op == "recv":
        return peer_of(call, comm)
    return call.global_root if call.op in SENDERS else None


def peer_of(call: Call, comm: Communicator) -> int | None:
    """Return the global rank of a transfer's other side; None for a receive from any rank.

    None, too, where not all members are known: the peer is a number among all.
    """
    known = call.peer is not None and 0 <= call.peer < len(comm.ranks) and not comm.is_partial
    return comm.ranks[call.peer] if known and call.peer is not None else None


def build_table(run: Run) -> list[Row]:
    """Return a row for each rank, with a cell for each communicator of two or more ranks.

    Group creations are omitted where all ranks have made and completed the same ones.
    """
    counts: dict[str, dict[int, int]] = {}
    for rank in run.ranks:
        for key, log in rank.logs.items():
            counts.setdefault(key, {})[rank.rank] = log.calls - _unknown(rank, log.first)
    majority = _MajorityCounts(run, counts)
    settled = {
        key
        for key in counts
        if (comm := run.communicators[key]).creates_groups and _is_settled(run, comm)
    }
    rows = []
    for rank in run.ranks:
        transfers = rank.last_transfers()
        cells: dict[str, Cell] = {}
        for key, log in rank.logs.items():
            comm = run.communicators[key]
            if key in settled:
                continue
            calls = counts[key][rank.rank]
            last = log.call(log.calls) if log.calls >= log.first else None
            label = _free_label(comm, cells)
            delta = calls - majority.of(comm, calls)
            cells[label] = Cell(comm, calls, delta, last, transfers.get(key), rank.device.get(key))
        rows.append(Row(rank, dict(sorted(cells.items()))))
    return rows


def untraced_rows(run: Run) -> dict[str, Any]:
    """Return the processes that could not be recorded in the terms of the JSON verdict, if any."""
    found = [
        {
            "rank": one.rank if one.rank >= 0 else None,
            "host": one.host,
            "pid": one.pid,
            "why": one.details.get("untraced"),
        }
        for one in run.untraced
    ]
    return {"untraced": found} if found else {}


def _is_settled(run: Run, comm: Communicator) -> bool:
    """Return whether all members made the same calls on a communicator, and completed them."""
    logs = [rank.logs[comm.key] for rank in run.members(comm.key)]
    if len(logs) < len(comm.ranks):
        return False
    if len({(log.calls, log.fingerprint(log.calls)) for log in logs}) > 1:
        return False
    return all(
        log.calls < log.first or log.call(log.calls).state is State.COMPLETED for log in logs
    )


def _unknown(rank: Rank, first: int) -> int:
    """Return the call numbers before a window that begins later than at 1, which made no calls."""
    return first - 1 if rank.window else 0


def _free_label(comm: Communicator, taken: Iterable[str]) -> str:
    label = comm.label or f"comm-{comm.key[-8:]}"
    if label in taken and comm.backend:
        label = f"{label} ({comm.backend})"
    number = 2
    free = label
    while free in taken:
        free = f"{label} #{number}"
        number += 1
    return free


class _MajorityCounts:
    """The numbers of calls that most peers made.

    Peers are the communicator's own members where a majority of them agrees. Otherwise, as in a
    pair, peers are all ranks on communicators of the same kind; of several equally frequent
    counts, the nearest is taken.
    """

    def __init__(self, run: Run, counts: Mapping[str, Mapping[int, int]]) -> None:
        self._run = run
        self._own = {key: Counter(members.values()) for key, members in counts.items()}
        self._kinds: dict[tuple[str, int], Counter[int]] = {}

    def of(self, comm: Communicator, calls: int) -> int:
        """Return the majority's count on a communicator, for a rank that made ``calls`` calls."""
        own = self._own[comm.key]
        count, frequency = own.most_common(1)[0]
        if frequency * 2 > sum(own.values()):
            return count
        kind = self._kind(comm)
        best = max(kind.values())
        if best == 1:
            return max(own)
        return min((c for c, n in kind.items() if n == best), key=lambda c: (abs(c - calls), -c))

    def _kind(self, comm: Communicator) -> Counter[int]:
        same = comm.kind, len(comm.ranks)
        if same not in self._kinds:
            found = self._kinds[same] = Counter()
            for key, counts in self._own.items():
                other = self._run.communicators[key]
                if (other.kind, len(other.ranks)) == same:
                    found.update(counts)
        return self._kinds[same]
