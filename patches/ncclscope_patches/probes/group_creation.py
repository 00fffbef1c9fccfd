"""Record the creation of process groups as calls.

``new_group`` is a collective of the whole job: all ranks must call it in the same order with the
same members, including ranks outside the new group. torch does not check this. Members rendezvous
at the store under a number that each rank counts itself. So a rank that skips a creation, or
changes the order, waits there forever under a wrong number.

Creations have their own communicator, so that the parent's sequence numbers do not change.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ncclscope.model import CREATION_SUFFIX
from ncclscope_patches.probes import process_groups, recording
from ncclscope_patches.probes.recording import NOBODY, Handle

Creation = tuple[Handle, int]
"""A creation in progress: its handle, and the position of its record."""

_STORE = "store"
"""Backend of creations in which members rendezvous at the store, and other ranks do not wait."""


def begin(parent: Any, name: str, ranks: Sequence[int], backend: str) -> Creation | None:
    """Record that this process begins to create a group.

    Args:
        parent: The group of all ranks; None before there is one.
        name: torch's name of the new group.
        ranks: Global ranks of its members, in its order.
        backend: Its backend.

    Returns:
        The creation, for :func:`end`; None if nothing was recorded.
    """
    above = NOBODY if parent is None else process_groups.handles.of(parent)
    if above is NOBODY or above.comm is None:
        return None
    key, label, members = above.comm.key, f"{above.comm.label}{CREATION_SUFFIX}", above.comm.ranks
    if not name.isdecimal():
        # A hash as name means that only the members make this call.
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
    """Record that a group has been created."""
    handle, position = creation
    handle.complete(position)


def _meeting(parent: Any, above: Handle) -> str:
    """Return the backend of the creation: a split communicator needs all its members."""
    assert above.comm is not None
    if getattr(parent, "bound_device_id", None) is not None and above.comm.backend != "gloo":
        return above.comm.backend
    return _STORE
