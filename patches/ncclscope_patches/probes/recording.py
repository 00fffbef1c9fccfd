"""Record calls on an object of the program, such as a process group or a communicator."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ncclscope import native
from ncclscope.ring import layout
from ncclscope.ring.native_writer import NativeWriter
from ncclscope.tracing import callsite, scope, session
from ncclscope.tracing.tracer import NamelessTemplate

if TYPE_CHECKING:
    from types import FrameType

    from ncclscope.tracing.device.markers import Marks
    from ncclscope.tracing.tracer import Comm, Tracer

_FIELDS = (
    "op",
    "shape",
    "dtype",
    "redop",
    "root",
    "peer",
    "numel",
    "sizes",
    "out_shape",
    "out_sizes",
)
"""Names of a call's parameters by position; a call may give fewer."""

NOWHERE = (0, 0, None)
"""Call site of a call without one."""

_locate = callsite.locate
_groups = scope.groups

COMPLETED = 2
_NO_MARKER = 12
"""Index into layout.LOST: calls recorded here may run on any stream."""
_TEMPLATES_KEPT = 4096
_OF_PEERS = re.compile(
    r"peer|remote|connection|socket|reset|pipe|timed? ?out|abort|gloo/|nccl\w*error|cuda", re.I
)
"""What exceptions say that another process, or the network, may have caused."""
_OWN = (TypeError, ValueError, NotImplementedError)
"""Exceptions that no other process causes."""

is_capturing: Callable[[], bool] | None = None
"""Return whether a graph is being captured; None without a communicator on GPUs."""


class Handle:
    """A communicator as the probes use it.

    Attributes:
        comm: The communicator; None for :data:`NOBODY`.
        post: The tracer's method that records a collective.
        templates: By parameters and call site: the packed parameters, the signature, and whether
            they refer to a sizes list, which expires.
        waits: Whether the return of ``wait()`` means that the call has completed; None if that
            depends on the tensor's device.
        about: Weak reference to the object of the program.
        marks: The markers that count its calls on the GPU; None if they are not counted.

    Args:
        tracer: The tracer of this process.
        comm: The communicator.
        waits: As the attribute.
        on_device: Whether to count its calls on the GPU.
    """

    __slots__ = (
        *("about", "channel", "comm", "marks", "post", "ring", "templates", "tracer", "waits"),
    )

    def __init__(
        self,
        tracer: Tracer,
        comm: Comm,
        *,
        waits: bool | None = False,
        on_device: bool = False,
    ) -> None:
        self.tracer = tracer
        self.comm: Comm | None = comm
        self.channel = comm.channel
        self.templates: dict[Any, tuple[bytes, int, bool]] = {}
        self.post = tracer.post
        self.ring = tracer.ring
        self.waits = waits
        self.about: weakref.ref[Any] | None = None
        self.marks: Marks | None = None
        countable = 0 < comm.channel.index <= layout.DEVICE_COMMS
        if on_device and countable and tracer.device is not None:
            self.marks = tracer.device.of(comm.channel, is_nccl="nccl" in comm.backend)

    def complete(self, position: int) -> None:
        """Record that the call at a position has completed."""
        self.ring.advance(position, COMPLETED)

    def withdraw(self, position: int, error: BaseException) -> None:
        """Withdraw the call at a position, if torch refused it before it was sent.

        torch counts the calls of a process group as it sends them. A call that it has not counted
        is on no peer's connection, unless calls passed the probes; then the counts differ anyway.
        """
        group = None if self.about is None else self.about()
        count = getattr(group, "_get_sequence_number_for_group", None)
        backend = "" if self.comm is None else self.comm.backend
        # The guard has compared the call, or a marker has counted it on the GPU.
        if count is None or self.marks is not None or self.post != self.ring.post:
            return
        if position < 0 or backend not in ("gloo", "nccl"):
            return
        if not isinstance(error, _OWN) and _OF_PEERS.search(str(error)):
            return
        recorded = self.channel.seq + (self.channel.p2p if backend == "gloo" else 0)
        if count() == recorded - 1:
            self.ring.withdraw(self.channel, position)

    def rename(self, label: str, ranks: Sequence[int] = ()) -> None:
        """Record the communicator's label, and its members if they were unknown."""
        assert self.comm is not None
        self.tracer.relabel(self.comm, label)
        if ranks and not self.comm.ranks:
            self.comm.ranks = tuple(ranks)
            self.ring.update_channel(self.channel, {"ranks": list(ranks)})


