"""From an object of the program - a process group, a communicator - to records in the ring."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ncclscope.ring import layout
from ncclscope.tracing import callsite, scope, session
from ncclscope.tracing.tracer import NamelessTemplate

if TYPE_CHECKING:
    from types import FrameType

    from ncclscope.tracing.device.markers import Marks
    from ncclscope.tracing.tracer import Comm, Tracer

__all__ = [
    "COMPLETED",
    "NOBODY",
    "NOWHERE",
    "Handle",
    "Handles",
    "is_capturing",
    "learn",
    "record",
    "redop_name",
    "watch_captures",
]

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
"""What a call's parameters mean, by position. Calls give as many as they have."""

NOWHERE = (0, 0, None)
"""Stands for the call site where there is none."""

_locate = callsite.locate
_groups = scope.groups

COMPLETED = 2
_NO_MARKER = 12
"""In layout.LOST: what is recorded here may run on any stream."""
_TEMPLATES_KEPT = 4096

is_capturing: Callable[[], bool] | None = None
"""Whether a graph is being captured. Not asked where there is no communicator for GPUs."""


class Handle:
    """A communicator as the probes record on it.

    Attributes:
        comm: The communicator; None on :data:`NOBODY`.
        post: The tracer's way in.
        templates: Parameters and call site -> what the ring takes for them, and whether
            that refers to a sizes list, which is not kept for ever.
        waits: Whether a returned ``wait()`` means that the call has completed; None where
            that depends on the tensor's device.
        about: What it stands for, weakly, so that it ends with it.
        marks: What counts its calls on the GPU; None where nothing does.
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
        if on_device and tracer.device is not None:
            self.marks = tracer.device.of(comm.channel, is_nccl="nccl" in comm.backend)

    def complete(self, position: int) -> None:
        """Note that a call has completed."""
        self.ring.advance(position, COMPLETED)

    def rename(self, label: str, ranks: Sequence[int] = ()) -> None:
        """Note the communicator's name, and its members where they were not known."""
        assert self.comm is not None
        self.tracer.relabel(self.comm, label)
        if ranks and not self.comm.ranks:
            self.comm.ranks = tuple(ranks)
            self.ring.update_channel(self.channel, {"ranks": list(ranks)})


class _Nobody(Handle):
    """Stands for communicators whose calls are not recorded."""

    def __init__(self) -> None:
        self.comm = None
        self.waits = False
        self.marks = None


NOBODY: Handle = _Nobody()


class Handles:
    """The handles of a kind of objects, by identity, for as long as these objects live.

    A forked child begins with none: its tracer is another one.

    Args:
        open: Makes a handle for an object, or returns :data:`NOBODY`.
    """

    def __init__(self, open: Callable[[Any], Handle]) -> None:
        self._open = open
        self.known: dict[int, Handle] = {}
        """By ``id()``: for the path of a call, to which a function call is a cost."""
        session.on_reset(self.known.clear)

    def of(self, thing: Any) -> Handle:
        """Return the object's handle, making it at the first time."""
        handle = self.known.get(id(thing))
        return self.remember(thing, self._open(thing)) if handle is None else handle

    def remember(self, thing: Any, handle: Handle) -> Handle:
        """Make this the handle of an object until the object is gone."""
        number = id(thing)
        # Held here, since modules are emptied before the last objects go.
        known, references = self.known, _references

        # An id is given out again, so an entry must not outlive its object. The reference
        # has to be kept for its callback to be called: in the handle, or for NOBODY here.
        def forget(_reference: weakref.ref[Any]) -> None:
            known.pop(number, None)
            references.pop(number, None)

        reference = weakref.ref(thing, forget)
        if handle is NOBODY:
            _references[number] = reference
        else:
            handle.about = reference
        known[number] = handle
        return handle


_references: dict[int, weakref.ref[Any]] = {}


def record(handle: Handle, parameters: tuple[Any, ...], frame: FrameType) -> int:
    """Record one call.

    Args:
        handle: Where; not :data:`NOBODY`.
        parameters: Its parameters in the order of ``_FIELDS``, hashable. ``dtype`` may be
            torch's own: naming it is left for the first call of its kind.
        frame: Where to begin to look for the line of the program that made the call.

    Returns:
        The position of the record; -1 for a call that became a part of a CUDA graph.
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
    """Make the template for a kind of call that has not been seen before."""
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
    """Has records say from now on whether a CUDA graph is being captured."""
    global is_capturing
    version = sys.modules["torch"].version
    if is_capturing is None and (version.cuda or version.hip):
        is_capturing = _ask_when_initialised


def _ask_when_initialised() -> bool:
    global is_capturing
    torch: Any = sys.modules["torch"]
    # Asking the driver before the program has used CUDA would make a context on GPU 0.
    if not torch.cuda.is_initialized():
        return False
    asked = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
    is_capturing = asked
    return asked is not None and bool(asked())


def _stop_watching() -> None:
    """CUDA does not survive a fork; what the child asks of it would be an error."""
    global is_capturing
    is_capturing = None


session.on_reset(_stop_watching)

_redops: dict[int, tuple[Any, str]] = {}
"""By identity: hashing torch's own is slow. The object is kept, so that the id stays its own."""
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
    # A ReduceOp is made anew whenever it is taken out of an options object.
    return _redop_numbers.get(int(getattr(redop, "op", redop)), "unknown")


def _learn_redops() -> None:
    redops: Any = sys.modules["torch.distributed"].ReduceOp
    for name, constant in redops.RedOpType.__members__.items():
        _redop_numbers[int(constant)] = name.lower()
        public = getattr(redops, name)
        _redops[id(public)] = (public, name.lower())
