"""Find the members of communicators that only NCCL's profiler plugin described.

NCCL gives each member its own rank in the communicator, and no global ranks. The rings of all
members together have both. And where a Python probe names a communicator on some ranks, and only
the plugin on others, NCCL's hash shows that both are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncclscope.model import Communicator, Rank
from ncclscope.model.log import CallLog
from ncclscope.model.memory import Relabelled, Renamed, Rooted

PLUGIN = "nccl-plugin"


def join_processes(ranks: Sequence[Rank]) -> list[Rank]:
    """Join two rings of one process and rank: the plugin's, and that of a tracer made later."""
    kept: list[Rank] = []
    places: dict[tuple[str, int], list[int]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.details.get("recorder") == PLUGIN):
        near = places.setdefault((rank.host, rank.pid), [])
        own = rank.details.get("recorder") == PLUGIN
        place = next((at for at in near if own and _is_same(kept[at], rank)), None)
        if place is None:
            near.append(len(kept))
            kept.append(rank)
        else:
            kept[place] = _joined(kept[place], rank)
    return kept


def with_members(ranks: Sequence[Rank]) -> list[Rank]:
    """Return ranks whose communicators have one key, and all members that are known.

    Calls with a root then have its global rank.
    """
    named = [renamed(rank, names) for names in [_keys_by_hash(ranks)] for rank in ranks]
    members = _members(named)
    return [_relabelled(rank, members) for rank in named]


def _is_same(one: Rank, other: Rank) -> bool:
    """Return whether two rings of a pid are of one process; some processes have several ranks."""
    names = ("boot_id", "pid_namespace", "start_ticks")
    return (
        one.details.get("recorder") != PLUGIN
        and one.rank in (-1, other.rank)
        and all(one.details.get(name) == other.details.get(name) for name in names)
    )


def _joined(rank: Rank, plugin: Rank) -> Rank:
    return replace(
        rank,
        rank=plugin.rank if rank.rank < 0 else rank.rank,
        world_size=rank.world_size or plugin.world_size,
        logs={**plugin.logs, **rank.logs},
        p2p={**plugin.p2p, **rank.p2p},
        records=rank.records + plugin.records,
        lost=rank.lost + plugin.lost,
        carried={**plugin.carried, **rank.carried},
        places={**plugin.places, **rank.places},
    )


def _keys_by_hash(ranks: Sequence[Rank]) -> dict[str, str]:
    """Return the key of a probe for each key that the plugin made up for the same communicator."""
    probes: dict[str, set[str]] = {}
    made_up: dict[str, str] = {}
    both = set()
    for rank in ranks:
        own: dict[str, list[str]] = {}
        for key, log in rank.logs.items():
            if log.communicator.hash:
                own.setdefault(log.communicator.hash, []).append(key)
        for hash, keys in own.items():
            if len(keys) > 1:
                both.add(hash)
            for key in keys:
                if key == f"nccl:{hash.removeprefix('0x'):0>16}":
                    made_up[hash] = key
                else:
                    probes.setdefault(hash, set()).add(key)
    return {
        key: next(iter(probes[hash]))
        for hash, key in made_up.items()
        if hash not in both and len(probes.get(hash, ())) == 1
    }


def renamed(rank: Rank, names: Mapping[str, str]) -> Rank:
    """Return a process some of whose communicators have other keys.

    Args:
        rank: The process.
        names: New keys by those that it recorded.
    """
    if not names.keys() & rank.logs.keys():
        return rank

    def key_of(key: str) -> str:
        return names.get(key, key)

    logs = {
        key_of(key): log
        if key not in names
        else Renamed(log, replace(log.communicator, key=names[key]))
        for key, log in rank.logs.items()
    }
    return replace(
        rank,
        logs=logs,
        p2p={
            key_of(key): calls
            if key not in names
            else [replace(call, comm=names[key]) for call in calls]
            for key, calls in rank.p2p.items()
        },
        carried={key_of(key): count for key, count in rank.carried.items()},
        places={key_of(key): place for key, place in rank.places.items()},
    )


def _members(ranks: Sequence[Rank]) -> dict[str, tuple[int, ...]]:
    """Return the global ranks of each communicator whose members all recorded their places."""
    places: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    for rank in ranks:
        for key, place in rank.places.items():
            log = rank.logs.get(key)
            if log is not None:
                places.setdefault(key, {})[place] = rank.rank
                sizes[key] = max(sizes.get(key, 0), log.communicator.size)
    found = {}
    for key, own in places.items():
        if sizes[key] and own.keys() == set(range(sizes[key])) and len({*own.values()}) == len(own):
            found[key] = tuple(own[place] for place in range(sizes[key]))
    return found


def _relabelled(rank: Rank, members: Mapping[str, tuple[int, ...]]) -> Rank:
    logs: dict[str, CallLog] = {}
    for key, log in rank.logs.items():
        comm: Communicator = log.communicator
        known = members.get(key, comm.ranks)
        if known != tuple(range(len(known))):
            logs[key] = Rooted(log, replace(comm, ranks=known))
        else:
            logs[key] = log if known == comm.ranks else Relabelled(log, replace(comm, ranks=known))
    return replace(rank, logs=logs)
