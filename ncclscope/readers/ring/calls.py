"""Decode records of a ring into calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclscope.model import Call, DamagedCall, State
from ncclscope.model.graphs import Replay
from ncclscope.model.signature import (
    CREATION_OPS,
    EXPERT_OPS,
    P2P_OPS,
    ROOTED_OPS,
    SYMMETRIC_OPS,
    VECTOR_OPS,
)
from ncclscope.model.sites import read as read_sites
from ncclscope.ring import layout
from ncclscope.ring.image import Records
from ncclscope.ring.reader import RingFile
from ncclscope.untrusted import printable, text

_CLIPPED = 0xFFFFFFFF
_LONGEST_SHAPE = 1 << 12
_ROOTLESS = CREATION_OPS | EXPERT_OPS | SYMMETRIC_OPS
"""Operations without a root. Where another field is lost, the running hash proves nothing."""
_SIZED = VECTOR_OPS | CREATION_OPS | {"all_gather", "all_to_all"}
_UNSIZED = (_ROOTLESS | ROOTED_OPS | P2P_OPS) - _SIZED
"""Operations without a list of sizes. No checksum covers which list belongs to a record."""


def decode(
    ring: RingFile, records: Records, key: str, signatures: Sequence[int] | None = None
) -> list[Call]:
    """Decode records into calls.

    Args:
        ring: The ring, with the texts that the records refer to.
        records: Records, `[records]`.
        key: Key of the communicator.
        signatures: Signature of each record; None for sends and receives, and where collectives
            need not be checked.

    Returns:
        One call per record, in order; a :class:`DamagedCall` if its fields contradict it.
    """
    calls = []
    shapes = records["shape"].tolist()
    for place, row in enumerate(records.tolist()):
        (begin, when, _, seq, numel, _, _, op, dtype, redop, ndim, fixed, root, sizes, site) = row[
            :15
        ]
        out, graph, group, flags, state = row[15:20]
        p2p = fixed & layout.FIXED_P2P != 0
        shape = tuple(shapes[place][:ndim]) if ndim <= 4 else None
        out_shape = ring.text(layout.KIND_SHAPE, out)
        places = read_sites(ring.text(layout.KIND_SITE, site))
        name = ring.text(layout.KIND_OP, op) or "?"
        own_sizes, out_sizes = (
            layout.part_sizes(ring.sizes(sizes)) if sizes and name not in _UNSIZED else (None, None)
        )
        call = Call(
            op=name,
            comm=key,
            seq=seq,
            position=(begin - 1) * ring.scale,
            dtype=ring.text(layout.KIND_DTYPE, dtype % layout.NO_ROOM),
            redop=ring.text(layout.KIND_REDOP, redop % layout.NO_ROOM),
            root=None if p2p or root < 0 else root,
            peer=root if p2p and root >= 0 else None,
            numel=numel if numel or shape is not None else None,
            shape=shape,
            sizes=own_sizes,
            out_sizes=out_sizes,
            out_shape=None if out_shape is None else _dimensions(out_shape),
            site=places.site,
            full_site=places.full,
            user_site=places.user,
            time_ns=when,
            state=State(min(state, State.COMPLETED)),
            captured=flags & layout.FLAG_CAPTURED != 0,
            group=group or None,
            graph=graph or None,
            replay=Replay() if flags & layout.FLAG_REPLAYED else None,
            signature=0 if signatures is None else signatures[place],
            thread=flags >> layout.THREAD_SHIFT,
        )
        numbers = (dtype, redop)
        lost = (
            (call.op == "?" and (op or not dtype))
            or (dtype % layout.NO_ROOM and call.dtype is None)
            or (redop % layout.NO_ROOM and call.redop is None)
            or not (ndim <= 4 or ndim == layout.NO_SHAPE)
        )
        if p2p:
            lost = lost or call.op not in P2P_OPS or call.redop is not None
            checked = True
        else:
            checked = signatures is not None
            lost = lost or (_is_whole(call, numbers) and _is_contradicted(call))
        if checked and (lost or _is_misshapen(call)):
            # A damaged transfer must not be taken for a part of the common sequence.
            kept = (call.op if call.op in P2P_OPS else "send") if p2p else "?"
            call = DamagedCall(
                kept, key, seq, call.position, state=call.state, signature=call.signature
            )
        calls.append(_printable(call))
    return calls


def _printable(call: Call) -> Call:
    """Return a call with printable names; only now, since its signature covers the given ones."""
    names = f"{call.op} {call.dtype} {call.redop}"
    if printable(names) == names:
        return call
    op, dtype, redop = printable(call.op), text(call.dtype), text(call.redop)
    return replace(call, op=op, dtype=dtype, redop=redop)


def decode_member(ring: RingFile, call: int, key: str) -> Call:
    """Decode a captured call, as each replay of its CUDA graph executes it.

    Args:
        ring: The ring.
        call: Number of the call among those of all graphs, from 0.
        key: The key of its communicator.
    """
    record, signature = ring.graphs.record(call), ring.graphs.signature(call)
    (found,) = decode(ring, record, key)
    sizes, out_sizes = layout.part_sizes(ring.graphs.sizes(call))
    found = replace(found, sizes=sizes, out_sizes=out_sizes, signature=signature, replay=Replay())
    numbers = (record[0]["dtype"], record[0]["redop"])
    altered = _is_whole(found, numbers) and _is_contradicted(found)
    if found.op == "?" or _is_misshapen(found) or altered:
        return DamagedCall("?", key, 0, 0, signature=signature)
    return found


def short_sites(ring: RingFile, numbers: NDArray[Any]) -> list[str | None]:
    """Return the call sites of records, without folders.

    Args:
        ring: The ring.
        numbers: Numbers of their texts, `[records]`.
    """
    distinct, places = np.unique(numbers, return_inverse=True)
    texts = [ring.text(layout.KIND_SITE, number) for number in distinct.tolist()]
    short = [read_sites(text).site for text in texts]
    return [short[place] for place in places.tolist()]


def is_signable(ring: RingFile, record: Records) -> bool:
    """Return whether a record still holds all fields that its signature covers."""
    (call,) = decode(ring, record, "")
    return _is_whole(call, (record[0]["dtype"], record[0]["redop"]))


def _is_whole(call: Call, numbers: tuple[int, int]) -> bool:
    """Return whether all signed fields of a call are known.

    Args:
        call: The call.
        numbers: The record's numbers of dtype and reduction.
    """
    complete = (
        call.op != "?" and layout.NO_ROOM not in numbers and _CLIPPED not in (call.shape or ())
    )
    if call.op == "scatter":
        return complete and call.out_shape is not None
    return complete and (call.op not in VECTOR_OPS | CREATION_OPS or call.sizes is not None)


def _is_misshapen(call: Call) -> bool:
    """Return whether fields of a record contradict each other, so that it was altered.

    Compare the shape with the number of elements, and the root with the operation.
    """
    if call.root is not None and call.op in _ROOTLESS and call.sizes is None:
        return True
    if call.shape is None or not call.numel:
        return False
    if _CLIPPED not in call.shape:
        return prod(call.shape) != call.numel
    known = prod(size for size in call.shape if size != _CLIPPED)
    # What is clipped is that large at least.
    return not known or call.numel % known != 0 or prod(call.shape) > call.numel


def _is_contradicted(call: Call) -> bool:
    """Return whether the running hash shows that a record was altered."""
    return call.sign() != call.signature


def _dimensions(spelled: str) -> tuple[int, ...]:
    parts = spelled[:_LONGEST_SHAPE].split(",")
    return tuple(int(part) for part in parts if part.isdecimal() and len(part) < 20)