class _Nobody(Handle):
    """The handle of objects whose calls are not recorded."""

    def __init__(self) -> None:
        self.comm = None
        self.waits = False
        self.marks = None


NOBODY: Handle = _Nobody()


class Handles:
    """The handles of one kind of objects, by identity, during the objects' lifetime.

    A forked child starts without handles, since it has another tracer.

    Args:
        open: Create a handle for an object, or return :data:`NOBODY`.
    """

    def __init__(self, open: Callable[[Any], Handle]) -> None:
        self._open = open
        self.known: dict[int, Handle] = {}
        """Handles by ``id()``; read directly on the hot path, where a function call is costly."""
        self.posts: dict[int, Any] = native.by_address()
        """What the core in C needs to record their calls, by ``id()``; not all have it."""
        session.on_reset(self.known.clear)
        session.on_reset(self.posts.clear)

    def of(self, thing: Any) -> Handle:
        """Return the object's handle, creating it on first use."""
        handle = self.known.get(id(thing))
        return self.remember(thing, self._open(thing)) if handle is None else handle

    def remember(self, thing: Any, handle: Handle) -> Handle:
        """Use this handle for an object during the object's lifetime."""
        number = id(thing)
        # Local names, since modules are cleared before the last objects are freed.
        known, posts, references = self.known, self.posts, _references

        # Ids are reused, so an entry must not outlive its object. The weak reference must stay
        # alive for its callback: in the handle, or here for NOBODY.
        def forget(_reference: weakref.ref[Any]) -> None:
            known.pop(number, None)
            posts.pop(number, None)
            references.pop(number, None)

        reference = weakref.ref(thing, forget)
        if handle is NOBODY:
            _references[number] = reference
        else:
            handle.about = reference
            post = post_of(handle)
            if post is not None:
                posts[number] = post
        known[number] = handle
        return handle


_references: dict[int, weakref.ref[Any]] = {}


def post_of(handle: Handle) -> Any:
    """Return what the core needs to record a handle's calls; None if Python must."""
    core, ring = native.core(), handle.ring
    # The guard compares each call, and marks count it on the GPU.
    if core is None or not isinstance(ring, NativeWriter) or handle.marks is not None:
        return None
    if handle.post != ring.post:
        return None
    version = sys.modules["torch"].version if "torch" in sys.modules else None
    on_gpus = not handle.waits and version is not None and (version.cuda or version.hip)
    return core.post_of(handle.channel, handle.templates, _captures if on_gpus else None, handle)


def _captures() -> bool:
    return is_capturing is not None and is_capturing()


Planned = tuple[str, int, int, int, tuple[str | None, ...]]
"""Where the core finds a call's parameters; see :func:`planned`."""


def planned(
    op: str, tensor: int, redop: int = 0, sizes: int = 0, names: Sequence[str] = ()
) -> Planned:
    """Return where the core finds a call's parameters; see :func:`posting.plan`."""
    named = tuple(names[at] if 0 < at < len(names) else None for at in (tensor, redop, sizes))
    return op, tensor, redop, sizes, named


def recorder(
    core: Any,
    posts: dict[int, Any],
    read: Callable[..., tuple[Any, ...]] | None,
    plan: Planned | None,
    *operator: Any,
) -> Any:
    """Return what records a method's calls in C if their parameters and call sites are known.

    Args:
        core: The core.
        posts: Of the objects with the method, by ``id()``; see :func:`post_of`.
        read: Return the call's parameters from its arguments; None if only `plan` does.
        plan: Of :func:`planned`; None if only `read` knows the parameters.
        operator: For torch's operators, the types of plain tensors and the active modes.

    Returns:
        An object for the core's ``replaced``.
    """
    callsite.teach(core)
    core.use_redops(_redops)
    if not _redops and "torch.distributed" in sys.modules:
        _learn_redops()
    return core.posting(posts, read, scope.groups, scope.suppressing, plan, *operator)


