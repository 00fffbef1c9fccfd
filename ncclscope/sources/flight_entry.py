"""Entries of a Flight Recorder dump -> calls, made when somebody looks at them.

A dump has thousands of entries and a diagnosis looks at a few. What tells calls apart is the
same for many entries, so that it is worked out once for each spelling; a
:class:`~ncclscope.model.Call` is made of it and of what the entry alone has when it is
asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, overload

from ncclscope.foreign import integer, integers, text
from ncclscope.model import Call, Communicator, State
from ncclscope.signature import MASK, P2P_OPS, VECTOR_OPS, canonical_op, extend, sign
from ncclscope.sources.flight_pattern import Stack
from ncclscope.sources.memory import running_hashes

__all__ = ["DumpLog", "Entry", "LazyCalls", "Posted", "posted", "together"]

MAX_DIMENSIONS = 64
MAX_TENSORS = 1 << 12
MAX_FRAMES = 128
_LONGEST_NAME = 200
_KNOWN_AT_MOST = 1 << 16
"""Spellings that are remembered; a hostile dump has a new one in each entry."""

_ALIASES = {
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_gather_v": "all_gatherv",
    "all_reduce_barrier": "barrier",
    "all_to_all_v_single": "all_to_all",
    "reduce_scatter_coalesced": "reduce_scatter",
    "reduce_scatter_v": "reduce_scatterv",
}
_DTYPES = {
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_PLUMBING = (
    "/torch/",
    "/vllm/distributed/",
    "/vllm/compilation/",
    "/contextlib.py",
    "/functools.py",
    "/typing_extensions.py",
)
# Of these the output counts as many elements on every member.
_EQUAL_OUTPUT = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


@dataclass(frozen=True, slots=True)
class Posted:
    """What an entry says of the call itself, as many entries say it.

    Attributes:
        op: Canonical name; of the end of a coalesced group ``coalesced``.
        backend: ``nccl``, ``gloo``, ...; empty where the entry does not name it.
        p2p: Whether it is a send or receive, or the end of a group of them.
        dtype: Element type of the first input, or output where there is no input.
        numel: Elements of the input.
        shape: Shape of the first input.
        sizes: First dimensions per member of a v-collective.
        out_shape: Shape of the first output.
        peer: Other side of a send or receive.
        signature: What the members must agree in.
        size: Members that the communicator has by the sizes of input and output; 0 where
            those say nothing of it.
    """

    op: str
    backend: str
    p2p: bool
    dtype: str | None
    numel: int | None
    shape: tuple[int, ...] | None
    sizes: tuple[int, ...] | None
    out_shape: tuple[int, ...] | None
    peer: int | None
    signature: int
    size: int


class Entry(NamedTuple):
    """One entry.

    Attributes:
        seq: Number on the communicator, collectives and point-to-point calls apart.
        position: Place in the dump.
        posted: The call.
        state: As it was written.
        retired: Whether the recorder has done with it: it completed, or it failed.
        time_ns: When it was posted.
        frames: The stack, as it was written.
    """

    seq: int
    position: int
    posted: Posted
    state: State
    retired: bool
    time_ns: int | None
    frames: Any


_known: dict[tuple[Any, ...], Posted] = {}


def posted(name: Any, inputs: Any, outputs: Any, dtypes: Any, is_p2p: Any) -> Posted:
    """Returns what an entry's fields say of the call.

    Args:
        name: ``nccl:all_reduce``, ``nccl:send 0->1``, or without the backend.
        inputs: Shapes of the inputs.
        outputs: Shapes of the outputs.
        dtypes: Element types of inputs and outputs.
        is_p2p: The entry's flag.
    """
    key = (name, repr(inputs), repr(outputs), repr(dtypes), bool(is_p2p))
    try:
        found = _known.get(key)
    except TypeError:  # the name is no text
        return _posted("?", inputs, outputs, dtypes, is_p2p)
    if found is None:
        if len(_known) >= _KNOWN_AT_MOST:
            _known.clear()
        found = _known[key] = _posted(text(name) or "?", inputs, outputs, dtypes, is_p2p)
    return found


def _posted(name: str, inputs: Any, outputs: Any, dtypes: Any, is_p2p: Any) -> Posted:
    title, _, pair = name[:_LONGEST_NAME].partition(" ")
    backend, _, op = title.rpartition(":")
    op = canonical_op(op.strip("_") if op.endswith("_") else op)
    op = _ALIASES.get(op, op)
    p2p = bool(is_p2p) or op in P2P_OPS
    ins, outs = _shapes(inputs), _shapes(outputs)
    numel = sum(map(prod, ins)) if ins else None
    total = sum(map(prod, outs)) if outs else None
    shape = ins[0] if ins else None
    sizes = None
    if op in ("all_gather", "all_gatherv") and len({prod(out) for out in outs}) > 1:
        op, sizes = "all_gatherv", tuple(out[0] if out else 1 for out in outs)
    elif op in ("reduce_scatter", "reduce_scatterv") and len({prod(own) for own in ins}) > 1:
        op, sizes = "reduce_scatterv", tuple(own[0] if own else 1 for own in ins)
    dtype = _dtype(dtypes)
    signature = 0
    if not p2p:
        signature = sign(
            op,
            dtype=dtype,
            numel=numel,
            shape=shape,
            sizes=() if op == "all_to_all" else sizes,  # its splits are not recorded
            out_shape=outs[0] if outs else None,
        )
        if op in VECTOR_OPS and sizes is None:
            agreed = total if op == "all_gatherv" else numel
            signature = extend(signature, agreed or 0) | 1
        elif op in _EQUAL_OUTPUT and total is not None:
            signature = extend(signature, total) | 1
    return Posted(
        op=op,
        backend=backend.rpartition(":")[2].lower(),
        p2p=p2p,
        dtype=dtype,
        numel=numel,
        shape=shape,
        sizes=sizes,
        out_shape=outs[0] if outs else None,
        peer=_peer(op, pair),
        signature=signature,
        size=_size(op, numel, total),
    )


def _size(op: str, numel: int | None, total: int | None) -> int:
    """How many members a communicator must have on which this was posted."""
    if not numel or not total:
        return 0
    large, small = {"all_gather": (total, numel), "reduce_scatter": (numel, total)}.get(op, (0, 1))
    return large // small if large % small == 0 and large // small < 1 << 20 else 0


def _peer(op: str, pair: str) -> int | None:
    """The other side, from ``0->1`` of a send or ``0<-1`` of a receive."""
    if op not in P2P_OPS:
        return None
    digits = pair.rpartition("->" if "->" in pair else "<-")[2].strip()
    return int(digits) if digits.isdecimal() and len(digits) < 8 else None


def _dtype(value: Any) -> str | None:
    """Torch's spelling of the first element type."""
    for types in value if isinstance(value, tuple) else (value,):
        if isinstance(types, list) and types and isinstance(types[0], str):
            name = types[0][:_LONGEST_NAME].removeprefix("torch.").lower()
            return _DTYPES.get(name, name)
    return None


