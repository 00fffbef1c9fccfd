"""Record the calls of one process.

This is the public interface, which the probes use, too::

    tracer = ncclscope.Tracer(directory, rank=2, world_size=4)
    comm = tracer.communicator(key="KEY", label="tp:0", ranks=[2, 3], backend="nccl")
    tracer.record(comm, "all_reduce", shape=(15, 2), dtype="float32", redop="sum")
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from math import prod
from typing import Any

from ncclscope import native
from ncclscope.model import signature
from ncclscope.redaction import redact_text
from ncclscope.ring import layout
from ncclscope.ring.activity import Slot
from ncclscope.ring.native_writer import NativeWriter, open_writer
from ncclscope.ring.tombstone import until_recorded
from ncclscope.ring.writer import Channel
from ncclscope.settings import variable
from ncclscope.tracing import callsite, device, identity, scope
from ncclscope.tracing.background import BackgroundThread
from ncclscope.tracing.comm import Comm, Comms, NamelessTemplate, Template, describe, keep
from ncclscope.tracing.graphs import Graphs
from ncclscope.tracing.heart import Heart, keep_beating
from ncclscope.tracing.host import CallGuard
from ncclscope.tracing.known import warn_of_unknown

__all__ = ["Comm", "NamelessTemplate", "Template", "Tracer"]

_GUARD = "ncclscope.guard.guard:open_guard"
"""Loaded on request: the guard reads and compares rings, which tracing itself never does."""
_MOST_UNRECORDED = 8
"""Communicators without room in the ring that are named there."""
_READ = 4096
"""Characters of an error's text that are searched for secrets."""


