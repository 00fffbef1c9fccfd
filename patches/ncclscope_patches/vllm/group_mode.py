"""Let the members of a group agree on a mode before it changes what any of them posts.

A switch that only some ranks have makes their calls differ: they hang. So each member writes its
mode into the store of its group, and the first that knows enough writes the decision. Nothing is
posted, so that a member without ncclscope cannot hang the others: they wait for its mode for some
seconds, and then all leave everything as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ncclscope
from ncclscope.model.text import ranks_text
from ncclscope.model.ties import grouped
from ncclscope.tracing import session

WAIT_SECONDS = 20.0
"""Wait for the modes of all members. They come here within moments of a collective."""

_AGREED = "agreed"
_POLL_SECONDS = 0.02


def agreed(group: Any, what: str, mode: str, *, otherwise: str, wait: float = WAIT_SECONDS) -> bool:
    """Return whether all members of a group have the same mode; the same answer on all of them.

    One member prints a line with the answer; the rings of all hold it as ``switches``.

    Args:
        group: A ``ProcessGroup`` of torch, or an object with ``store``, ``rank`` and
            ``world_size``.
        what: Name of the switch, for the line and the keys.
        mode: Mode of this rank; not empty.
        otherwise: Consequence if members differ, for the line.
        wait: Seconds until a member that has written nothing counts as one without the switch.

    Raises:
        NotImplementedError: The group has no store.
    """
    store, rank, members = _place(group)
    if len(members) == 1:
        return True
    own = f"{mode}, ncclscope {ncclscope.__version__}"
    prefix = f"ncclscope/{what}"
    keys = {member: f"{prefix}/{member}" for member in members}
    store.set(keys[rank], own)
    reported = _modes(store, keys, wait)
    same = all(reported.get(member) == own for member in members)
    proposal = _AGREED if same else _difference(what, reported, members, wait)
    # Several members may propose at once, and differently: one of them may have come too late.
    decision: str = store.compare_set(f"{prefix}/decision", "", proposal).decode()
    is_agreed = decision == _AGREED
    said = f"{what}={mode} is in effect: {ranks_text(members)} have agreed on it"
    line = said if is_agreed else f"{otherwise}: {decision}"
    session.describe(switches={what: line})
    if store.add(f"{prefix}/printed", 1) == 1:
        print(f"ncclscope: {line}", file=sys.stderr, flush=True)
    return is_agreed


def _place(group: Any) -> tuple[Any, int, Sequence[int]]:
    """Return the group's store, this process's global rank, and those of all members."""
    if hasattr(group, "store") and hasattr(group, "world_size"):
        return group.store, group.rank, range(group.world_size)
    distributed: Any = sys.modules["torch.distributed"]
    world = distributed.distributed_c10d._world
    _, store = world.pg_map.get(group) or (None, None)
    if store is None:
        raise NotImplementedError("its group has no store in which its members could agree")
    members = distributed.get_process_group_ranks(group)
    return store, members[group.rank()], members


def _modes(store: Any, keys: Mapping[int, str], wait: float) -> dict[int, str]:
    """Return the modes of the members that write theirs in time."""
    deadline = time.monotonic() + wait
    # Not by store.wait(), of whose time-out torch warns at length.
    while not store.check(list(keys.values())) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    written = {member: key for member, key in keys.items() if store.check([key])}
    return {member: store.get(key).decode() for member, key in written.items()}


def _difference(what: str, reported: Mapping[int, str], members: Sequence[int], wait: float) -> str:
    modes = grouped(members, lambda member: reported.get(member, ""))
    parts = [
        f"{ranks_text(ranks)}: {mode or f'not set (nothing in {wait:g} s)'}"
        for mode, ranks in modes.items()
    ]
    return f"{what} must be the same on all ranks; {'; '.join(parts)}"