def _shapes(value: Any) -> list[tuple[int, ...]]:
    if not isinstance(value, list | tuple):
        return []
    found = (integers(item, MAX_DIMENSIONS) for item in value[:MAX_TENSORS])
    return [shape for shape in found if shape is not None and all(size >= 0 for size in shape)]


def together(entries: Sequence[Entry]) -> Entry:
    """Returns one entry for a coalesced group, which counts as one call.

    What the group does is what its calls do, in any order; how far it has come is told by
    the entry at its end.
    """
    last = entries[-1]
    calls = [entry.posted for entry in entries if entry.posted.op != "coalesced"]
    if not calls:
        return last
    if len(calls) == 1:
        whole = calls[0]
    else:
        first = calls[0]
        signature = 0
        for own in sorted(call.signature for call in calls):
            signature = extend(signature, own)
        same = len({call.op for call in calls}) == 1
        whole = Posted(
            op=first.op if same else "coalesced",
            backend=first.backend,
            p2p=False,
            dtype=first.dtype,
            numel=sum(call.numel or 0 for call in calls),
            shape=None,
            sizes=None,
            out_shape=None,
            peer=None,
            signature=signature & MASK | 1,
            size=0,
        )
    state = max(entry.state for entry in entries)
    return entries[0]._replace(posted=whole, state=state, retired=last.retired)


def site(frames: Any) -> str | None:
    """Returns the first frame of the program's own: ``file.py:120 function``."""
    if isinstance(frames, Stack):
        frames = frames.frames()
    if not isinstance(frames, list) or not frames:
        return None
    own = [frame for frame in frames[:MAX_FRAMES] if isinstance(frame, dict)]
    for frame in own:
        path = text(frame.get("filename")) or ""
        if not any(part in path for part in _PLUMBING):
            return _frame(frame)
    return _frame(own[0]) if own else None


def _frame(frame: dict[str, Any]) -> str:
    path, name = text(frame.get("filename")) or "?", text(frame.get("name")) or "?"
    return f"{os.path.basename(path)}:{integer(frame.get('line')) or 0} {name}"


class LazyCalls(Sequence[Call]):
    """Entries as calls.

    Args:
        comm: Key of the communicator.
        entries: In order.
        done: Entries that are retired count as completed up to this number.
        by_time: Whether calls are placed by their time: two dumps of one process have no
            other order between them.
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
        told = entry.posted
        state = entry.state
        if entry.retired and entry.seq <= self._done:
            state = State.COMPLETED
        return Call(
            op=told.op,
            comm=self._comm,
            seq=entry.seq,
            position=(entry.time_ns or 0) if self._by_time else entry.position,
            dtype=told.dtype,
            peer=told.peer,
            numel=told.numel,
            shape=told.shape,
            sizes=told.sizes,
            out_shape=told.out_shape,
            site=site(entry.frames),
            time_ns=entry.time_ns,
            state=state,
            signature=told.signature,
        )


class DumpLog:
    """A :class:`~ncclscope.model.CallLog` over entries.

    Args:
        communicator: What the calls were made on.
        entries: Collectives in order, with consecutive numbers.
        calls: Calls made; the last of them is the last entry, where there is one.
        done: See :class:`LazyCalls`.
        by_time: See :class:`LazyCalls`.
    """

    anchored = True

    def __init__(
        self,
        communicator: Communicator,
        entries: Sequence[Entry],
        calls: int,
        *,
        done: int = 0,
        by_time: bool = False,
    ) -> None:
        self._communicator = communicator
        self._calls = LazyCalls(communicator.key, entries, done=done, by_time=by_time)
        self._count = calls
        self._first = calls + 1 - len(entries)
        self._signatures = [entry.posted.signature for entry in entries]
        self._hashes = running_hashes(self._signatures)

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    @property
    def calls(self) -> int:
        return self._count

    @property
    def first(self) -> int:
        return self._first

    @property
    def rooted(self) -> bool:
        return self._first == 1

    def fingerprint(self, seq: int) -> int:
        return self._hashes[seq - self._first + 1]

    def call(self, seq: int) -> Call:
        return self._calls[seq - self._first]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        low = max(start - self._first, 0)
        return self._calls[low : max(stop - self._first, low)]

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        low = max(start - self._first, 0)
        return self._signatures[low : max(stop - self._first, low)]