class Tracer:
    """Records into one ring file; one per process.

    Args:
        directory: Directory of the ring.
        rank: Global rank; -1 if the process has none or does not know it yet.
        world_size: Number of ranks of the job; 0 if unknown.
        labels: Names of the process, such as ``{"tp": "2", "dp": "1"}``.
        capacity: Number of records kept.
        heartbeat: Store a heartbeat each second, from a daemon thread, so that a reader
            knows for how long nothing has happened.
        details: Further fields of the process description; they override detected ones
            (``host``, ``pid``, ...).

    Raises:
        RingError: No ring could be created. Probes turn this into one warning.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        rank: int = -1,
        world_size: int = 0,
        labels: Mapping[str, str] | None = None,
        capacity: int = layout.DEFAULT_CAPACITY,
        heartbeat: bool = True,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        about = identity.describe_process()
        about.update(rank=rank, world_size=world_size, labels=dict(labels or {}))
        about.update(details or {})
        counts = device.mode()
        scope.expect_plugin()
        with until_recorded(directory, about):
            self.ring = open_writer(directory, capacity=capacity, about=about, device=bool(counts))
        self.rank = rank
        self.world_size = world_size
        self._comms = Comms(self.ring, self._without_room)
        self._unrecorded: dict[str, str] = {}
        self._lock = threading.RLock()
        self._closed = False
        self.post = self.ring.post
        """:meth:`RingWriter.post`, bound once, for the probes."""
        self.graphs = Graphs(self)
        self.watched: Callable[[Channel], None] | None = None
        """Called after each replay, if the guard compares calls."""
        self.device = device.open_marks(self, counts) if counts else None
        """Counts calls on the GPU, if requested."""
        self._guard = _open_guard(self)
        # Both know communicators by their numbers.
        self._comms.keeps_all = self._guard is not None or self.device is not None
        if self._guard is not None:
            self.post, self.watched = self._guard.post, self._guard.replayed
        else:
            self._record_natively()
        self._heartbeat = BackgroundThread(
            "ncclscope-beat", keep_beating, Heart(self.ring, self.activity)
        )
        if heartbeat:
            self._heartbeat.start()
        _tracers.add(self)
        _end_with_multiprocessing()

    def _record_natively(self) -> None:
        """Let the core record calls whose parameters are known, where it writes the ring."""
        core = native.core()
        if core is not None and isinstance(self.ring, NativeWriter):
            callsite.teach(core)
            recorder = core.recorder(self.ring.core, self.record, scope.groups)
            self.record = recorder.record  # type: ignore[method-assign]

    @property
    def closed(self) -> bool:
        """Whether the process recorded its normal exit."""
        return self._closed

    @property
    def path(self) -> str:
        """Path of the ring file."""
        return str(self.ring.path)

    def communicator(
        self,
        key: str,
        label: str = "",
        ranks: Sequence[int] = (),
        backend: str = "",
        created_at: str | None = None,
        timeout: int = 0,
    ) -> Comm:
        """Return the communicator with this key, recording it at the first call.

        Args:
            key: Identifier that all members share and no other communicator has, such as a digest
                of the ncclUniqueId.
            label: Display name, such as ``tp:0``.
            ranks: Global ranks of the members, in the communicator's order.
            backend: ``nccl``, ``gloo``, ...
            created_at: Line of the program that created it, ``/path/file.py:120 function``.
            timeout: Seconds after which a call on it is given up; 0 if unknown.

        A ring holds thousands at one time. Without room for another one, its calls are recorded as
        those of no communicator, and the ring says so.
        """
        comm = self._comms.get(key)
        if comm is not None:
            return comm
        with self._lock:
            comm = self._comms.get(key)
            if comm is None:
                members = tuple(int(rank) for rank in ranks)
                about = describe(key, label, members, backend, created_at, timeout)
                comm = self._comms.open(key, label, about, members)
                if self._guard is not None and comm.channel.index:
                    self._guard.watch(comm)
        return comm

    def _without_room(self, key: str, label: str) -> None:
        """Say in the ring that a communicator has no room there; the first few by name."""
        if key not in self._unrecorded and len(self._unrecorded) < _MOST_UNRECORDED:
            self._unrecorded[key] = label
            self.ring.describe(unrecorded=self._unrecorded)

    def relabel(self, comm: Comm, label: str) -> None:
        """Set a communicator's label after its creation."""
        if label and label != comm.label:
            comm.label = label
            self.ring.update_channel(comm.channel, {"label": label})

    def record(
        self,
        comm: Comm,
        op: str,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        redop: str | None = None,
        root: int | None = None,
        peer: int | None = None,
        numel: int | None = None,
        sizes: Sequence[int] | None = None,
        out_shape: Sequence[int] | None = None,
        out_sizes: Sequence[int] | None = None,
        site: str | None = None,
        state: int = 0,
        captured: bool = False,
        graph: int = 0,
    ) -> int:
        """Record one call, before it is enqueued.

        Args:
            comm: The communicator, from :meth:`communicator`.
            op: ``all_reduce``, ``all_gatherv``, ``send``, ... in torch's or NCCL's spelling. Others
                are recorded with a warning, and compared by all their parameters.
            shape: Shape of the input, in elements.
            dtype: Element type, such as ``bfloat16``.
            redop: Reduction, such as ``sum``.
            root: Root, as a rank of the communicator.
            peer: Other side of a send or receive, as a rank of the communicator.
            numel: Number of elements of the input; computed from the shape by default.
            sizes: First dimensions per member, or splits.
            out_shape: Shape of the output.
            out_sizes: Sizes that an all_to_all receives from each member; only with ``sizes``.
            site: ``file.py:120 function``; found from the stack by default.
            state: A :class:`~ncclscope.model.State`.
            captured: Whether a CUDA graph is being captured. The call then belongs to the graph
                that :attr:`graphs` has begun, if any, and runs with its replays.
            graph: Identifier of that graph.

        Returns:
            The record's position, for :meth:`complete`; -1 for a call that belongs to a graph, or
            during interpreter shutdown.
        """
        try:
            place = None
            if site is None:
                found = callsite.locate(sys._getframe(1))
                if found is not None:
                    place, code = (found[0], found[1]), found[2]
            parameters = (
                op,
                None if shape is None else tuple(shape),
                dtype,
                redop,
                root,
                peer,
                numel,
                None if sizes is None else tuple(sizes),
                None if out_shape is None else tuple(out_shape),
                None if out_sizes is None else tuple(out_sizes),
                site,
                place,
            )
            template = comm.templates.get(parameters)
            if template is None or (
                sizes is not None and not self.ring.holds_sizes(template.fixed)
            ):
                if place is not None:
                    site = callsite.describe(code, place[1])
                warn_of_unknown(op, dtype)
                template = self.template(
                    comm,
                    op,
                    shape=shape,
                    dtype=dtype,
                    redop=redop,
                    root=root,
                    peer=peer,
                    numel=numel,
                    sizes=sizes,
                    out_shape=out_shape,
                    out_sizes=out_sizes,
                    site=site,
                )
                keep(comm, parameters, template)
            flags = layout.FLAG_CAPTURED if captured else 0
            group = scope.group_number()
            if template.signature:
                return self.post(
                    comm.channel, template.fixed, template.signature, state, flags, group, graph
                )
            return self.ring.post_p2p(comm.channel, template.fixed, state, flags, group, graph)
        except Exception:
            # During interpreter shutdown, finalizers still run while modules are already empty.
            if sys is None or sys.is_finalizing():
                return -1
            raise

    def template(
        self,
        comm: Comm,
        op: str,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        redop: str | None = None,
        root: int | None = None,
        peer: int | None = None,
        numel: int | None = None,
        sizes: Sequence[int] | None = None,
        out_shape: Sequence[int] | None = None,
        out_sizes: Sequence[int] | None = None,
        site: str | None = None,
    ) -> Template:
        """Pack and sign a call's parameters, for probes that cache the result.

        The arguments are those of :meth:`record`. A template with signature 0 is a point-to-point
        call, to be recorded by :meth:`RingWriter.post_p2p`.
        """
        op = signature.canonical_op(op)
        dtype = None if dtype is None else signature.canonical_dtype(dtype)
        redop = None if redop is None else signature.canonical_redop(redop)
        if numel is None:
            numel = 0 if shape is None else prod(shape)
        signed = signature.sign(
            op,
            dtype=dtype,
            redop=redop,
            root=root,
            numel=numel if numel or shape is not None else None,
            shape=shape,
            sizes=sizes,
            out_shape=out_shape,
        )
        refused = self.ring.refused
        fixed = self.ring.fixed(
            comm.channel,
            op,
            dtype=dtype,
            redop=redop,
            root=peer if op in signature.P2P_OPS else root,
            numel=numel,
            shape=shape,
            sizes=layout.join_sizes(sizes, out_sizes),
            out_shape=out_shape,
            site=site or None,
            p2p=op in signature.P2P_OPS,
        )
        made = Template if self.ring.refused == refused else NamelessTemplate
        return made(fixed, signed)

    def start(self, position: int) -> None:
        """Record that the call at a position has started."""
        self.ring.advance(position, 1)

    def complete(self, position: int) -> None:
        """Record that the call at a position has completed."""
        self.ring.advance(position, 2)

    def step(self, number: int, *, tokens: int | None = None, dummy: bool = False) -> None:
        """Record that the following calls belong to another step of the engine.

        Args:
            number: Number of the step.
            tokens: Number of tokens in the step's batch; None if unknown.
            dummy: Whether it is a dummy batch.
        """
        self.ring.post_step(number, tokens, dummy)

    def activity(self, name: str) -> Slot:
        """Return the slot that records an activity besides the calls.

        A ring has sixteen slots. Each holds the newest activity of one name.

        Args:
            name: Name of the activity, such as ``dequeue``.
        """
        with self._lock:
            return self.ring.activities.named(name)

    def describe(self, **fields: Any) -> None:
        """Add to the process description in the ring."""
        self.rank = fields.get("rank", self.rank)
        self.world_size = fields.get("world_size", self.world_size)
        self.ring.describe(**fields)

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Record a normal exit. Recording still works afterwards."""
        self._heartbeat.stop()
        self.ring.finish()
        self._closed = True

    def detach(self) -> None:
        """Stop writing to the ring without changing it, in the child after a fork."""
        self._heartbeat = BackgroundThread(
            "ncclscope-beat", keep_beating, Heart(self.ring, self.activity)
        )
        self._lock = threading.RLock()
        self.graphs.detach()
        self.device = None
        if self._guard is not None:
            self._guard.detach()
        self.ring.detach()


def _open_guard(tracer: Tracer) -> CallGuard | None:
    """Return the guard that compares a tracer's calls, if the environment requests it."""
    mode = variable("GUARD")
    if not mode:
        return None
    found: CallGuard | None = EntryPoint("guard", _GUARD, "ncclscope").load()(tracer, mode)
    return found


_tracers: weakref.WeakSet[Tracer] = weakref.WeakSet()
"""All tracers with a mapped file; a closed one still records."""


def _close_all() -> None:
    error = sys.exc_info()[1]
    if error is None and not hasattr(sys, "ps1"):  # an interactive session continues after errors
        error = getattr(sys, "last_value", None)
    for tracer in list(_tracers):
        if tracer.closed:
            continue
        try:
            if error is not None and not isinstance(error, SystemExit):
                text = redact_text(f"{type(error).__name__}: {error}"[:_READ])
                text = " ".join(text.split())  # one line on every screen
                tracer.describe(ended_with=text[:500])
        except Exception:  # the error's own __str__ failed
            tracer.describe(ended_with=type(error).__name__)
        tracer.close()


def _detach_all() -> None:
    for tracer in list(_tracers):
        tracer.detach()
    _tracers.clear()


def _end_with_multiprocessing() -> None:
    """Record the normal exit of processes forked by multiprocessing, too.

    Before Python 3.14 they exit without calling the functions registered with :mod:`atexit`.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _close_all, exitpriority=-100)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_detach_all)
