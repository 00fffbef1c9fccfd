"""Which communicator a torch process group is.

Its key is made of what its members share: the backend, the name that torch gives it in the
same order on every rank, the members' global ranks, and the port of their store, since the
replicas of a dense model are jobs of their own with the same names and the same ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.probes.recording import NOBODY, Handle, Handles, watch_captures

__all__ = ["CPU_SUFFIX", "DEVICE_SUFFIX", "declare", "global_ranks", "handles", "label_of", "name"]

CPU_SUFFIX = "/cpu"
"""Added to a label where one set of ranks has a second communicator, for host memory."""

DEVICE_SUFFIX = "/device"
"""Added to the label of torch's own, where another carries the traffic between devices."""

_WAITING = frozenset({"gloo", "mpi", "ucc"})
"""Backends whose ``wait()`` returns when the call has completed."""
_QUEUEING = frozenset({"hccl", "nccl", "rccl", "xccl"})
"""Backends whose ``wait()`` puts the current stream behind the call and returns."""
_ON_CUDA = frozenset({"nccl", "rccl"})


def declare(group: Any, ranks: Sequence[int], created_at: str | None = None) -> Handle:
    """Make a group known in the ring that has just been made, before anything is posted.

    Args:
        group: The process group.
        ranks: Global ranks of its members.
        created_at: The line of the program that made it.
    """
    handle = handles.known.get(id(group))
    if handle is not None:
        return handle
    return handles.remember(group, _handle(group, ranks, created_at))


def name(group: Any, label: str, ranks: Sequence[int] = ()) -> None:
    """Give a group's communicator the name that its program has for it.

    Args:
        group: The process group.
        label: Such as ``tp:0``.
        ranks: Global ranks of its members, for groups that torch does not know.
    """
    handle = handles.of(group)
    if handle is not NOBODY:
        handle.rename(label, ranks)


def label_of(group: Any) -> str:
    """Return the label of a process group's communicator; empty where there is none."""
    if not isinstance(group, _torch().ProcessGroup):
        return ""
    comm = handles.of(group).comm
    return "" if comm is None else comm.label


def global_ranks(group: Any) -> list[int]:
    """Return the members' global ranks in the group's order; empty when torch has none."""
    try:
        ranks: dict[int, int] = _torch()._world.pg_group_ranks.get(group, {})
    except TypeError:  # unhashable, so no process group
        return []
    return sorted(ranks, key=lambda rank: ranks[rank])


def _open(group: Any) -> Handle:
    return _handle(group, global_ranks(group))


handles = Handles(_open)


def _handle(group: Any, ranks: Sequence[int], created_at: str | None = None) -> Handle:
    if group.size() < 2:  # waits for nobody
        return NOBODY
    tracer = session.current()
    if tracer is None:
        return NOBODY
    backends = _backends(group)
    if backends & _ON_CUDA:
        watch_captures()
    backend = ",".join(sorted(backends))
    members = ",".join(map(str, ranks)) if ranks else str(group.size())
    shared = f"{backend}|{group.group_name}|{members}|{_port(group)}"
    digest = blake2b(shared.encode(), digest_size=16)
    comm = tracer.communicator(
        key=f"c10d:{digest.hexdigest()}",
        label=_label(group),
        ranks=ranks,
        backend=backend,
        created_at=created_at,
    )
    waits = True if backends <= _WAITING else False if backends <= _QUEUEING else None
    return Handle(tracer, comm, waits=waits, on_device="nccl" in backends)


def _backends(group: Any) -> frozenset[str]:
    """Return the backends behind a group, of which there may be one for each device."""
    config = _torch()._world.pg_backend_config.get(group)
    if not config:
        return frozenset({group.name()})
    return frozenset(entry.rpartition(":")[2] for entry in str(config).split(","))


def _label(group: Any) -> str:
    torch = _torch()
    if torch._world.default_pg is group or group.group_desc == "default_pg":
        return "world"
    if group.group_desc not in ("", "undefined"):
        return str(group.group_desc)
    number = group.group_name
    # No colon: what stands before one is taken for a kind of group, and these have none.
    return f"pg{number}" if number.isdecimal() else f"pg-{number[:8]}" if number else ""


def _port(group: Any) -> int:
    """Return the port that all members met at; 0 where they met otherwise."""
    if hasattr(group, "get_group_store"):
        try:
            store = group.get_group_store()
        except RuntimeError:  # a backend on its own, without a store
            return 0
    else:  # torch 2.6
        _, store = _torch()._world.pg_map.get(group, ("", None))
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", 0)


def _torch() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]
