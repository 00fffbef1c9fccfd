"""Compare each call with those that peers on this host have posted, before it is made.

``NCCLSCOPE_GUARD=warn`` warns once about the first divergence of a communicator's sequences.
``raise`` raises :class:`~ncclscope.errors.DivergenceError` instead of posting a call that can
never complete. Without the variable, no guard is loaded.

Each process publishes the running hashes of its newest calls (see
:mod:`ncclscope.guard.cursors`), and reads its peers' hashes of the same call number. An equal hash
means that the calls agree. The hash of ``DEPTH`` calls before means that the peer has not posted
the call yet. Any other hash is checked against the records. Ranks neither send messages nor wait
for each other. The last rank to post a call always detects the divergence.

Calls inside an NCCL group are skipped: their order does not matter until the next call outside of
it. Point-to-point calls are skipped, too: they have no common order.
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

MODES = ("warn", "raise")
_MASK = guard_words.DEPTH - 1
_EAGER = 16
"""First calls on a communicator, before each of which the guard searches for missing peers."""
_RARE = 1024
"""Calls between two later searches."""
_AWAY = 256
"""Calls after which a peer that was too far ahead or behind is read again."""


def open_guard(tracer: Tracer, mode: str) -> Guard | None:
    """Return a guard for a tracer; None, with one warning, when it cannot be created."""
    if mode not in MODES:
        if mode not in ("0", "off"):
            warning = f"NCCLSCOPE_GUARD={mode!r} is neither warn nor raise; the guard is off"
            warn_once("guard", warning)
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
    hashes: Hashes
    last: Hashes
    read_again_at: int = 0
    """Call number from which on it is read again; only for a peer that was set aside."""
    ahead: dict[int, int] = field(default_factory=dict)
    """Running hashes read from its ring, where it is further ahead than its cursor file reaches."""


@dataclass
class _Watched:
    """A guarded communicator."""

    comm: Comm
    digest: bytes
    hashes: Hashes
    last: Hashes
    peers: list[_Peer] = field(default_factory=list)
    views: list[Hashes] = field(default_factory=list)
    """The hashes of the peers that are compared at each call."""
    away: list[_Peer] = field(default_factory=list)
    loose: set[Path] = field(default_factory=set)
    """Notes of peers that posted the same calls of an NCCL group in another order."""
    search_at: int = 0


class Guard:
    """Compares a tracer's calls between the tracer and its ring.

    Args:
        tracer: The tracer whose calls are compared.
        mode: ``warn`` or ``raise``.

    Attributes:
        post: Replaces :meth:`RingWriter.post`.
        active: False once the guard has ended, by an error or after its warning.

    Raises:
        RingError, OSError, ImportError: The guard cannot be created.
    """

    def __init__(self, tracer: Tracer, mode: str) -> None:
        # Load the comparison of records now: it must not be imported while a call is posted.
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
        """Publish a communicator to the peers, before any call is posted on it."""
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
        """Stop guarding in the child after a fork, whose cursor file is its parent's."""
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
                    own = watched.hashes
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
        """Compare a communicator's running hash once after all calls of a replayed CUDA graph.

        Raises:
            DivergenceError: The calls differ from the peers', and the mode is ``raise``.
        """
        watched = self._known.get(channel.index)
        if watched is None:
            return
        try:
            seq, running, own = channel.seq, channel.hash, watched.hashes
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
        """Find members that are not known yet, and reread those that were set aside."""
        with self._lock:
            watched.away = [peer for peer in watched.away if seq < peer.read_again_at]
            self._list_files()
            found: dict[int, _Peer] = {}
            for path, process in self._processes.items():
                if process is None or path in watched.loose:
                    continue
                entry = process.find(watched.digest)
                if entry is None:
                    continue
                peer = _Peer(process, *entry)
                # Of two processes with the same rank, the newer one has replaced the other.
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
            watched.views = [peer.hashes for peer in watched.peers]
            self._rehearse(watched)
            if seq < _EAGER:
                watched.search_at = seq + 1
            elif len(found) < len(watched.comm.ranks) - 1:
                watched.search_at = seq + min(seq, _RARE)  # they may be on other hosts
            else:
                watched.search_at = seq + (_AWAY if watched.away else 64 * _RARE)

    def _rehearse(self, watched: _Watched) -> None:
        """Read two rings once: the first read takes several times as long as later ones."""
        if watched.peers and not self._rehearsed:
            self._rehearsed = True
            own, other = self._place(watched), self._place(watched, watched.peers[0])
            self._records.rehearse(own, other, watched.comm)

    def _place(self, watched: _Watched, peer: _Peer | None = None) -> guard_records.RecordedComm:
        """Return the location of a peer's records, or of this rank's own."""
        if peer is None:
            assert self._file is not None
            tracer, number = self._tracer, watched.comm.channel.index
            return self._records.RecordedComm(
                tracer.ring.path, self._file.inode, number, tracer.rank
            )
        process = peer.process
        return self._records.RecordedComm(_ring_of(process), process.inode, peer.number, peer.rank)

    def _list_files(self) -> None:
        changed_ns = os.stat(self._directory).st_mtime_ns
        if changed_ns == self._seen_ns:
            return
        # A file created in the same clock tick would be missed, so list again next time.
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
                continue  # not a cursor file, or not complete yet
            self._processes[path] = process if process.alive else None

    def _set_aside(self, watched: _Watched, peer: _Peer, seq: int) -> None:
        """Stop comparing with a peer for a while: it is far ahead or behind, or has ended."""
        if peer in watched.peers:
            watched.peers.remove(peer)
            watched.views = [other.hashes for other in watched.peers]
        if peer.process.alive:
            peer.read_again_at = seq + _AWAY
            watched.away.append(peer)
            watched.search_at = min(watched.search_at, seq + _AWAY)
        else:
            self._processes[peer.process.path] = None
            watched.search_at = seq + 1  # another process may have replaced it

    # --- what is wrong -----------------------------------------------------------------------

    def _doubt(self, watched: _Watched, seq: int, running: int, before: int) -> None:
        """Check what peers have posted under this call number.

        Args:
            watched: The communicator.
            seq: Number of the call.
            running: This rank's running hash after it.
            before: The hash that was at the same index before, ``DEPTH`` calls earlier.

        Raises:
            DivergenceError: A peer posted another call, and the mode is ``raise``.
        """
        with self._lock:
            place = seq & _MASK
            differing = []
            for peer in list(watched.peers):
                if peer.hashes[place] in (running, before):
                    continue
                if not peer.process.alive or peer.last[0] < seq:
                    self._set_aside(watched, peer, seq)
                elif peer.last[0] >= seq + guard_words.DEPTH:
                    theirs = self._read_ahead(watched, peer, seq)
                    if theirs is None:
                        self._set_aside(watched, peer, seq)
                    elif theirs != running:
                        differing.append(peer)
                elif peer.hashes[place] != running:  # read again: it may have been half written
                    differing.append(peer)
            if differing:
                self._judge(watched, seq, differing)

    def _read_ahead(self, watched: _Watched, peer: _Peer, seq: int) -> int | None:
        """Return the running hash of a peer that is further ahead than its cursor file reaches."""
        if seq not in peer.ahead:
            place = self._place(watched, peer)
            peer.ahead = self._records.hashes(place, watched.comm.key, seq, guard_words.DEPTH)
        return peer.ahead.get(seq)

    def _judge(self, watched: _Watched, seq: int, differing: Sequence[_Peer]) -> None:
        """Report a divergence if the records confirm it.

        Raises:
            DivergenceError: They do, and the mode is ``raise``.
        """

        def hashes_at(number: int) -> dict[int, int]:
            return {
                peer.rank: peer.hashes[number & _MASK]
                for peer in watched.peers
                if number <= peer.last[0] < number + guard_words.DEPTH
            }

        own, key = self._place(watched), watched.comm.key
        for peer in differing:
            other = self._place(watched, peer)
            before = (seq - 1) & _MASK
            if seq == 1 or peer.hashes[before] == watched.hashes[before]:
                found = self._records.judge_newest(own, other, watched.comm, seq, hashes_at)
                if found is not None:
                    break
            found = self._records.judge(own, other, key, seq, hashes_at)
            if found is not None:
                break
            watched.loose.add(peer.process.path)
            watched.peers.remove(peer)
            watched.views = [other.hashes for other in watched.peers]
        else:
            return

        when = time.time_ns()
        if self._mode == "warn":
            # Warn once: later differences follow from this one.
            self.active = False
            self._known.clear()
            warn_once("guard diverged", found.text)
        self._tracer.describe(guard={**found.to_dict(), "mode": self._mode, "time_ns": when})
        self._keep_rings()
        if self._mode == "raise":
            raise DivergenceError(
                found.text,
                f"ncclscope diagnose {self._directory}",
                comm=found.label,
                seq=found.seq,
                posted=found.posted,
            )

    def _keep_rings(self) -> None:
        from ncclscope.store.entry import ALARM, mark

        mark(self._directory, ALARM)

    def _end(self, error: BaseException) -> None:
        """End the guard, not the job, with one warning."""
        self.active = False
        self._known.clear()
        # The interpreter may be shutting down, and the error may not be printable.
        with contextlib.suppress(Exception):
            reason = f"{type(error).__name__}: {error}"
            warn_once("guard", f"the guard is off in this process: {reason}")


def _ring_of(process: PeerCursor) -> Path:
    from ncclscope.ring import layout

    return process.path.with_suffix(layout.SUFFIX)
