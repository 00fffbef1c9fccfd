"""Decode the call of a Flight Recorder entry.

Many entries describe the same call, so each description is decoded once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ncclscope.model import State
from ncclscope.model.signature import MASK, P2P_OPS, VECTOR_OPS, canonical_op, extend, sign
from ncclscope.untrusted import integers, text

MAX_DIMENSIONS = 64
MAX_TENSORS = 1 << 12
_MOST_FIELDS = 64
_LONGEST_NAME = 200
_KNOWN_AT_MOST = 1 << 16
"""Most cached calls; a hostile dump has a new one in each entry."""
_MOST_NUMBERS = 1 << 10
"""Most numbers in the shapes of a cached call."""
_SPLITS = re.compile(r"(in|out)(?:put)?_splits?(?:_sizes|_numels|_counts)?\Z")
"""Names of the splits of an all_to_all, present since format 2.11."""

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
# Operations whose output has the same number of elements on every member.
_EQUAL_OUTPUT = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


@dataclass(frozen=True, slots=True)
class Posted:
    """The part of an entry that describes its call, which many entries share.

    Attributes:
        op: Canonical name; ``coalesced`` for the end of a coalesced group.
        backend: ``nccl``, ``gloo``, ...; empty if the entry does not name it.
        p2p: Whether it is a send or receive, or the end of a group of them.
        dtype: Element type of the first input, or of the output if there is no input.
        numel: Number of elements of the input.
        shape: Shape of the first input.
        sizes: For a v-collective, the first dimension per member. For an all_to_all, the
            elements sent to each member, if the dump has them.
        out_sizes: For an all_to_all, the elements received from each member, if known.
        out_shape: Shape of the first output.
        peer: Other side of a send or receive.
        signature: Hash of what the members must agree in.
        size: Number of members according to the sizes of input and output; 0 if unknown.
    """

    op: str
    backend: str
    p2p: bool
    dtype: str | None
    numel: int | None
    shape: tuple[int, ...] | None
    sizes: tuple[int, ...] | None
    out_sizes: tuple[int, ...] | None
    out_shape: tuple[int, ...] | None
    peer: int | None
    signature: int
    size: int


class Entry(NamedTuple):
    """One entry.

    Attributes:
        seq: Sequence number on the communicator; point-to-point calls have their own numbers.
        position: Index in the dump.
        posted: The call.
        state: State in the dump.
        retired: Whether the recorder has retired it: it completed, or it failed.
        time_ns: Time at which it was enqueued, in ns since 1970.
        timeout_ms: Timeout of the watchdog in ms; 0 if unknown.
        frames: The stack, undecoded.
        thread: Number of the thread that posted it, from 1; 0 if the dump does not name it.
    """

    seq: int
    position: int
    posted: Posted
    state: State
    retired: bool
    time_ns: int | None
    timeout_ms: int
    frames: Any
    thread: int = 0


_Shapes = tuple[tuple[int, ...], ...]
_Splits = tuple[tuple[str, tuple[int, ...]], ...]
_known: dict[tuple[Any, ...], Posted] = {}
_sound: dict[_Shapes, _Shapes] = {}


def posted(entry: Mapping[str, Any]) -> Posted:
    """Decode the call of an entry.

    Never format or compare undecoded values: a few bytes of a pickle can expand beyond any
    memory. Only numbers and short texts leave this function.
    """
    get = entry.get
    name = (text(get("profiling_name")) or "?")[:_LONGEST_NAME]
    return _make(
        name,
        _shapes(get("input_sizes")),
        _shapes(get("output_sizes")),
        _dtype(get("input_dtypes")) or _dtype(get("output_dtypes")),
        get("is_p2p") is True,
        _lists(entry) if "to" in name.lower() else (),  # all_to_all, in any spelling
    )


def _make(
    name: str, ins: _Shapes, outs: _Shapes, dtype: str | None, is_p2p: bool, splits: _Splits
) -> Posted:
    key = (name, ins, outs, dtype, is_p2p, splits)
    found = _known.get(key)
    if found is None:
        found = _posted(*key)
        if sum(map(len, (ins, outs, *ins, *outs, *(own for _, own in splits)))) > _MOST_NUMBERS:
            return found
        if len(_known) >= _KNOWN_AT_MOST:
            _known.clear()
        _known[key] = found
    return found


def _posted(
    name: str, ins: _Shapes, outs: _Shapes, dtype: str | None, is_p2p: bool, splits: _Splits
) -> Posted:
    title, _, pair = name.partition(" ")
    backend, _, op = title.rpartition(":")
    op = canonical_op(op.strip("_") if op.endswith("_") else op)
    op = _ALIASES.get(op, op)
    p2p = is_p2p or op in P2P_OPS
    if op == "recv" and not ins:
        ins = outs  # as torch 2.15 records it
    numel = sum(map(prod, ins)) if ins else None
    total = sum(map(prod, outs)) if outs else None
    shape = ins[0] if ins else None
    sizes = None
    if op in ("all_gather", "all_gatherv") and len({prod(out) for out in outs}) > 1:
        op, sizes = "all_gatherv", tuple(out[0] if out else 1 for out in outs)
    elif op in ("reduce_scatter", "reduce_scatterv") and len({prod(own) for own in ins}) > 1:
        op, sizes = "reduce_scatterv", tuple(own[0] if own else 1 for own in ins)
    out_sizes = None
    if op == "all_to_all":
        sizes, out_sizes = _splits(splits, ins, outs)
    signature = 0
    if not p2p:
        signature = sign(
            op,
            dtype=dtype,
            numel=numel,
            shape=shape,
            sizes=() if op == "all_to_all" else sizes,  # its splits are each member's own
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
        out_sizes=out_sizes,
        out_shape=outs[0] if outs else None,
        peer=_peer(op, pair),
        signature=signature,
        size=_size(op, numel, total),
    )


def _splits(
    value: _Splits, ins: _Shapes, outs: _Shapes
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return the elements sent to and received from each member, or None for both.

    Dumps have them since format 2.11. In older dumps they are known if there is one tensor per
    member. A single tensor may be split in any way, and even splits are not written.
    """
    lists = dict(value)
    if "in" not in lists and len(ins) > 1:
        lists["in"] = tuple(map(prod, ins))
    if "ou" not in lists and len(outs) > 1:
        lists["ou"] = tuple(map(prod, outs))
    if len(lists) < 2 or len(lists["in"]) != len(lists["ou"]):
        return None, None
    return lists["in"], lists["ou"]


