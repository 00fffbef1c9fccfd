"""The creation of process groups, as calls of their own.

By torch's rule ``new_group`` is a collective of the whole job: all ranks make it in the same
order with the same members, also those that will be none. Torch does not check it. Members
meet at the store under a number that each rank counts for itself, so that a rank which leaves
one out, or takes another order, waits there for ever under a wrong number.

Creations are recorded on a communicator of their own, so that the numbers of the calls on
their parent stay what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ncclscope.model import CREATION_SUFFIX
from ncclscope_patches.probes import process_groups, recording
from ncclscope_patches.probes.recording import NOBODY, Handle

__all__ = ["Creation", "begin", "end"]

Creation = tuple[Handle, int]
"""A creation under way: where it was recorded, and the position of its record."""

_STORE = "store"
"""Backend of creations in which members meet at the store, and others only pass."""


def begin(parent: Any, name: str, ranks: Sequence[int], backend: str) -> Creation | None:
    """Record that this process begins to create a group.

    Args:
        parent: The group of all ranks; None before there is one.
        name: What torch calls the new group.
        ranks: Global ranks of its members, in its order.
        backend: Its backend.

    Returns:
        What :func:`end` takes; None where nothing was recorded.
    """
    above = NOBODY if parent is None else process_groups.handles.of(parent)
    if above is NOBODY or above.comm is None:
        return None
    key, label, members = above.comm.key, f"{above.comm.label}{CREATION_SUFFIX}", above.comm.ranks
    if not name.isdecimal():
        # Named by a hash and not by a number: only the members make this call.
        members = tuple(sorted(ranks))
        digest = blake2b(",".join(map(str, members)).encode(), digest_size=8)
        key, label = f"{key}/{digest.hexdigest()}", CREATION_SUFFIX.removeprefix("/")
    if len(members) < 2:
        return None
    comm = above.tracer.communicator(
        key=f"{key}{CREATION_SUFFIX}", label=label, ranks=members, backend=_meeting(parent, above)
    )
    handle = Handle(above.tracer, comm, waits=True)
    parameters = ("new_group", None, str(backend), None, None, None, None, tuple(ranks))
    return handle, recording.record(handle, parameters, sys._getframe(1))


def end(creation: Creation) -> None:
    """Note that a group has been created."""
    handle, position = creation
    handle.complete(position)


def _meeting(parent: Any, above: Handle) -> str:
    """Return what the ranks meet by: a communicator that is split needs all its members."""
    assert above.comm is not None
    if getattr(parent, "bound_device_id", None) is not None and above.comm.backend != "gloo":
        return above.comm.backend
    return _STORE
