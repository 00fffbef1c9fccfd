"""Decode records of a ring into calls."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ncclscope.model import Call, DamagedCall, State
from ncclscope.model.graphs import Replay
from ncclscope.model.signature import CREATION_OPS, VECTOR_OPS
from ncclscope.model.sites import read as read_sites
from ncclscope.ring import layout
from ncclscope.ring.image import Records
from ncclscope.ring.reader import RingFile

__all__ = ["decode", "is_signable"]

_CLIPPED = 0xFFFFFFFF
_LONGEST_SHAPE = 1 << 12


def decode(
    ring: RingFile, records: Records, key: str, signatures: Sequence[int] | None = None
) -> list[Call]:
    """Decode records into calls.

    Args:
        ring: The ring, with the texts that the records refer to.
        records: Records, `[records]`.
        key: Key of the communicator.
        signatures: Signature of each record; None for sends and receives.

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
        own_sizes, out_sizes = layout.part_sizes(ring.sizes(sizes)) if sizes else (None, None)
        call = Call(
            op=ring.text(layout.KIND_OP, op) or "?",
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
        )
        numbers = (dtype, redop)
        lost = (
            (op and call.op == "?")
            or (dtype % layout.NO_ROOM and call.dtype is None)
            or (redop % layout.NO_ROOM and call.redop is None)
            or not (ndim <= 4 or ndim == layout.NO_SHAPE)
        )
        if signatures is not None and (
            lost or (_is_whole(call, numbers) and _is_contradicted(call))
        ):
            call = DamagedCall("?", key, seq, call.position, signature=call.signature)
        calls.append(call)
    return calls


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


def _is_contradicted(call: Call) -> bool:
    """Return whether the signature or the number of elements contradicts a record's fields."""
    if call.shape is not None and call.numel and prod(call.shape) != call.numel:
        return True
    return call.sign() != call.signature


def _dimensions(spelled: str) -> tuple[int, ...]:
    parts = spelled[:_LONGEST_SHAPE].split(",")
    return tuple(int(part) for part in parts if part.isdecimal() and len(part) < 20)