def _lists(entry: Mapping[str, Any]) -> _Splits:
    """Return the written splits: pairs of ``in`` or ``ou`` and a size per member."""
    found = []
    for name in entry if len(entry) <= _MOST_FIELDS else ():
        if isinstance(name, str) and _SPLITS.match(name):
            own = integers(entry[name], MAX_TENSORS)
            if own and all(0 <= size < 1 << 62 for size in own):
                found.append((name[:2], own))
    return tuple(found)


def _size(op: str, numel: int | None, total: int | None) -> int:
    """Return the number of members that the sizes of a call imply; 0 if they imply none."""
    if not numel or not total:
        return 0
    large, small = {"all_gather": (total, numel), "reduce_scatter": (numel, total)}.get(op, (0, 1))
    return large // small if large % small == 0 and large // small < 1 << 20 else 0


def _peer(op: str, pair: str) -> int | None:
    """Return the other side, from ``0->1`` of a send or ``0<-1`` of a receive."""
    if op not in P2P_OPS:
        return None
    digits = pair.rpartition("->" if "->" in pair else "<-")[2].strip()
    return int(digits) if digits.isdecimal() and len(digits) < 8 else None


def _dtype(types: Any) -> str | None:
    """Return the first element type in torch's spelling."""
    if not isinstance(types, list) or not types or not isinstance(types[0], str):
        return None
    name = types[0][:_LONGEST_NAME].removeprefix("torch.").lower()
    return _DTYPES.get(name, name)


def _shapes(value: Any) -> _Shapes:
    """Return the well-formed shapes in a list of them; equal lists are checked once."""
    if not isinstance(value, list | tuple):
        return ()
    value = value[:MAX_TENSORS]
    try:
        if max(map(len, value), default=0) > MAX_DIMENSIONS:
            return _checked(value)
        key = tuple(map(tuple, value))
        found = _sound.get(key)
    except TypeError:  # not a list of lists of numbers
        return _checked(value)
    if found is None:
        found = _checked(value)
        if found == key and sum(map(len, key)) <= _MOST_NUMBERS:
            if len(_sound) >= _KNOWN_AT_MOST:
                _sound.clear()
            _sound[found] = found
    return found


def _checked(value: Sequence[Any]) -> _Shapes:
    found = (integers(item, MAX_DIMENSIONS) for item in value)
    return tuple(shape for shape in found if shape is not None and (not shape or min(shape) >= 0))


def together(entries: Sequence[Entry]) -> Entry:
    """Return one entry for a coalesced group, which counts as one call.

    Its signature covers the calls in any order. Its last entry says whether it is retired.
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
            out_sizes=None,
            out_shape=None,
            peer=None,
            signature=signature & MASK | 1,
            size=0,
        )
    state = max(entry.state for entry in entries)
    return entries[0]._replace(posted=whole, state=state, retired=last.retired)
