"""Compares each call with those that peers on this host have posted, before it is made.

``NCCLSCOPE_GUARD=warn`` says once where the sequences of a communicator diverge,
``raise`` raises :class:`~ncclscope.errors.DivergenceError` in place of the call that can never
complete. Without the variable nothing of this exists.

Each process leaves the running hash of its last calls where its peers can read it (see
:mod:`ncclscope.guard.cursors`), and looks at theirs under the same number: the same
hash, and all is well; the one that stood there a round before, and the peer has not come as
far. Anything else is looked into, in the records. Nothing is sent, nobody is waited for. The
last rank to post a call always sees it; those before it had nothing to see.

Left out are calls inside an NCCL group, whose order does not count until the next call
outside of one, and point-to-point calls, which have no common order.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclscope.errors import DivergenceError, NcclscopeError
from ncclscope.guard import cursors as guard_words
from ncclscope.guard.cursors import CursorFile, Hashes, PeerCursor, digest_of
from ncclscope.tracing.warning import warn_once

if TYPE_CHECKING:
    from ncclscope.guard import records as guard_records
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.tracer import Comm, Tracer

__all__ = ["Guard", "open_guard"]

MODES = ("warn", "raise")
_MASK = guard_words.DEPTH - 1
_EAGER = 16
"""First calls on a communicator before each of which missing peers are looked for."""
_RARE = 1024
"""Calls between two searches later on."""
_AWAY = 256
"""Calls after which a peer is looked at again that was too far ahead or behind."""


def open_guard(tracer: Tracer, mode: str) -> Guard | None:
    """Returns a guard for a tracer; None, said once, when there can be none."""
    if mode not in MODES:
        if mode not in ("0", "off"):
            said = f"NCCLSCOPE_GUARD={mode!r} is neither warn nor raise; nothing is guarded"
            warn_once("guard", said)
        return None
    try:
        return Guard(tracer, mode)
    except (NcclscopeError, OSError, ImportError) as error:
        warn_once("guard", f"the guard is off in this process: {error}")
        return None


@dataclass
class _Peer:
    """A peer on one communicator."""

    process: PeerCursor
    rank: int
    number: int
    words: Hashes
    last: Hashes
    look_again: int = 0
    """From which call on; only for one that is not compared at each call."""
    ahead: dict[int, int] = field(default_factory=dict)
    """Running hashes that were read from its ring, where it is farther ahead than its words."""


@dataclass
class _Watched:
    """A communicator as the guard knows it."""

    comm: Comm
    digest: bytes
    words: Hashes
    last: Hashes
    peers: list[_Peer] = field(default_factory=list)
    views: list[Hashes] = field(default_factory=list)
    """The words of the peers that are compared at each call."""
    away: list[_Peer] = field(default_factory=list)
    loose: set[Path] = field(default_factory=set)
    """Files of peers that posted the same calls of a group in another order."""
    search_at: int = 0


class Guard:
    """Stands between a tracer and its ring.

    Args:
        tracer: Whose calls are compared.
        mode: ``warn`` or ``raise``.

    Attributes:
        post: Takes the place of :meth:`RingWriter.post`.
        active: False once the guard has ended, be it that it has said what it had to say.

    Raises:
        RingError, OSError, ImportError: There can be no guard here.
    """

    def __init__(self, tracer: Tracer, mode: str) -> None:
        # What reads the records, when it comes to that, must not be loaded then.
        from ncclscope.guard import records as guard_records

        self._records = guard_records
        self._tracer = tracer
        self._mode = mode
        self._file: CursorFile | None = CursorFile(tracer.ring.path)
        self._directory = tracer.ring.path.parent
        self._seen_ns = -1
        self._rehearsed = False
        self._known: dict[int, _Watched | None] = {}
        self._processes: dict[Path, PeerCursor | None] = {}
        self._lock = threading.RLock()
        self.active = True
        self.post = self._guarded(tracer.ring.post)

    def watch(self, comm: Comm) -> None:
        """Makes a communicator known to the peers, before anything is posted on it."""
        with self._lock:
            if not self.active or comm.channel.index in self._known or self._file is None:
                return
            self._known[comm.channel.index] = None
            if len(comm.ranks) == 1:
                return
            try:
                views = self._file.add(comm.key, self._tracer.rank, comm.channel.index)
            except Exception as error:
                self._end(error)
                return
            if views is not None:
                self._known[comm.channel.index] = _Watched(comm, digest_of(comm.key), *views)

    def detach(self) -> None:
        """Lets go of everything; for the child after a fork, whose words are its parent's."""
        self.active = False
        self._known.clear()
        self._lock = threading.RLock()

    def _guarded(self, ring_post: Any) -> Any:
        known, search, doubt, end = self._known, self._search, self._doubt, self._end
        mask = _MASK

        def post(
            channel: Channel,
            fixed: bytes,
            signature: int,
            state: int = 0,
            flags: int = 0,
            group: int = 0,
            graph: int = 0,
        ) -> int:
            position: int = ring_post(channel, fixed, signature, state, flags, group, graph)
            watched = known.get(channel.index)
            if watched is not None and position >= 0:
                try:
                    seq, running = channel.seq, channel.hash
                    own = watched.words
                    place = seq & mask
                    before = own[place]
                    own[place] = running
                    watched.last[0] = seq
                    if not group:
                        if seq >= watched.search_at:
                            search(watched, seq)
                        for view in watched.views:
                            found = view[place]
                            if found != running and found != before:
                                doubt(watched, seq, running, before)
                                break
                except DivergenceError:
                    raise
                except Exception as error:
                    end(error)
            return position

        return post

    def replayed(self, channel: Channel) -> None:
        """Compares where a communicator stands after all calls of a CUDA graph at once.

        Raises:
            DivergenceError: Its calls are others than the peers', and that is what was asked for.
        """
        watched = self._known.get(channel.index)
        if watched is None:
            return
        try:
            seq, running, own = channel.seq, channel.hash, watched.words
            before = own[seq & _MASK]
            own[seq & _MASK] = running
            watched.last[0] = seq
            if seq >= watched.search_at:
                self._search(watched, seq)
            if any(view[seq & _MASK] not in (running, before) for view in watched.views):
                self._doubt(watched, seq, running, before)
        except DivergenceError:
            raise
        except Exception as error:
            self._end(error)

    # --- peers -------------------------------------------------------------------------------

    def _search(self, watched: _Watched, seq: int) -> None:
        """Looks for members that are not known yet, and for those that have moved far off."""
        with self._lock:
            watched.away = [peer for peer in watched.away if not self._came_near(peer, seq)]
            self._list_files()
            found: dict[int, _Peer] = {}
            for path, process in self._processes.items():
                if process is None or path in watched.loose:
                    continue
                entry = process.find(watched.digest)
                if entry is None:
                    continue
                peer = _Peer(process, *entry)
                # Of two with the same rank, one has taken the other's place.
                number = peer.rank if peer.rank >= 0 else -process.pid
                other = found.get(number)
                if other is None or other.process.started_ns < process.started_ns:
                    found[number] = peer
            aside = {peer.process.path for peer in watched.away}
            watched.peers = [
                peer
                for rank, peer in sorted(found.items())
                if peer.process.path not in aside and rank != self._tracer.rank
            ]
            watched.views = [peer.words for peer in watched.peers]
            self._rehearse(watched)
            if seq < _EAGER:
                watched.search_at = seq + 1
            elif len(found) < len(watched.comm.ranks) - 1:
                watched.search_at = seq + min(seq, _RARE)  # they may be on other hosts
            else:
                watched.search_at = seq + (_AWAY if watched.away else 64 * _RARE)

    def _rehearse(self, watched: _Watched) -> None:
        """Reads two rings once: the first time takes several times as long as any other."""
        if watched.peers and not self._rehearsed:
            self._rehearsed = True
            own, other = self._place(watched), self._place(watched, watched.peers[0])
            self._records.rehearse(own, other, watched.comm)

    def _place(self, watched: _Watched, peer: _Peer | None = None) -> guard_records.RecordedComm:
        """Returns where a peer records, or this rank itself."""
        if peer is None:
            assert self._file is not None
            tracer, number = self._tracer, watched.comm.channel.index
            return self._records.RecordedComm(
                tracer.ring.path, self._file.inode, number, tracer.rank
            )
        process = peer.process
        return self._records.RecordedComm(_ring_of(process), process.inode, peer.number, peer.rank)

    def _came_near(self, peer: _Peer, seq: int) -> bool:
        return seq >= peer.look_again

    def _list_files(self) -> None:
        changed_ns = os.stat(self._directory).st_mtime_ns
        if changed_ns == self._seen_ns:
            return
        # A file that comes in the same tick of the clock is found at the next change.
        self._seen_ns = changed_ns if time.time_ns() - changed_ns > 1_000_000_000 else -1
        assert self._file is not None
        for name in os.listdir(self._directory):
            path = self._directory / name
            if not name.endswith(guard_words.SUFFIX) or path == self._file.path:
                continue
            if self._processes.get(path) is not None:
                continue
            try:
                process = PeerCursor(path)
            except (NcclscopeError, OSError, ValueError):
                continue  # not one of ours, or not ready yet
            self._processes[path] = process if process.alive else None

    def _set_aside(self, watched: _Watched, peer: _Peer, seq: int) -> None:
        """Leaves a peer out for a while: it is not near, or its process has ended."""
        if peer in watched.peers:
            watched.peers.remove(peer)
            watched.views = [other.words for other in watched.peers]
        if peer.process.alive:
            peer.look_again = seq + _AWAY
            watched.away.append(peer)
            watched.search_at = min(watched.search_at, seq + _AWAY)
        else:
            self._processes[peer.process.path] = None
            watched.search_at = seq + 1  # another one may have taken its place

    # --- what is wrong -----------------------------------------------------------------------

    def _doubt(self, watched: _Watched, seq: int, running: int, before: int) -> None:
        """Looks into what peers have posted under this number.

        Raises:
            DivergenceError: It is another call, and that is what was asked for.
        """
        with self._lock:
            place = seq & _MASK
            differing = []
            for peer in list(watched.peers):
                if peer.words[place] in (running, before):
                    continue
                if not peer.process.alive or peer.last[0] < seq:
                    self._set_aside(watched, peer, seq)
                elif peer.last[0] >= seq + guard_words.DEPTH:
                    theirs = self._read_ahead(watched, peer, seq)
                    if theirs is None:
                        self._set_aside(watched, peer, seq)
                    elif theirs != running:
                        differing.append(peer)
                elif peer.words[place] != running:  # it may have been half written
                    differing.append(peer)
            if differing:
                self._judge(watched, seq, differing)

    def _read_ahead(self, watched: _Watched, peer: _Peer, seq: int) -> int | None:
        """Returns the running hash of a peer that is farther ahead than its words reach."""
        if seq not in peer.ahead:
            place = self._place(watched, peer)
            peer.ahead = self._records.hashes(place, watched.comm.key, seq, guard_words.DEPTH)
        return peer.ahead.get(seq)

    def _judge(self, watched: _Watched, seq: int, differing: Sequence[_Peer]) -> None:
        """Has the records say whether sequences diverge."""

        def standing(number: int) -> dict[int, int]:
            return {
                peer.rank: peer.words[number & _MASK]
                for peer in watched.peers
                if number <= peer.last[0] < number + guard_words.DEPTH
            }

        own, key = self._place(watched), watched.comm.key
        for peer in differing:
            other = self._place(watched, peer)
            before = (seq - 1) & _MASK
            if seq == 1 or peer.words[before] == watched.words[before]:
                said = self._records.judge_newest(own, other, watched.comm, seq, standing)
                if said is not None:
                    break
            said = self._records.judge(own, other, key, seq, standing)
            if said is not None:
                break
            watched.loose.add(peer.process.path)
            watched.peers.remove(peer)
            watched.views = [other.words for other in watched.peers]
        else:
            return

        when = time.time_ns()
        if self._mode == "warn":
            # It is said once. What peers do from here on follows from it.
            self.active = False
            self._known.clear()
            warn_once("guard parted", said.text)
        self._tracer.describe(guard={**said.to_dict(), "mode": self._mode, "time_ns": when})
        if self._mode == "raise":
            raise DivergenceError(
                said.text,
                f"ncclscope diagnose {self._directory}",
                comm=said.label,
                seq=said.seq,
                posted=said.posted,
            )

    def _end(self, error: BaseException) -> None:
        """Ends the guard, not the job, and says so once."""
        self.active = False
        self._known.clear()
        # The interpreter may be half gone, and the error one that cannot be printed.
        with contextlib.suppress(Exception):
            reason = f"{type(error).__name__}: {error}"
            warn_once("guard", f"the guard is off in this process: {reason}")


def _ring_of(process: PeerCursor) -> Path:
    from ncclscope.ring import layout

    return process.path.with_suffix(layout.SUFFIX)