def record(handle: Handle, parameters: tuple[Any, ...], frame: FrameType) -> int:
    """Record one call.

    Args:
        handle: Handle of the communicator; not :data:`NOBODY`.
        parameters: Its parameters in the order of ``_FIELDS``, hashable. ``dtype`` may be a
            ``torch.dtype``; it is converted to text only for the first call of its kind.
        frame: Frame from which to search for the call site.

    Returns:
        The position of the record; -1 for a call that became part of a CUDA graph.
    """
    found = _locate(frame) or NOWHERE
    key = (parameters, found[0], found[1])
    template = handle.templates.get(key) or learn(handle, key, found[2])
    fixed, signed, has_sizes = template
    if has_sizes and not handle.ring.holds_sizes(fixed):
        fixed, signed, _ = learn(handle, key, found[2])
    flags = 0
    if is_capturing is not None and not handle.waits and is_capturing():
        flags = layout.FLAG_CAPTURED  # what is on the host alone is carried out
    group = scope.group_number() if _groups else 0
    if signed:
        if handle.marks is not None:
            handle.marks.lose(_NO_MARKER)
        return handle.post(handle.channel, fixed, signed, 0, flags, group)
    return handle.ring.post_p2p(handle.channel, fixed, 0, flags, group)


def learn(handle: Handle, key: tuple[Any, ...], code: Any) -> tuple[bytes, int, bool]:
    """Create and cache the template for a new kind of call.

    Args:
        handle: Handle of the communicator.
        key: Parameters, id of the site's code, and instruction.
        code: Code of the call site; None if there is none.
    """
    parameters, _, instruction = key
    fields = dict(zip(_FIELDS, parameters, strict=False))
    op = fields.pop("op")
    dtype = fields.get("dtype")
    fields["dtype"] = None if dtype is None else str(dtype).removeprefix("torch.")
    assert handle.comm is not None
    made = handle.tracer.template(
        handle.comm,
        op,
        site=None if code is None else callsite.describe(code, instruction),
        **fields,
    )
    template = (*made, fields.get("sizes") is not None)
    if isinstance(made, NamelessTemplate):
        return template  # a signal handler came in between; the next such call has its name
    if len(handle.templates) >= _TEMPLATES_KEPT:
        handle.templates.clear()
    handle.templates[key] = template
    return template


def watch_captures() -> None:
    """From now on, mark records of calls that a CUDA graph captures."""
    global is_capturing
    version = sys.modules["torch"].version
    if is_capturing is None and (version.cuda or version.hip):
        is_capturing = _ask_when_initialised


def _ask_when_initialised() -> bool:
    global is_capturing
    torch: Any = sys.modules["torch"]
    # Before the program uses CUDA, asking the driver would create a context on GPU 0.
    if not torch.cuda.is_initialized():
        return False
    asked = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
    is_capturing = asked
    core = native.core()
    if core is not None:
        core.use_capturing(asked)
    return asked is not None and bool(asked())


def _stop_watching() -> None:
    """Stop asking CUDA, which a forked child cannot use."""
    global is_capturing
    is_capturing = None
    core = native.core()
    if core is not None:
        core.use_capturing(None)


session.on_reset(_stop_watching)

_redops: dict[int, tuple[Any, str]] = {}
"""Names by id, since hashing torch's objects is slow; keeping the object keeps its id unique."""
_redop_numbers: dict[int, str] = {}


def redop_name(redop: Any) -> str:
    """Return torch's name for a reduction in lower case: ``sum``, ``avg``, ``premul_sum``.

    Args:
        redop: A ``ReduceOp``, one of its constants, or a name.
    """
    known = _redops.get(id(redop))
    if known is not None:
        return known[1]
    if isinstance(redop, str):  # as functional collectives have it
        return redop.lower()
    if not _redop_numbers:
        _learn_redops()
    # Reading a ReduceOp from an options object creates a new object each time.
    return _redop_numbers.get(int(getattr(redop, "op", redop)), "unknown")


def _learn_redops() -> None:
    # torch.distributed itself may not have been initialised yet, as with torch 2.11.
    redops: Any = sys.modules["torch._C._distributed_c10d"].ReduceOp
    for name, constant in redops.RedOpType.__members__.items():
        _redop_numbers[int(constant)] = name.lower()
        public = getattr(redops, name)
        _redops[id(public)] = (public, name.lower())
