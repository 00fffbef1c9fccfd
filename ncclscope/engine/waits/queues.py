"""Which reader of a message queue keeps its writer waiting, or waits beside a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ncclscope.engine.records import Records
from ncclscope.engine.waits.noted import seconds_of
from ncclscope.model import Rank, Run
from ncclscope.model.snapshot import QueueState
from ncclscope.wording.names import plural
from ncclscope.wording.waits import Queue

_WRITER = -1


@dataclass(frozen=True)
class Unread:
    """A reader that has not read what a queue holds.

    Attributes:
        rank: The reading process.
        writer: The process that writes the queue; None where it left no record.
        blocks: Numbers of the blocks that are written and that it has not read.
        missed: Whether it waits for a message in this queue although there is one.
        seconds: How long it, or else the writer, has waited.
        is_full: Whether the writer waits, since all blocks are written and not read by all.
    """

    rank: Rank
    writer: Rank | None
    blocks: tuple[int, ...]
    missed: bool
    seconds: float
    is_full: bool

    @property
    def text(self) -> str:
        """The state in words."""
        said = Queue.MISSED if self.missed else Queue.UNREAD
        return said.of(
            who=f"rank {self.rank.rank}" if self.rank.rank >= 0 else f"pid {self.rank.pid}",
            blocks=plural(len(self.blocks), "block"),
            of="" if self.writer is None else f" of pid {self.writer.pid}",
            numbers=", ".join(map(str, self.blocks[:8])),
            seconds=self.seconds,
            wait=Queue.FOR_ROOM.of(self.seconds) if self.is_full else "",
        )


def unread_blocks(records: Records) -> Iterator[Unread]:
    """Yield readers that have waited beside a message, or that keep a writer waiting."""
    run = records.run
    for state in run.queues:
        users = dict(_users(run, state))
        writer = users.get(_WRITER)
        full = all(state.unread)
        waited = None if writer is None else seconds_of(writer, "enqueue")
        for reader, rank in users.items():
            blocks = tuple(at for at, missing in enumerate(state.unread) if reader in missing)
            if reader == _WRITER or not blocks:
                continue
            limit = records.live_stall_seconds
            own = _beside_a_message(rank, writer)
            reads = sum(one.get("reader", _WRITER) >= 0 for one in _queues(rank))
            # A process with several queues may wait at another one.
            if own is not None and own >= limit and reads == 1:
                yield Unread(rank, writer, blocks, True, own, full)
            elif full and waited is not None and waited >= limit:
                yield Unread(rank, writer, blocks, False, waited, full)


def _beside_a_message(rank: Rank, writer: Rank | None) -> float | None:
    """Return for how long a reader has waited since its writer last sent something, in seconds."""
    sent = None if writer is None else writer.activities.get("enqueue")
    own = seconds_of(rank, "dequeue")
    if writer is None or sent is None or own is None or sent.until_ns is None:
        return None
    return min(own, ((writer.last_seen_ns or 0) - sent.until_ns) / 1e9)


def _users(run: Run, state: QueueState) -> Iterator[tuple[int, Rank]]:
    for rank in (*run.ranks, *run.others):
        for one in _queues(rank):
            reader = one.get("reader", _WRITER)
            if one.get("name") == state.name and isinstance(reader, int):
                yield reader, rank


def _queues(rank: Rank) -> list[Mapping[str, Any]]:
    noted = rank.details.get("queues")
    return [one for one in noted if isinstance(one, dict)] if isinstance(noted, list) else []
