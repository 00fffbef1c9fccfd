"""Turn entries of a Flight Recorder dump into calls on demand.

A dump has thousands of entries and a diagnosis needs a few. So a
:class:`~ncclscope.model.Call` is built only on request, from the part that many entries share
and the part of the single entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from ncclscope.model import Call, Communicator, State, sites
from ncclscope.model.memory import ListLog
from ncclscope.model.sites import OWN, PLUMBING, Sites
from ncclscope.readers.flight_recorder.entry import Entry
from ncclscope.untrusted import integer, text

MAX_FRAMES = 128
_SHARED = (
    *("op", "dtype", "peer", "numel", "shape", "sizes", "out_sizes", "out_shape", "signature"),
)
"""Fields of a call that many entries share."""


def find_sites(frames: Any) -> Sites:
    """Return the call sites of a stack, whose innermost frame is first."""
    if not isinstance(frames, list) or not frames:
        return Sites()
    own = [frame for frame in frames[:MAX_FRAMES] if isinstance(frame, dict)]
    roles = [sites.role(text(frame.get("filename")) or "") for frame in own]
    place = next((at for at, role in enumerate(roles) if role != PLUMBING), 0)
    if not own:
        return Sites()
    full = _frame(own[place])
    user = next((at for at in range(place, len(own)) if roles[at] == OWN), place)
    return Sites(sites.short(full), full, _frame(own[user]) if user > place else None)


def _frame(frame: dict[str, Any]) -> str:
    path, name = text(frame.get("filename")) or "?", text(frame.get("name")) or "?"
    return sites.spell(path, integer(frame.get("line")) or 0, name)


class LazyCalls(Sequence[Call]):
    """Entries as calls.

    Args:
        comm: Key of the communicator.
        entries: Entries in order.
        done: Retired entries up to this sequence number count as completed.
        by_time: Whether a call's position is its time (ns): two dumps of one process have no
            other common order, and each numbers threads on its own.
    """

    def __init__(
        self, comm: str, entries: Sequence[Entry], *, done: int = 0, by_time: bool = False
    ) -> None:
        self._comm = comm
        self._entries = entries
        self._done = done
        self._by_time = by_time

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Call]:
        return map(self._call, self._entries)

    @overload
    def __getitem__(self, place: int) -> Call: ...

    @overload
    def __getitem__(self, place: slice) -> list[Call]: ...

    def __getitem__(self, place: int | slice) -> Call | list[Call]:
        if isinstance(place, slice):
            return [self._call(entry) for entry in self._entries[place]]
        return self._call(self._entries[place])

    def _call(self, entry: Entry) -> Call:
        state = entry.state
        places = find_sites(entry.frames)
        if entry.retired and entry.seq <= self._done:
            state = State.COMPLETED
        return Call(
            comm=self._comm,
            seq=entry.seq,
            position=(entry.time_ns or 0) if self._by_time else entry.position,
            site=places.site,
            full_site=places.full,
            user_site=places.user,
            time_ns=entry.time_ns,
            state=state,
            thread=0 if self._by_time else entry.thread,
            **{name: getattr(entry.posted, name) for name in _SHARED},
        )


class DumpLog(ListLog):
    """A :class:`~ncclscope.model.CallLog` over entries.

    Args:
        communicator: The communicator of the calls.
        entries: Collectives in order, with consecutive sequence numbers.
        calls: Number of calls made; the last entry, if any, is the last of them.
        done: See :class:`LazyCalls`.
        by_time: See :class:`LazyCalls`.

    Attributes:
        ops: Operations in it; a log without a wanted operation need not be read.
    """

    def __init__(
        self,
        communicator: Communicator,
        entries: Sequence[Entry],
        calls: int,
        *,
        done: int = 0,
        by_time: bool = False,
    ) -> None:
        posted = [entry.posted for entry in entries]
        super().__init__(
            communicator,
            LazyCalls(communicator.key, entries, done=done, by_time=by_time),
            made=calls,
            signatures=[call.signature for call in posted],
        )
        self.ops = frozenset([call.op for call in posted])
        self._threads = [0 if by_time else entry.thread for entry in entries]

    def threads(self, start: int, stop: int) -> Sequence[int]:
        """Return the thread that posted each of the calls in ``[start, stop)``; 0: not known."""
        low = max(start - self.first, 0)
        return self._threads[low : max(stop - self.first, low)]
