"""Map torch process groups to communicators.

A communicator's key is made of what its members share: the backend, the group's name, which torch
assigns in the same order on every rank, the members' global ranks, and the port of their store.
The port separates replicas of a dense model: they are separate jobs with equal names and ranks.
After destroy_process_group() torch uses the same names again, and the key has the world's number.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.probes.from_cpp import backward
from ncclscope_patches.probes.recording import NOBODY, Handle, Handles, watch_captures

CPU_SUFFIX = "/cpu"
"""Added to the label of a group's second communicator, which is for host memory."""

DEVICE_SUFFIX = "/device"
"""Added to the label of torch's communicator if another one carries the device traffic."""

_WAITING = frozenset({"gloo", "mpi", "ucc"})
"""Backends whose ``wait()`` returns when the call has completed."""
_QUEUEING = frozenset({"hccl", "nccl", "rccl", "xccl"})
"""Backends whose ``wait()`` makes the current stream wait for the call, and returns."""
_ON_CUDA = frozenset({"nccl", "rccl"})


class _Worlds:
    """The default groups that this process has made, one after the other.

    Attributes:
        count: Number of attempts, this one included.
        job: Rank and size in the first world, or in a larger one that followed.
        is_renumbered: Whether the process has another rank in this world than in the job.
        of_key: By what members share: number of the newest world with such a group.
    """

    def __init__(self) -> None:
        self.count = 0
        self.job = (-1, 0)
        self.is_renumbered = False
        self.of_key: dict[str, int] = {}

    def number(self, shared: str, *, is_new: bool) -> int:
        """Return the number of a group's world; 1 if no earlier world had such a group."""
        if is_new and shared in self.of_key:
            self.of_key[shared] = self.count
        return self.of_key.setdefault(shared, 1)


_worlds = _Worlds()


def begin_world() -> None:
    """Note that a default group is about to be made."""
    _worlds.count += 1


def join_world(rank: int, size: int) -> None:
    """Record the rank of this process, which keeps it in later worlds that are not larger.

    Args:
        rank: Its rank in the default group.
        size: Size of that group.
    """
    tracer = session.current()
    if tracer is not None and size > _worlds.job[1]:
        _worlds.job = rank, size
        tracer.describe(rank=rank, world_size=size)
    _worlds.is_renumbered = rank != _worlds.job[0]


session.on_reset(lambda: _worlds.__init__())  # type: ignore[misc]


def declare(
    group: Any, ranks: Sequence[int], created_at: str | None = None, timeout: int = 0
) -> Handle:
    """Record a new group in the ring, before its first call.

    Args:
        group: The process group.
        ranks: Global ranks of its members; empty where torch does not know them, as in a group
            that a trainer shares with processes of another world.
        created_at: Line of the program that created it.
        timeout: Seconds after which torch gives up a call on it; 0 if unknown.
    """
    handle = handles.known.get(id(group))
    if handle is not None:
        return handle
    return handles.remember(group, _handle(group, ranks, created_at, timeout, is_new=True))


def name(group: Any, label: str, ranks: Sequence[int] = ()) -> None:
    """Label a group's communicator with the program's name for it.

    Args:
        group: The process group.
        label: The label, such as ``tp:0``.
        ranks: Global ranks of its members, for groups that torch does not know.
    """
    handle = handles.of(group)
    if handle is not NOBODY:
        handle.rename(label, ranks)


def label_of(group: Any) -> str:
    """Return the label of a process group's communicator; empty if there is none."""
    if not isinstance(group, c10d().ProcessGroup):
        return ""
    comm = handles.of(group).comm
    return "" if comm is None else comm.label


def of_library(group: Any, backend: str, name: str) -> Handle:
    """Return a new handle for the calls of a library that carries a group's data without NCCL.

    They have a sequence of their own, and the members of the group.

    Args:
        group: The process group.
        backend: Name of the library in records.
        name: Last part of the communicator's key and label, such as ``custom`` for
            ``tp:0/custom``.
    """
    tracer = session.current()
    comm = handles.of(group).comm
    if tracer is None or comm is None:
        return NOBODY
    watch_captures()
    label = comm.label
    for suffix in (CPU_SUFFIX, DEVICE_SUFFIX):
        label = label.removesuffix(suffix)
    own = tracer.communicator(
        key=f"{comm.key}/{name}", label=f"{label}/{name}", ranks=comm.ranks, backend=backend
    )
    return Handle(tracer, own, on_device=True)


def global_ranks(group: Any) -> list[int]:
    """Return the members' global ranks in the group's order; empty if torch does not know them."""
    try:
        ranks: dict[int, int] = c10d()._world.pg_group_ranks.get(group, {})
    except TypeError:  # unhashable, so no process group
        return []
    return sorted(ranks, key=lambda rank: ranks[rank])


def _open(group: Any) -> Handle:
    return _handle(group, global_ranks(group))


handles = Handles(_open)


def _handle(
    group: Any,
    ranks: Sequence[int],
    created_at: str | None = None,
    timeout: int = 0,
    *,
    is_new: bool = False,
) -> Handle:
    if group.size() < 2:  # a single rank waits for no peer
        return NOBODY
    tracer = session.current()
    if tracer is None:
        return NOBODY
    backends = _backends(group)
    if backends & _ON_CUDA:
        watch_captures()
        backward.watch()
    backend = ",".join(sorted(backends))
    members = ",".join(map(str, ranks)) if ranks else str(group.size())
    shared = f"{backend}|{group.group_name}|{members}|{_port(group)}"
    if (world := _worlds.number(shared, is_new=is_new)) > 1:
        shared += f"|{world}"
    digest = blake2b(shared.encode(), digest_size=16)
    comm = tracer.communicator(
        key=f"c10d:{digest.hexdigest()}",
        label=_label(group),
        # Ranks of another world are not those of the job: readers find them by the places below.
        ranks=() if _worlds.is_renumbered else ranks,
        backend=backend,
        created_at=created_at,
        timeout=timeout,
    )
    if _worlds.count > 1 or (is_new and not ranks):
        place = {"comm_rank": group.rank(), "size": group.size()}
        tracer.ring.update_channel(comm.channel, place)
    waits = True if backends <= _WAITING else False if backends <= _QUEUEING else None
    return Handle(tracer, comm, waits=waits, on_device="nccl" in backends)


def _backends(group: Any) -> frozenset[str]:
    """Return the backends of a group, which may have one for each device type."""
    config = c10d()._world.pg_backend_config.get(group)
    if not config:
        return frozenset({group.name()})
    return frozenset(entry.rpartition(":")[2] for entry in str(config).split(","))


def _label(group: Any) -> str:
    if c10d()._world.default_pg is group or group.group_desc == "default_pg":
        return "world"
    if group.group_desc not in ("", "undefined"):
        return str(group.group_desc)
    number = group.group_name
    # No colon: the text before a colon means the kind of a group, which is unknown here.
    return f"pg{number}" if number.isdecimal() else f"pg-{number[:8]}" if number else ""


def _port(group: Any) -> int:
    """Return the port of the members' store; 0 if they have no TCP store."""
    if hasattr(group, "get_group_store"):
        try:
            store = group.get_group_store()
        except RuntimeError:  # a backend on its own, without a store
            return 0
    else:  # torch 2.6
        _, store = c10d()._world.pg_map.get(group, ("", None))
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", 0)


def c10d() -> Any:
    """Return torch's module of process groups, which has been imported."""
    return sys.modules["torch.distributed.distributed_c10d"]


def resolved(group: Any) -> Any:
    """Return a process group, which functional collectives name."""
    return c10d()._resolve_process_group(group) if isinstance(group, str) else group
